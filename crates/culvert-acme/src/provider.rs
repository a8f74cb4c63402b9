//! The names of one provider, their certificates, and when each is renewed.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use culvert_core::Tag;
use culvert_http::Client;
use culvert_tls::{CertificateSource, OwnCertificate};
use time::OffsetDateTime;
use tracing::{error, info, warn};

use crate::account;
use crate::challenge::Challenges;
use crate::error::AcmeError;
use crate::http::Http;
use crate::order;
use crate::schedule::{back_off, dice, renewal};
use crate::settings::{Name, Settings};
use crate::storage::Storage;

/// How often to look at the clock of the wall, which may be set, while that of the machine may stand still in its sleep.
const LOOK: Duration = Duration::from_secs(3600);
/// How often to look whether somebody else is done with a name.
const OTHERS: Duration = Duration::from_secs(2);
/// How long somebody else may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Certificates by ACME.
pub struct Provider {
    tag: Tag,
    settings: Settings,
    storage: Storage,
    http: Http,
    challenges: Arc<Challenges>,
    places: Mutex<Vec<Place>>,
}

/// One name.
struct Place {
    name: Name,
    certificate: Option<OwnCertificate>,
    /// When to order.
    due: SystemTime,
    /// Failures in a row, and the last one in words.
    failures: u32,
    failure: Option<String>,
}

impl Provider {
    /// A provider with what is on disk. `client` speaks to the authority, and `challenges` are those of the program.
    #[must_use]
    pub fn new(tag: Tag, settings: Settings, client: Client, challenges: Arc<Challenges>) -> Arc<Self> {
        let storage = Storage::new(&settings.data_directory, &settings.authority);
        let places = settings.names.iter().map(|name| Place {
            name: name.clone(),
            certificate: None,
            due: SystemTime::UNIX_EPOCH,
            failures: 0,
            failure: None,
        });
        let places = Mutex::new(places.collect());
        let provider = Arc::new(Self { tag, settings, storage, http: Http::new(client), challenges, places });
        for name in &provider.settings.names {
            provider.take_stored(name);
        }
        provider
    }

    /// Orders and renews, one name after the other, as long as it is polled.
    pub async fn run(self: Arc<Self>) {
        loop {
            let Some((name, due)) = self.next() else { return };
            match due.duration_since(SystemTime::now()) {
                Ok(wait) if !wait.is_zero() => tokio::time::sleep(wait.min(LOOK)).await,
                _ => self.renew(&name).await,
            }
        }
    }

    /// The name that is due first.
    fn next(&self) -> Option<(Name, SystemTime)> {
        let places = self.lock();
        places.iter().min_by_key(|place| place.due).map(|place| (place.name.clone(), place.due))
    }

    async fn renew(&self, name: &Name) {
        let result = self.obtain(name).await;
        let asked = self.http.take_wait();
        let mut places = self.lock();
        let Some(place) = places.iter_mut().find(|place| place.name == *name) else { return };
        match result {
            Ok(()) => (place.failures, place.failure) = (0, None),
            Err(failure) => {
                place.failures = place.failures.saturating_add(1);
                let wait = back_off(place.failures, failure.is_passing(), asked, dice());
                place.due = SystemTime::now() + wait;
                place.failure = Some(failure.to_string());
                let seconds = wait.as_secs();
                error!("{}: no certificate for {name}: {failure}; trying again in {seconds} s", self.owner());
            }
        }
    }

    async fn obtain(&self, name: &Name) -> Result<(), AcmeError> {
        let begun = tokio::time::Instant::now();
        let _lock = loop {
            if let Some(lock) = self.storage.lock(name)? {
                break lock;
            }
            if begun.elapsed() > PATIENCE {
                return Err(AcmeError::Other("somebody else has been ordering it for long".to_owned()));
            }
            tokio::time::sleep(OTHERS).await;
        };
        // Somebody else may have been faster.
        if self.take_stored(name) {
            return Ok(());
        }
        info!("{}: ordering a certificate for {name} from {}", self.owner(), self.settings.authority);
        // What the authority asked for before says nothing about this try.
        self.http.take_wait();
        let (chain, key) = match self.order(name, false).await {
            Err(error) if error.is_about_account() => self.order(name, true).await?,
            result => result?,
        };
        let made = OwnCertificate::from_pem(&chain, &key);
        let made = made.map_err(|error| AcmeError::Other(format!("the authority's certificate: {error}")))?;
        if let Err(failure) = self.storage.keep_certificate(name, &chain, &key, &self.settings.authority) {
            warn!("{}: the certificate for {name} is lost at the next start: {failure}", self.owner());
        }
        let until = day(made.validity().1);
        info!("{}: certificate for {name} obtained, valid until {until}", self.owner());
        if self.take(name, made) <= SystemTime::now() {
            // Not to be ordered again at once, and again.
            let words = "the new certificate is due for renewal already; is the clock right?";
            return Err(AcmeError::Other(words.to_owned()));
        }
        Ok(())
    }

