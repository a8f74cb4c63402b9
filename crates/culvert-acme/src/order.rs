//! One order: from a name to a chain and its key.

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, RsaKeySize};
use std::sync::Arc;
use std::time::Duration;

use crate::challenge::{Answer, Challenges, Method};
use crate::error::{AcmeError, words};
use crate::settings::{KeyType, Name, Settings};

/// How long to wait for the authority to look, and then to sign.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(180)).backoff(1.5);

/// Orders a certificate: the chain and the key, both in PEM. Where the authority is not content with one proof, the other
/// is tried.
pub(crate) async fn obtain(
    account: &Account,
    settings: &Settings,
    challenges: &Arc<Challenges>,
    name: &Name,
) -> Result<(String, String), AcmeError> {
    let methods = [(Method::Http, settings.http_port), (Method::Tls, settings.tls_port)];
    let mut failures = Vec::new();
    for (method, port) in methods.into_iter().filter_map(|(method, port)| Some((method, port?))) {
        match obtain_by(account, settings, challenges, name, method, port).await {
            Err(AcmeError::Unproven { method, words }) => failures.push((method, words)),
            result => return result,
        }
    }
    // All of them, as either may be the one that was meant to work.
    let mut all = failures.into_iter();
    let Some((method, mut words)) = all.next() else {
        return Err(AcmeError::Other("no way is left to prove ownership".to_owned()));
    };
    all.for_each(|(method, more)| words.push_str(&format!("; {method}: {more}")));
    Err(AcmeError::Unproven { method, words })
}

async fn obtain_by(
    account: &Account,
    settings: &Settings,
    challenges: &Arc<Challenges>,
    name: &Name,
    method: Method,
    port: u16,
) -> Result<(String, String), AcmeError> {
    let identifiers = [match name {
        Name::Domain(name) => Identifier::Dns(name.clone()),
        Name::Ip(ip) => Identifier::Ip(*ip),
    }];
    let mut new = NewOrder::new(&identifiers);
    if let Some(profile) = &settings.profile {
        new = new.profile(profile);
    }
    let mut order = account.new_order(&new).await?;
    let answers = prove(&mut order, challenges, name, method, port).await?;
    let status = order.poll_ready(&PATIENCE).await;
    let is_left_to_others = answers.iter().any(Answer::is_left_to_others);
    drop(answers);
    let words = match status {
        Ok(OrderStatus::Ready) => return finish(order, settings.key_type, name).await,
        Ok(_) | Err(instant_acme::Error::Api(_)) => verdict(&mut order).await,
        Err(instant_acme::Error::Timeout(_)) => Some("the authority has not looked in time".to_owned()),
        Err(other) => return Err(other.into()),
    };
    let mut words = words.unwrap_or_else(|| "the authority was not content".to_owned());
    if is_left_to_others {
        words.push_str(&format!(
            " (port {port} was in use; an inbound there must use this certificate provider)"
        ));
    }
    Err(AcmeError::Unproven { method: method.name(), words })
}

/// Puts up the answers and tells the authority to look.
async fn prove(
    order: &mut Order,
    challenges: &Arc<Challenges>,
    name: &Name,
    method: Method,
    port: u16,
) -> Result<Vec<Answer>, AcmeError> {
    let mut answers = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Pending {
            // Proven by an earlier order, or lost, which the order will say.
            continue;
        }
        let kind = match method {
            Method::Http => ChallengeType::Http01,
            Method::Tls => ChallengeType::TlsAlpn01,
        };
        let unproven = |words: &str| AcmeError::Unproven { method: method.name(), words: words.to_owned() };
        let challenge = authorization.challenge(kind);
        let mut challenge = challenge.ok_or_else(|| unproven("not offered by the authority"))?;
        let authorization = challenge.key_authorization();
        answers.push(match method {
            Method::Http => challenges.answer_http(port, &challenge.token, authorization.as_str())?,
            Method::Tls => challenges.answer_tls(port, name, authorization.digest().as_ref())?,
        });
        challenge.set_ready().await?;
    }
    Ok(answers)
}

/// What the authority found wrong.
async fn verdict(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.ok()?;
        let state = authorization.refresh().await.ok()?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(words(problem));
        }
    }
    order.state().error.as_ref().map(words)
}

/// Has the certificate signed.
async fn finish(mut order: Order, key_type: KeyType, name: &Name) -> Result<(String, String), AcmeError> {
    let made = tokio::task::spawn_blocking(move || key(key_type)).await;
    let request = |key: &KeyPair| {
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name = DistinguishedName::new();
        params.serialize_request(key)
    };
    let failed = |error: &dyn std::fmt::Display| AcmeError::Other(format!("signing request: {error}"));
    let key = made.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    let request = request(&key).map_err(|error| failed(&error))?;
    order.finalize_csr(request.der()).await?;
    let chain = order.poll_certificate(&PATIENCE).await?;
    Ok((chain, key.serialize_pem()))
}

/// A new key. For RSA this takes a while.
fn key(key_type: KeyType) -> Result<KeyPair, rcgen::Error> {
    match key_type {
        KeyType::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519),
        KeyType::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyType::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyType::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyType::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
    }
}
