//! Certificates from Debian's `pebble`, an ACME server for tests, whose names its companion `pebble-challtestsrv` points to
//! this machine.
//!
//! What is served is looked at by curl, which trusts pebble's root and nothing else: it takes the inbound as a proxy over
//! TLS, by the name that the certificate is for.

use crate::{culvert, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::http::HttpOrigin;
use culvert_testkit::peer::{PATIENCE, Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpListener;

/// What certificates are for.
const NAME: &str = "a.acme.test";
/// How long a certificate is valid that a test does not want to see renewed, in seconds.
const LONG: u32 = 3600;

/// A place for an authority, which may run or not.
struct Place {
    folder: TempDir,
    /// Where it is asked, where it can be managed, and where it looks for proofs.
    acme: Port,
    management: Port,
    http: Port,
    tls: Port,
    names: Port,
    /// What it shows over TLS.
    certificate: Certificate,
}

/// An authority that runs.
struct Authority {
    pebble: Peer,
    _names: Peer,
}

impl Place {
    /// `None`, said aloud, where there is no pebble.
    fn find() -> Result<Option<Self>> {
        if !Path::new("/usr/bin/pebble").exists() {
            let message = "no pebble: run scripts/test, or install Debian's package";
            assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "{message}");
            skip(message);
            return Ok(None);
        }
        Ok(Some(Self {
            folder: TempDir::new()?,
            acme: Port::reserve()?,
            management: Port::reserve()?,
            http: Port::reserve()?,
            tls: Port::reserve()?,
            names: Port::reserve()?,
            certificate: Certificate::for_name("127.0.0.1"),
        }))
    }

    /// Starts an authority that remembers nothing. `more` goes into its configuration.
    async fn start(&self, validity: u32, more: Value) -> Result<Authority> {
        let mut config = json!({
            "listenAddress": self.acme.v4().to_string(),
            "managementListenAddress": self.management.v4().to_string(),
            "certificate": self.folder.write("own.crt", &self.certificate.certificate)?,
            "privateKey": self.folder.write("own.key", &self.certificate.key)?,
            "httpPort": self.http.number(),
            "tlsPort": self.tls.number(),
            "ocspResponderURL": "",
            "certificateValidityPeriod": validity,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        self.folder.write("pebble.json", json!({ "pebble": config }).to_string())?;
        let names = self.names.v4().to_string();
        let resolver = format!(
            "exec pebble-challtestsrv -dns01 {names} -http01 '' -https01 '' -tlsalpn01 '' -management '' \
             -defaultIPv4 127.0.0.1 -defaultIPv6 '' >&2"
        );
        let resolver = Program::named("sh").launch(["-c", &resolver]).spawn()?;
        resolver.log().line(|line| line.contains("Starting challenge servers")).await?;
        let pebble = format!(
            "PEBBLE_VA_NOSLEEP=1 PEBBLE_AUTHZREUSE=0 exec pebble -dnsserver {names} -config pebble.json >&2"
        );
        let pebble = Program::named("sh").launch(["-c", &pebble]).directory(self.folder.path()).spawn()?;
        pebble.log().line(|line| line.contains("ACME directory available")).await?;
        Ok(Authority { pebble, _names: resolver })
    }

    /// Writes the root that this run of the authority signs with.
    async fn save_root(&self) -> Result {
        let url = format!("https://{}/roots/0", self.management.v4());
        let finished = Program::named("curl").launch(["-q", "-sSfk", "--noproxy", "*", &url]).run().await?;
        ensure!(finished.code == Some(0), "{finished:?}");
        self.folder.write("root.crt", finished.stdout)?;
        Ok(())
    }

    /// A provider with both ways to prove ownership.
    fn provider(&self) -> Value {
        json!({
            "type": "acme", "domain": NAME, "email": "me@acme.test",
            "data_directory": self.folder.path().join("data"),
            "provider": format!("https://{}/dir", self.acme.v4()),
            "alternative_http_port": self.http.number(), "alternative_tls_port": self.tls.number(),
            "http_client": { "tls": { "certificate": self.certificate.certificate } },
        })
    }

    /// The same with some options changed.
    fn provider_with(&self, changes: Value) -> Value {
        let mut provider = self.provider();
        for (key, value) in changes.as_object().into_iter().flatten() {
            provider[key] = value.clone();
        }
        provider
    }

    /// Whether the inbound on this port has a certificate from the authority for `name`, good today.
    async fn serves(&self, port: &Port, name: &str, origin: &HttpOrigin) -> Result<bool> {
        let root = self.folder.path().join("root.crt").display().to_string();
        let (proxy, url) = (format!("https://{name}:{}", port.number()), origin.url("/hello"));
        let here = format!("{name}:{}:127.0.0.1", port.number());
        let arguments = [
            "-q",
            "-sSf",
            "-m",
            "10",
            "--noproxy",
            "",
            "--resolve",
            &here,
            "--proxy-cacert",
            &root,
            "-x",
            &proxy,
            &url,
        ];
        let finished = Program::named("curl").launch(arguments).run().await?;
        Ok(finished.code == Some(0) && finished.stdout.contains("hello"))
    }
}

/// An inbound with this TLS, as a configuration.
fn config(port: &Port, tls: &Value, more: &Value) -> Value {
    let mut tls = tls.clone();
    tls["enabled"] = true.into();
    let inbound = json!({
        "type": "mixed", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number(), "tls": tls,
    });
    let mut config = json!({ "log": { "level": "debug" }, "inbounds": [inbound] });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

async fn obtained(peer: &Peer) -> Result {
    peer.log().line(|line| line.contains("certificate for a.acme.test obtained")).await.map(drop)
}

/// Gets a certificate with this provider, by an inbound of its own port or the given one, and looks at it.
async fn is_obtained(place: &Place, provider: &Value, port: &Port) -> Result<Peer> {
    let origin = HttpOrigin::start().await?;
    place.save_root().await?;
    let tls = json!({ "certificate_provider": provider });
    let peer = culvert().serve(&config(port, &tls, &json!({}))).await?;
    obtained(&peer).await?;
    ensure!(place.serves(port, NAME, &origin).await?, "the certificate is not served");
    ensure!(!place.serves(port, "b.acme.test", &origin).await?, "another name is served");
    Ok(peer)
}

#[test]
fn ownership_is_proven_over_http() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let authority = place.start(LONG, json!({})).await?;
        let provider = place.provider_with(json!({ "disable_tls_alpn_challenge": true }));
        let peer = is_obtained(&place, &provider, &Port::reserve()?).await?;
        authority.pebble.log().line(|line| line.contains("validate w/ HTTP")).await?;
        // Nobody listens there any more.
        TcpListener::bind(place.http.v4()).await?;
        ensure!(!peer.log().text().contains("ERROR"), "{}", peer.log().text());
        Ok(())
    });
}

#[test]
fn ownership_is_proven_over_tls_by_the_inbound_itself() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let _authority = place.start(LONG, json!({})).await?;
        let provider = place.provider_with(json!({ "disable_http_challenge": true }));
        is_obtained(&place, &provider, &place.tls).await?;
        Ok(())
    });
}

