//! The account with an authority: the stored one, the one of a given key, or a new one.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use bytes::Bytes;
use culvert_config::value::PemSection;
use http::{Request, header};
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, Key, NewAccount};
use serde::Deserialize;

use crate::error::AcmeError;
use crate::http::{Http, LIMITS};
use crate::settings::{ExternalAccount, Settings};
use crate::storage::{AccountFile, Storage};

/// Where ZeroSSL makes external accounts for email addresses.
const ZEROSSL_ACCOUNTS: &str = "https://api.zerossl.com/acme/eab-credentials-email";

/// The account to order with. `anew`: the authority has forgotten the stored one.
pub(crate) async fn open(
    settings: &Settings,
    storage: &Storage,
    http: &Http,
    anew: bool,
) -> Result<Account, AcmeError> {
    let builder = Account::builder_with_http(Box::new(http.clone()));
    let url = settings.authority.clone();
    if let Some(pem) = &settings.account_key {
        // One that exists for this key is found, whoever made it.
        let pkcs8 =
            key_from_pem(&pem.0).map_err(|reason| AcmeError::Other(format!("account_key: {reason}")))?;
        let key = Key::from_pkcs8_der(pkcs8.as_slice().into())?;
        let der = pkcs8.try_into().map_err(|reason| AcmeError::Other(format!("account_key: {reason}")))?;
        return Ok(builder.create_from_key((key, der), url).await?.0);
    }
    let email = settings.email.as_deref();
    if !anew && let Some((account, pem)) = storage.account(email)? {
        let pkcs8 =
            key_from_pem(&pem).map_err(|reason| AcmeError::Other(format!("stored account: {reason}")))?;
        return Ok(builder.from_parts(account.location, pkcs8.as_slice().into(), url).await?);
    }
    let external = external_account(settings, http).await?;
    let contact: Vec<String> = email.iter().map(|email| format!("mailto:{email}")).collect();
    let new = NewAccount {
        contact: &contact.iter().map(String::as_str).collect::<Vec<_>>(),
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = builder.create(&new, url, external.as_ref()).await?;
    let file = AccountFile {
        status: "valid".to_owned(),
        contact,
        terms_of_service_agreed: true,
        location: account.id().to_owned(),
    };
    storage.keep_account(email, &file, &pem(&credentials))?;
    Ok(account)
}

async fn external_account(settings: &Settings, http: &Http) -> Result<Option<ExternalAccountKey>, AcmeError> {
    match &settings.external_account {
        ExternalAccount::None => Ok(None),
        ExternalAccount::Given { key_id, mac_key } => {
            Ok(Some(ExternalAccountKey::new(key_id.clone(), &mac_key.0)))
        }
        ExternalAccount::ZeroSsl => {
            zerossl(settings.email.as_deref().unwrap_or_default(), http).await.map(Some)
        }
    }
}

/// What ZeroSSL answers.
#[derive(Deserialize)]
struct Made {
    #[serde(default)]
    eab_kid: String,
    #[serde(default)]
    eab_hmac_key: String,
}

async fn zerossl(email: &str, http: &Http) -> Result<ExternalAccountKey, AcmeError> {
    let request = Request::post(ZEROSSL_ACCOUNTS)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Bytes::from(format!("email={}", form(email))))
        .map_err(|error| AcmeError::Other(error.to_string()))?;
    let response = http.client().send(request, LIMITS).await;
    let response = response.map_err(|error| instant_acme::Error::Other(Box::new(error)))?;
    let made: Option<Made> = serde_json::from_slice(response.body()).ok();
    let key = made.and_then(|made| {
        let mac = URL_SAFE_NO_PAD.decode(&made.eab_hmac_key).or_else(|_| URL_SAFE.decode(&made.eab_hmac_key));
        Some(ExternalAccountKey::new(made.eab_kid, &mac.ok().filter(|mac| !mac.is_empty())?))
    });
    key.ok_or_else(|| {
        AcmeError::Other(format!("ZeroSSL made no account for {email} ({})", response.status()))
    })
}

/// A text as it stands in a form.
fn form(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// A P-256 key in PKCS #8, from PEM with either of its two forms.
pub(crate) fn key_from_pem(text: &str) -> Result<Vec<u8>, String> {
    let sections = PemSection::all(text);
    let key = sections.iter().find(|section| section.label.ends_with("PRIVATE KEY"));
    let key = key.ok_or("no private key in PEM form found")?;
    let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.content);
    let pair = pair.map_err(|_| "it is no ECDSA key on P-256, the only kind that works here")?;
    let pkcs8 = pair.to_pkcs8v1().map_err(|error| error.to_string())?;
    Ok(pkcs8.as_ref().to_vec())
}

fn pem(credentials: &AccountCredentials) -> String {
    let encoded = STANDARD.encode(credentials.private_key().secret_pkcs8_der());
    let mut pem = "-----BEGIN PRIVATE KEY-----\n".to_owned();
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    pem
}
