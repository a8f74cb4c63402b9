use std::time::SystemTime;

use culvert_dns::RecordType;
use culvert_dns::server::fakeip::{FakeAddresses, FakeRange};
use culvert_testkit::temp::TempDir;
use culvert_wire::Domain;
use proptest::prelude::*;

use super::*;

fn saved(content: &[u8]) -> SavedRuleSet {
    let fetched = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    SavedRuleSet {
        url: "https://a.test/s.srs".into(),
        etag: "\"1\"".into(),
        last_modified: String::new(),
        fetched,
        content: content.to_vec(),
    }
}

fn range(text: &str) -> FakeRange {
    let (ip, prefix) = text.split_once('/').unwrap();
    FakeRange::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

fn fakes(file: &Arc<CacheFile>, inet4: &str) -> FakeAddresses {
    let addresses = FakeAddresses::new(Some(range(inet4)), Some(range("fc00::/64")));
    addresses.keep_in(Arc::clone(file) as _);
    addresses
}

fn give(addresses: &FakeAddresses, name: &str) -> String {
    addresses.address(&Domain::new(name).unwrap(), RecordType::A).unwrap().to_string()
}

#[test]
fn what_was_kept_is_there_again() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cache.db");
    let file = CacheFile::open(&path, "").unwrap();
    assert_eq!((file.selected("g"), file.mode(), file.rule_set("s")), (None, None, None));
    for member in ["a", "b"] {
        file.set_selected("g", member);
    }
    file.set_mode("Global");
    file.set_rule_set("s", &saved(b"content"));
    drop(file);
    let file = CacheFile::open(&path, "").unwrap();
    assert_eq!(file.selected("g").as_deref(), Some("b"));
    assert_eq!(file.mode().as_deref(), Some("Global"));
    assert_eq!(file.rule_set("s"), Some(saved(b"content")));
    assert_eq!(file.selected("other"), None);
    drop(file);
    let other = CacheFile::open(&path, "other").unwrap();
    assert_eq!((other.selected("g"), other.mode(), other.rule_set("s")), (None, None, None));
}

#[test]
fn fake_addresses_go_on_where_they_ended() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cache.db");
    let file = CacheFile::open(&path, "").unwrap();
    let first = fakes(&file, "198.18.0.0/15");
    assert_eq!((give(&first, "a.test"), give(&first, "b.test")), ("198.18.0.2".into(), "198.18.0.3".into()));
    first.address(&Domain::new("six.test").unwrap(), RecordType::AAAA);
    drop((first, file));
    let file = CacheFile::open(&path, "").unwrap();
    let second = fakes(&file, "198.18.0.0/15");
    assert_eq!(second.name("198.18.0.2".parse().unwrap()).unwrap().as_str(), "a.test");
    assert_eq!(second.name("fc00::2".parse().unwrap()).unwrap().as_str(), "six.test");
    assert_eq!(
        (give(&second, "c.test"), give(&second, "b.test")),
        ("198.18.0.4".into(), "198.18.0.3".into())
    );
    drop((second, file));
    let file = CacheFile::open(&path, "").unwrap();
    let third = fakes(&file, "198.19.0.0/16");
    assert_eq!(third.name("198.18.0.2".parse().unwrap()), None);
    assert_eq!(give(&third, "c.test"), "198.19.0.2");
    drop((third, file));
    let file = CacheFile::open(&path, "").unwrap();
    assert_eq!(
        fakes(&file, "198.18.0.0/15").name("198.18.0.2".parse().unwrap()),
        None,
        "the ranges were others"
    );
}

/// What a program leaves behind that is killed at this moment.
fn killed(directory: &TempDir, name: &str) -> PathBuf {
    let copy = directory.path().join(name);
    std::fs::copy(directory.path().join("cache.db"), &copy).unwrap();
    let journal = |name: &str| directory.path().join(format!("{name}.journal"));
    std::fs::copy(journal("cache.db"), journal(name)).unwrap();
    copy
}