#[test]
fn ownership_is_proven_over_tls_where_no_inbound_listens() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let _authority = place.start(LONG, json!({})).await?;
        let provider = place.provider_with(json!({ "disable_http_challenge": true, "key_type": "p384" }));
        is_obtained(&place, &provider, &Port::reserve()?).await?;
        TcpListener::bind(place.tls.v4()).await?;
        Ok(())
    });
}

#[test]
fn what_does_not_work_over_http_is_tried_over_tls() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let _authority = place.start(LONG, json!({})).await?;
        let _occupant = TcpListener::bind(place.http.v4()).await?;
        is_obtained(&place, &place.provider_with(json!({ "key_type": "rsa2048" })), &Port::reserve()?)
            .await?;
        Ok(())
    });
}

/// Two inbounds that name one provider, and one that describes the same: one order serves all three.
#[test]
fn one_name_is_ordered_once() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let authority = place.start(LONG, json!({})).await?;
        place.save_root().await?;
        let origin = HttpOrigin::start().await?;
        let mut tagged = place.provider();
        tagged["tag"] = "shared".into();
        let ports = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let inbounds: Vec<_> = [json!("shared"), json!("shared"), place.provider()]
            .into_iter()
            .zip(&ports)
            .map(|(provider, port)| {
                let tls = json!({ "enabled": true, "certificate_provider": provider });
                json!({ "type": "http", "listen": "127.0.0.1", "listen_port": port.number(), "tls": tls })
            })
            .collect();
        let all = json!({
            "log": { "level": "debug" }, "certificate_providers": [tagged], "inbounds": inbounds,
        });
        let peer = culvert().serve(&all).await?;
        obtained(&peer).await?;
        for port in &ports {
            // The second provider looks every other second whether the first one is done.
            until(async || place.serves(port, NAME, &origin).await).await?;
        }
        let orders = authority.pebble.log().text().matches("There are now 2 orders in the db").count();
        ensure!(orders == 0, "{}", authority.pebble.log().text());
        Ok(())
    });
}

#[test]
fn a_restart_needs_no_authority() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let authority = place.start(LONG, json!({})).await?;
        let (port, origin) = (Port::reserve()?, HttpOrigin::start().await?);
        drop(is_obtained(&place, &place.provider(), &port).await?);
        drop(authority);
        let tls = json!({ "certificate_provider": place.provider() });
        let peer = culvert().serve(&config(&port, &tls, &json!({}))).await?;
        ensure!(place.serves(&port, NAME, &origin).await?, "the stored certificate is not served");
        ensure!(!peer.log().text().contains("ordering"), "{}", peer.log().text());
        Ok(())
    });
}

