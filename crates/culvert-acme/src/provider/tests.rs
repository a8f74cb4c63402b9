//! What a provider does without an authority; with one, see the end-to-end tests.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, ResolveError, Resolver, Session, Strategy,
};
use culvert_testkit::temp::TempDir;
use culvert_tls::{Store, StoreSettings};
use culvert_wire::{BufChain, Domain};
use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::settings::{ExternalAccount, KeyType};

const AUTHORITY: &str = "https://ca.test/dir";

/// An outbound that reaches nobody, and counts who tries.
struct Down {
    tag: Tag,
    dials: AtomicUsize,
}

#[async_trait]
impl Outbound for Down {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(&self, _session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        Err(DialError::Rejected("test"))
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Rejected("test"))
    }
}

struct Nobody;

#[async_trait]
impl Resolver for Nobody {
    async fn resolve(&self, _name: &Domain, _strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        panic!("names go to the detour")
    }
}

struct Scene {
    folder: TempDir,
    down: Arc<Down>,
}

impl Scene {
    fn new() -> Self {
        let down = Arc::new(Down { tag: Tag::new("down", "d"), dials: AtomicUsize::new(0) });
        Self { folder: TempDir::new().unwrap(), down }
    }

    fn provider(&self, names: &[&str]) -> Arc<Provider> {
        let dialer = Dialer { detour: Some(Arc::clone(&self.down) as _), ..Dialer::new(Arc::new(Nobody)) };
        let store = Store::new(StoreSettings::default());
        let client =
            Client::new(Tag::new("http-client", ""), culvert_http::Settings::default(), dialer, &store)
                .unwrap();
        let name = |text: &&str| text.parse().map_or_else(|_| Name::Domain((*text).to_owned()), Name::Ip);
        let settings = Settings {
            names: names.iter().map(name).collect(),
            data_directory: self.folder.path().to_owned(),
            default_name: None,
            email: None,
            authority: AUTHORITY.to_owned(),
            account_key: None,
            http_port: Some(80),
            tls_port: Some(443),
            external_account: ExternalAccount::None,
            key_type: KeyType::P256,
            profile: None,
        };
        Provider::new(Tag::new("acme", "a"), settings, client, Challenges::new())
    }

    /// Puts a certificate on disk that began so many seconds ago and lasts so many.
    fn store(&self, name: &str, age: i64, life: i64) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = OffsetDateTime::now_utc() - time::Duration::seconds(age);
        params.not_after = params.not_before + time::Duration::seconds(life);
        let made = params.self_signed(&key).unwrap();
        let storage = Storage::new(self.folder.path(), AUTHORITY);
        let name = name.parse().map_or_else(|_| Name::Domain(name.to_owned()), Name::Ip);
        storage.keep_certificate(&name, &made.pem(), &key.serialize_pem(), AUTHORITY).unwrap();
    }
}

fn reason(provider: &Provider, name: Option<&str>) -> String {
    provider.certificate(name).map(drop).unwrap_err()
}

#[tokio::test]
async fn what_is_on_disk_is_used_at_once_and_nobody_is_asked() {
    let scene = Scene::new();
    scene.store("a.test", 100, 1000);
    scene.store("192.0.2.1", 100, 1000);
    let provider = scene.provider(&["a.test", "192.0.2.1"]);
    for name in [Some("a.test"), Some("A.TEST"), None] {
        assert!(provider.certificate(name).is_ok(), "{name:?}");
    }
    let (_, due) = provider.next().unwrap();
    let wait = due.duration_since(SystemTime::now()).unwrap().as_secs();
    assert!((540..570).contains(&wait), "renewal in {wait} s");
    assert_eq!(scene.down.dials.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_is_due_is_renewed_and_shown_until_then() {
    let scene = Scene::new();
    scene.store("a.test", 700, 1000);
    scene.store("b.test", 2000, 1000);
    let provider = scene.provider(&["a.test", "b.test"]);
    assert!(provider.certificate(Some("a.test")).is_ok());
    assert!(provider.next().unwrap().1 <= SystemTime::now());
    // A certificate that is over is better than none for those who do not look.
    assert!(provider.certificate(Some("b.test")).is_ok());
}

#[tokio::test]
async fn reasons_say_which_name_and_why() {
    let scene = Scene::new();
    let provider = scene.provider(&["a.test", "b.test"]);
    assert_eq!(reason(&provider, Some("a.test")), "no certificate for a.test yet, it is being ordered");
    assert_eq!(reason(&provider, Some("c.test")), "no certificate for \"c.test\", only for a.test, b.test");
    assert_eq!(
        reason(&provider, None),
        "no certificate for clients that name nobody, only for a.test, b.test"
    );
    provider.renew(&Name::Domain("a.test".into())).await;
    let failed = reason(&provider, Some("a.test"));
    assert!(
        failed.starts_with("no certificate for a.test yet: ") && failed.contains("rejected by test"),
        "{failed}"
    );
}

#[tokio::test]
async fn failures_put_a_name_off_longer_and_longer() {
    let scene = Scene::new();
    let provider = scene.provider(&["a.test"]);
    for (failures, least) in [(1, 5), (2, 10), (3, 20)] {
        provider.renew(&Name::Domain("a.test".into())).await;
        assert_eq!(scene.down.dials.load(Ordering::Relaxed), failures);
        let wait = provider.next().unwrap().1.duration_since(SystemTime::now()).unwrap();
        assert!(wait.as_secs_f64() > f64::from(least) - 1.0 && wait.as_secs() <= 2 * u64::from(least as u32));
    }
}

#[tokio::test]
async fn what_another_has_obtained_is_taken_over() {
    let scene = Scene::new();
    let provider = scene.provider(&["a.test"]);
    assert!(provider.certificate(Some("a.test")).is_err());
    scene.store("a.test", 0, 1000);
    provider.renew(&Name::Domain("a.test".into())).await;
    assert!(provider.certificate(Some("a.test")).is_ok());
    assert_eq!(scene.down.dials.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn half_a_pair_on_disk_counts_as_none() {
    let scene = Scene::new();
    scene.store("a.test", 0, 1000);
    let key = KeyPair::generate().unwrap().serialize_pem();
    let file =
        Storage::new(scene.folder.path(), AUTHORITY).certificate_file(&Name::Domain("a.test".into()), "key");
    std::fs::write(file, key).unwrap();
    let provider = scene.provider(&["a.test"]);
    assert!(reason(&provider, Some("a.test")).ends_with("it is being ordered"));
    assert!(provider.next().unwrap().1 <= SystemTime::now());
}