#[test]
fn an_address_that_was_given_out_survives_a_kill_at_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cache.db");
    let file = CacheFile::open(&path, "").unwrap();
    let first = fakes(&file, "198.18.0.0/15");
    // Nothing is committed while this is held.
    let held = file.shared.database.lock().unwrap();
    for n in 0..100 {
        assert_eq!(give(&first, &format!("n{n}.test")), format!("198.18.0.{}", n + 2));
    }
    file.set_selected("g", "b");
    let copy = killed(&directory, "copy.db");
    drop(held);
    let again = CacheFile::open(&copy, "").unwrap();
    let second = fakes(&again, "198.18.0.0/15");
    for n in 0..100 {
        let ip = format!("198.18.0.{}", n + 2).parse().unwrap();
        assert_eq!(second.name(ip).unwrap().as_str(), format!("n{n}.test"));
    }
    assert_eq!(give(&second, "next.test"), "198.18.0.102");
    assert_eq!(again.selected("g").as_deref(), Some("b"));
    drop((second, again));
    assert!(!directory.path().join("copy.db.journal").exists(), "all of it is in the store");
}

#[test]
fn a_journal_that_was_committed_undoes_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cache.db");
    let file = CacheFile::open(&path, "").unwrap();
    let held = file.shared.database.lock().unwrap();
    file.set_selected("g", "old");
    let old = std::fs::read(directory.path().join("cache.db.journal")).unwrap();
    drop(held);
    drop(file);
    let file = CacheFile::open(&path, "").unwrap();
    file.set_selected("g", "new");
    drop(file);
    // As after a power cut, where the emptied file is full again.
    directory.write("cache.db.journal", &old).unwrap();
    assert_eq!(CacheFile::open(&path, "").unwrap().selected("g").as_deref(), Some("new"));
}

#[test]
fn answers_and_rejections_are_kept() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cache.db");
    let file = CacheFile::open(&path, "").unwrap();
    assert_eq!((file.answers("s"), file.rejected()), (None, vec![]));
    file.set_answers("s", vec![1, 2, 3]);
    file.set_rejected("a", Some(7));
    file.set_rejected("b", Some(8));
    file.set_rejected("a", None);
    drop(file);
    let file = CacheFile::open(&path, "").unwrap();
    assert_eq!((file.answers("s"), file.rejected()), (Some(vec![1, 2, 3]), vec![("b".to_owned(), 8)]));
}

#[test]
fn a_file_in_use_is_told() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cache.db");
    let file = CacheFile::open(&path, "").unwrap();
    assert!(matches!(CacheFile::open(&path, ""), Err(OpenError::Busy(_))));
    file.close();
    file.set_mode("lost");
    let again = CacheFile::open(&path, "").unwrap();
    assert_eq!(again.mode(), None);
}

#[test]
fn where_nothing_can_be_written_is_an_error() {
    let error = CacheFile::open(Path::new("/nonexistent/cache.db"), "").err().unwrap();
    assert_eq!(error.to_string(), "cache file /nonexistent/cache.db");
}

#[test]
fn a_file_of_another_kind_is_put_aside() {
    let directory = TempDir::new().unwrap();
    let foreign = vec![7; 5000];
    let path = directory.write("cache.db", &foreign).unwrap();
    let file = CacheFile::open(&path, "").unwrap();
    file.set_selected("g", "a");
    drop(file);
    assert_eq!(std::fs::read(aside(&path)).unwrap(), foreign);
    assert_eq!(CacheFile::open(&path, "").unwrap().selected("g").as_deref(), Some("a"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn damage_is_found_or_does_no_harm(places in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..4)) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("cache.db");
        let file = CacheFile::open(&path, "").unwrap();
        file.set_selected("g", "member");
        file.set_rule_set("s", &saved(&[5; 9000]));
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        for (place, change) in places {
            let at = place.index(bytes.len());
            bytes[at] ^= change;
        }
        std::fs::write(&path, &bytes).unwrap();
        let file = CacheFile::open(&path, "").unwrap();
        let found = file.selected("g");
        prop_assert!(found.is_none() || found.as_deref() == Some("member"));
        prop_assert!(file.rule_set("s").is_none_or(|found| found == saved(&[5; 9000])));
    }

    #[test]
    fn copies_come_back_and_pieces_of_them_do_not(cut in any::<prop::sample::Index>()) {
        let whole = SavedRuleSet { content: Vec::new(), ..saved(b"") }.encode();
        prop_assert_eq!(SavedRuleSet::decode(&whole), Some(saved(b"")));
        prop_assert_eq!(SavedRuleSet::decode(&whole[..cut.index(whole.len())]), None);
    }
}