#[test]
fn an_authority_that_is_down_is_waited_for() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let (port, origin) = (Port::reserve()?, HttpOrigin::start().await?);
        let tls = json!({ "certificate_provider": place.provider() });
        // The start is not held up.
        let peer = culvert().serve(&config(&port, &tls, &json!({}))).await?;
        peer.log()
            .line(|line| line.contains("ERROR") && line.contains("no certificate for a.acme.test: "))
            .await?;
        place.folder.write("root.crt", &place.certificate.certificate)?;
        ensure!(!place.serves(&port, NAME, &origin).await?, "something is served");
        peer.log().line(|line| line.contains("no certificate for a.acme.test yet: ")).await?;
        let _authority = place.start(LONG, json!({})).await?;
        place.save_root().await?;
        obtained(&peer).await?;
        ensure!(place.serves(&port, NAME, &origin).await?, "the certificate is not served");
        Ok(())
    });
}

/// With certificates for a quarter of a minute. When the first one is over, another is served, and so on, also when the
/// authority has forgotten the account.
#[test]
fn certificates_are_renewed_in_time() {
    run(async {
        const SHORT: u32 = 15;
        let Some(place) = Place::find()? else { return Ok(()) };
        let authority = place.start(SHORT, json!({})).await?;
        let (port, origin) = (Port::reserve()?, HttpOrigin::start().await?);
        let peer = is_obtained(&place, &place.provider(), &port).await?;
        let renewed = async || {
            let seen = peer.log().count();
            peer.log().line_after(seen, |line| line.contains("certificate for a.acme.test obtained")).await
        };
        renewed().await?;
        // Longer than what is left of the first one.
        tokio::time::sleep(Duration::from_secs(SHORT.into()) / 2).await;
        ensure!(place.serves(&port, NAME, &origin).await?, "the new certificate is not served");
        drop(authority);
        let _authority = place.start(LONG, json!({})).await?;
        place.save_root().await?;
        renewed().await?;
        ensure!(
            place.serves(&port, NAME, &origin).await?,
            "the certificate of the new authority is not served"
        );
        Ok(())
    });
}

#[test]
fn an_external_account_is_bound() {
    run(async {
        const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
        let Some(place) = Place::find()? else { return Ok(()) };
        let required =
            json!({ "externalAccountBindingRequired": true, "externalAccountMACKeys": { "kid-1": KEY } });
        let _authority = place.start(LONG, required).await?;
        let port = Port::reserve()?;
        // Without one the authority's words are to be read.
        let tls = json!({ "certificate_provider": place.provider() });
        let peer = culvert().serve(&config(&port, &tls, &json!({}))).await?;
        peer.log()
            .line(|line| line.contains("the authority says: ") && line.contains("(externalAccountRequired)"))
            .await?;
        drop(peer);
        let account = json!({ "external_account": { "key_id": "kid-1", "mac_key": KEY } });
        is_obtained(&place, &place.provider_with(account), &port).await?;
        Ok(())
    });
}

/// What the authority says about a proof that it did not find is shown.
#[test]
fn a_proof_that_is_not_found_is_said_to_be_missing() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let _authority = place.start(LONG, json!({})).await?;
        let elsewhere = Port::reserve()?;
        let provider = place.provider_with(json!({
            "disable_tls_alpn_challenge": true, "alternative_http_port": elsewhere.number(),
        }));
        let tls = json!({ "certificate_provider": provider });
        let peer = culvert().serve(&config(&Port::reserve()?, &tls, &json!({}))).await?;
        let line =
            peer.log().line(|line| line.contains("ERROR") && line.contains("a.acme.test: http-01: ")).await?;
        ensure!(line.contains("connection refused") && line.contains("trying again in 1"), "{line}");
        Ok(())
    });
}

/// The old options inside `tls`, whose requests go by the program's own ways: here the certificate store.
#[test]
fn the_old_form_works() {
    run(async {
        let Some(place) = Place::find()? else { return Ok(()) };
        let _authority = place.start(LONG, json!({})).await?;
        place.save_root().await?;
        let mut acme = place.provider();
        for key in ["type", "http_client"] {
            acme.as_object_mut().ok_or("no object")?.remove(key);
        }
        let (port, origin) = (Port::reserve()?, HttpOrigin::start().await?);
        let store = json!({ "certificate": { "certificate": place.certificate.certificate } });
        let peer = culvert().serve(&config(&port, &json!({ "acme": acme }), &store)).await?;
        obtained(&peer).await?;
        ensure!(place.serves(&port, NAME, &origin).await?, "the certificate is not served");
        Ok(())
    });
}

/// Asks again and again, for a while.
async fn until(condition: impl AsyncFn() -> Result<bool>) -> Result {
    let asking = async {
        while !condition().await? {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, asking).await.map_err(|_| "it does not come true")?
}
