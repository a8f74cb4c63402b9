//! Who is believed: the tables of the [verifier](crate::verify), cell by cell.

use std::fs;
use std::time::Duration;

use culvert_testkit::temp::TempDir;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use tokio::io::AsyncReadExt;

use super::{acceptor, client_of, connector, host, nobody, server_with};
use crate::authorities::sha256;
use crate::der::Certificate;
use crate::settings::{
    ClientAuthentication, ClientSettings, Parameters, ServerSettings, Source, StoreBase, StoreSettings,
    Trust, Version,
};
use crate::testing::{Ca, Issued, shake};
use crate::{Acceptor, Connector, Store};

fn pin(issued: &Issued) -> Vec<u8> {
    sha256(Certificate::parse(&issued.der).unwrap().public_key).to_vec()
}

fn both_versions() -> [Parameters; 2] {
    [Version::Tls12, Version::Tls13].map(|version| Parameters {
        min_version: version,
        max_version: version,
        ..Parameters::default()
    })
}

/// Whether a client with `trust` accepts a server that shows `identity`, when it asks for `a.test`.
async fn accepts(trust: Trust, identity: &Issued) -> Result<(), String> {
    let mut outcomes = Vec::new();
    for parameters in both_versions() {
        let settings = ClientSettings { trust: trust.clone(), parameters, ..ClientSettings::default() };
        let (near, far) = shake(&connector(settings, "a.test"), &acceptor(identity)).await;
        let refused = near.as_ref().err().map(ToString::to_string);
        assert_eq!(refused.is_some(), far.is_err(), "a server learns that it is refused");
        outcomes.push(near.map(drop).map_err(|error| error.to_string()));
    }
    assert_eq!(outcomes[0], outcomes[1], "the version makes no difference");
    outcomes.remove(0)
}