    async fn order(&self, name: &Name, anew: bool) -> Result<(String, String), AcmeError> {
        let account = account::open(&self.settings, &self.storage, &self.http, anew).await?;
        order::obtain(&account, &self.settings, &self.challenges, name).await
    }

    /// Takes what is on disk; true if it need not be renewed yet.
    fn take_stored(&self, name: &Name) -> bool {
        let stored = match self.storage.certificate(name) {
            Ok(Some((chain, key))) => {
                OwnCertificate::from_pem(&chain, &key).map_err(|error| error.to_string())
            }
            Ok(None) => return false,
            Err(error) => Err(error.to_string()),
        };
        match stored {
            Ok(certificate) => self.take(name, certificate) > SystemTime::now(),
            Err(error) => {
                let file = self.storage.certificate_file(name, "crt");
                warn!("{}: {} is not used: {error}", self.owner(), file.display());
                false
            }
        }
    }

    /// Shows this certificate from now on. Returns when it is to be renewed.
    fn take(&self, name: &Name, certificate: OwnCertificate) -> SystemTime {
        let due = renewal(certificate.validity(), dice());
        if let Some(place) = self.lock().iter_mut().find(|place| place.name == *name) {
            (place.certificate, place.due) = (Some(certificate), due);
        }
        due
    }

    fn owner(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| write!(f, "certificate-provider/{}", self.tag))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CertificateSource for Provider {
    fn certificate(&self, name: Option<&str>) -> Result<OwnCertificate, String> {
        let places = self.lock();
        let asked = name.or(self.settings.default_name.as_deref());
        let place = match asked {
            Some(name) => {
                let name = name.to_ascii_lowercase();
                places.iter().find(|place| is_called(&place.name, &name))
            }
            // Who asks for an address cannot say so in TLS.
            None => places.iter().find(|place| matches!(place.name, Name::Ip(_))),
        };
        match place {
            Some(Place { certificate: Some(certificate), .. }) => Ok(certificate.clone()),
            Some(Place { name, failure: Some(failure), .. }) => {
                Err(format!("no certificate for {name} yet: {failure}"))
            }
            Some(Place { name, .. }) => Err(format!("no certificate for {name} yet, it is being ordered")),
            None => {
                let all: Vec<_> = places.iter().map(|place| place.name.to_string()).collect();
                let asked =
                    asked.map_or_else(|| "clients that name nobody".to_owned(), |name| format!("{name:?}"));
                Err(format!("no certificate for {asked}, only for {}", all.join(", ")))
            }
        }
    }

    fn is_proving(&self) -> bool {
        self.challenges.is_proving()
    }

    fn proof(&self, name: &str) -> Option<OwnCertificate> {
        self.challenges.proof(name)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", self.tag)
    }
}

fn is_called(name: &Name, asked: &str) -> bool {
    match name {
        Name::Domain(name) => name == asked,
        Name::Ip(ip) => asked.parse::<IpAddr>().is_ok_and(|asked| asked == *ip),
    }
}

fn day(seconds: i64) -> String {
    match OffsetDateTime::from_unix_timestamp(seconds) {
        Ok(time) => format!(
            "{:04}-{:02}-{:02} {:02}:{:02} UTC",
            time.year(),
            u8::from(time.month()),
            time.day(),
            time.hour(),
            time.minute()
        ),
        Err(_) => "a day beyond all calendars".to_owned(),
    }
}

#[cfg(test)]
mod tests;