/// Matrix of {pin right, wrong} × {authority right, wrong} × {name right, wrong} × {date right, wrong}, once for each way
/// to trust.
#[tokio::test]
async fn the_table_of_trust() {
    let (ca, other_ca) = (Ca::new("ca"), Ca::new("other"));
    for right_ca in [true, false] {
        for right_name in [true, false] {
            for right_date in [true, false] {
                let issuer = if right_ca { &ca } else { &other_ca };
                let name = if right_name { "a.test" } else { "b.test" };
                let identity = issuer.issue_with(name, &KeyPair::generate().unwrap(), |params| {
                    if !right_date {
                        params.not_after = date_time_ymd(2020, 3, 4);
                    }
                });
                let case = format!("authority {right_ca}, name {right_name}, date {right_date}");
                let by_authority = accepts(Trust::Authorities(Source::Inline(ca.pem())), &identity).await;
                assert_eq!(
                    by_authority.is_ok(),
                    right_ca && right_name && right_date,
                    "{case}: {by_authority:?}"
                );
                let right_pin = Trust::Pins(vec![vec![1; 32], pin(&identity)]);
                assert_eq!(accepts(right_pin, &identity).await, Ok(()), "{case}");
                let wrong_pins = Trust::Pins(vec![vec![1; 32], pin(&identity)[..31].to_vec()]);
                let refused = accepts(wrong_pins, &identity).await.unwrap_err();
                assert!(refused.contains("is not in certificate_public_key_sha256"), "{case}: {refused}");
                assert_eq!(accepts(Trust::Anyone, &identity).await, Ok(()), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn refusals_say_what_is_wrong_and_for_which_name() {
    let ca = Ca::new("ca");
    let trust = || Trust::Authorities(Source::Inline(ca.pem()));
    let made =
        |change: fn(&mut CertificateParams)| ca.issue_with("a.test", &KeyPair::generate().unwrap(), change);
    let expired = made(|params| params.not_after = date_time_ymd(2026, 1, 2));
    let early = made(|params| params.not_before = date_time_ymd(2999, 1, 2));
    let client_only = made(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    let table = [
        (&expired, "certificate for a.test expired on 2026-01-02"),
        (&early, "certificate for a.test is not valid before 2999-01-02"),
        (&ca.issue("b.test"), "certificate is valid for b.test, not a.test"),
        (
            &Ca::new("Evil Inc").issue("a.test"),
            "certificate for a.test is signed by Evil Inc, which is not trusted",
        ),
        (&client_only, "certificate for a.test: "),
    ];
    for (identity, reason) in table {
        let error = accepts(trust(), identity).await.unwrap_err();
        assert!(error.starts_with(&format!("TLS handshake with a.test: {reason}")), "{error}");
    }
}

/// Go accepts a certificate that is itself among the trusted ones, whatever it may sign; many servers live from that.
#[tokio::test]
async fn a_certificate_that_is_itself_named_is_trusted_but_not_for_other_names_or_times() {
    let make = |name: &str, is_ca: IsCa, until: i32| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = is_ca;
        params.not_after = date_time_ymd(until, 1, 1);
        let made = params.self_signed(&key).unwrap();
        Issued { chain: made.pem(), key: key.serialize_pem(), der: made.der().clone() }
    };
    for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        for (name, until, accepted) in
            [("a.test", 2999, true), ("b.test", 2999, false), ("a.test", 2020, false)]
        {
            let own = make(name, is_ca, until);
            let outcome = accepts(Trust::Authorities(Source::Inline(own.chain.clone())), &own).await;
            assert_eq!(outcome.is_ok(), accepted, "{is_ca:?} {name} {until}: {outcome:?}");
            let stranger = accepts(Trust::Authorities(Source::Inline(Ca::new("ca").pem())), &own).await;
            assert!(stranger.is_err());
        }
    }
}

#[tokio::test]
async fn a_wildcard_stands_for_one_label() {
    let ca = Ca::new("ca");
    let acceptor = acceptor(&ca.issue("*.a.test"));
    for (name, accepted) in [("www.a.test", true), ("a.test", false), ("x.www.a.test", false)] {
        let (near, _) = shake(&connector(client_of(&ca), name), &acceptor).await;
        assert_eq!(near.is_ok(), accepted, "{name}");
    }
}

/// The chain that a server shows may go through authorities between its own and a trusted one.
#[tokio::test]
async fn a_chain_leads_to_a_trusted_authority() {
    let root = Ca::new("root");
    let middle = root.middle("middle");
    let mut identity = middle.issue("a.test");
    let trust = || Trust::Authorities(Source::Inline(root.pem()));
    assert!(accepts(trust(), &identity).await.is_err(), "the middle is missing");
    identity.chain += &middle.pem();
    assert_eq!(accepts(trust(), &identity).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_where_no_authority_is_named_and_read_again_when_it_changes() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let folder = TempDir::new().unwrap();
    let path = folder.write("ca.pem", ca.pem()).unwrap();
    let settings = StoreSettings { base: StoreBase::None, paths: vec![path], ..StoreSettings::default() };
    let store = Store::new(settings);
    let connector = Connector::new(ClientSettings::default(), &host("a.test"), &store).unwrap();
    let accepted = async |ca: &Ca| {
        tokio::time::advance(Duration::from_secs(1)).await;
        shake(&connector, &acceptor(&ca.issue("a.test"))).await.0.is_ok()
    };
    assert!(accepted(&ca).await && !accepted(&other).await);
    fs::write(folder.path().join("ca.pem"), other.pem()).unwrap();
    assert!(accepted(&other).await && !accepted(&ca).await);
}

#[tokio::test]
async fn a_server_that_is_not_dialled_by_its_name_is_named_with_its_address() {
    let ca = Ca::new("ca");
    let settings = ClientSettings { server_name: Some("a.test".into()), ..client_of(&ca) };
    let connector = connector(settings, "203.0.113.7");
    let (near, far) = shake(&connector, &acceptor(&ca.issue("b.test"))).await;
    let expected = "TLS handshake with a.test at 203.0.113.7: certificate is valid for b.test, not a.test";
    assert_eq!(near.unwrap_err().to_string(), expected);
    let expected =
        "TLS handshake of a client that asked for a.test: the peer refused: bad certificate (alert 42)";
    assert_eq!(far.unwrap_err().to_string(), expected);
}

#[tokio::test]
async fn disable_sni_hides_the_name_and_still_verifies_it() {
    let ca = Ca::new("ca");
    let settings = || ClientSettings { disable_sni: true, ..client_of(&ca) };
    for (name, accepted) in [("a.test", true), ("b.test", false)] {
        let (near, _) = shake(&connector(settings(), "a.test"), &acceptor(&ca.issue(name))).await;
        assert_eq!(near.is_ok(), accepted);
    }
}

/// Whether a server with `clients` lets a client in that shows `identity`.
async fn lets_in(clients: &ClientAuthentication, ca: &Ca, identity: Option<&Issued>) -> Result<(), String> {
    let mut outcomes = Vec::new();
    for parameters in both_versions() {
        let server = ServerSettings {
            clients: clients.clone(),
            parameters,
            ..server_with(ca.issue("a.test").source())
        };
        let settings = ClientSettings { certificate: identity.map(Issued::source), ..client_of(ca) };
        let (near, far) = shake(&connector(settings, "a.test"), &Acceptor::new(&server).unwrap()).await;
        if far.is_err()
            && let Ok((mut near, _)) = near
        {
            assert!(near.read(&mut [0]).await.is_err(), "a client learns that it is refused");
        }
        outcomes.push(far.map(drop).map_err(|error| error.to_string()));
    }
    assert_eq!(outcomes[0], outcomes[1], "the version makes no difference");
    outcomes.remove(0)
}

#[tokio::test]
async fn the_table_of_client_authentication() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let (good, bad) = (ca.issue("client"), other.issue("client"));
    let expired = ca.issue_with("client", &KeyPair::generate().unwrap(), |params| {
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    let authorities = |optional| ClientAuthentication::Authorities {
        optional,
        authorities: vec![Source::Inline(ca.pem())],
    };
    let pins = |optional| ClientAuthentication::Pins { optional, sha256: vec![pin(&good)] };
    // setting; whether none, a good, a bad and an expired certificate are let in
    let table = [
        (ClientAuthentication::None, [true, true, true, true]),
        (ClientAuthentication::Any { optional: true }, [true, true, true, true]),
        (ClientAuthentication::Any { optional: false }, [false, true, true, true]),
        (authorities(true), [true, true, false, false]),
        (authorities(false), [false, true, false, false]),
        (pins(true), [true, true, false, false]),
        (pins(false), [false, true, false, false]),
    ];
    for (clients, expected) in table {
        for (identity, expected) in [None, Some(&good), Some(&bad), Some(&expired)].into_iter().zip(expected)
        {
            let outcome = lets_in(&clients, &ca, identity).await;
            assert_eq!(outcome.is_ok(), expected, "{clients:?}: {outcome:?}");
        }
    }
    let refusal = lets_in(&authorities(false), &ca, Some(&bad)).await.unwrap_err();
    assert!(
        refusal.ends_with("certificate for client is signed by other, which is not trusted"),
        "{refusal}"
    );
    let refusal = lets_in(&authorities(false), &ca, Some(&expired)).await.unwrap_err();
    assert!(refusal.ends_with("certificate for client expired on 2020-01-01"), "{refusal}");
    let refusal = lets_in(&authorities(false), &ca, None).await.unwrap_err();
    assert!(refusal.ends_with("no certificate was given"), "{refusal}");
    let refusal = lets_in(&pins(false), &ca, Some(&bad)).await.unwrap_err();
    assert!(refusal.contains("is not in client_certificate_public_key_sha256"), "{refusal}");
}

/// Trust is part of the session: who believes anybody leaves no session to who does not.
#[tokio::test]
async fn sessions_are_not_shared_between_connectors() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let acceptor = acceptor(&ca.issue("a.test"));
    let lax = connector(ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() }, "a.test");
    for _ in 0..2 {
        assert!(shake(&lax, &acceptor).await.0.is_ok());
    }
    assert!(shake(&connector(client_of(&other), "a.test"), &acceptor).await.0.is_err());
    assert!(Connector::new(ClientSettings::default(), &host("a.test"), &nobody()).is_ok());
}
