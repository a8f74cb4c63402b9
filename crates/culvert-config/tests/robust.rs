//! No input makes the crate panic, and mistakes never make it slow.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::LazyLock;

use culvert_config::{Files, Source, format, load_with, merge_with};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _path: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn try_all(bytes: &[u8]) {
    let sources =
        [Source::new("a.json", bytes), Source::new("b.json", b"{\"outbounds\": [{\"type\": \"direct\"}]}")];
    for sources in [&sources[..1], &sources[..]] {
        if let Err(errors) = load_with(sources, &NoFiles) {
            assert!(errors.has_errors() && !errors.to_string().is_empty());
        }
        let _ = merge_with(sources, &NoFiles);
    }
    if let Ok(text) = format(&sources[0]) {
        let again = Source::new("a.json", text.as_bytes());
        assert_eq!(format(&again).as_deref(), Ok(text.as_str()), "formatting twice differs");
    }
}

static CORPUS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut texts = Vec::new();
    for directory in ["valid", "valid-notag", "legacy", "invalid"] {
        for entry in fs::read_dir(root.join(directory)).expect("the corpus is there") {
            let path = entry.expect("a readable entry").path();
            if path.extension().is_some_and(|extension| extension == "json") {
                texts.push(fs::read(path).expect("a readable file"));
            }
        }
    }
    texts.sort();
    texts
});

/// One change to a text: some bytes of it give way to others.
fn change() -> impl Strategy<Value = (Index, usize, Vec<u8>)> {
    let token = prop_oneof![
        vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            "null",
            "true",
            "-1",
            "1e400",
            "\"\"",
            "[]",
            "{}",
            "\"type\": ",
            "[null]",
            ",",
            "\"",
            "/*",
            "//",
            "\\u",
            "{\"type\":\"logical\"}",
            "\"1.2.3.4/99\"",
            "\"0\"",
            "99999999999999999999",
            "\"local\"",
        ])
        .prop_map(|token| token.as_bytes().to_vec()),
    ];
    (any::<Index>(), 0..12_usize, token)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        try_all(&bytes);
    }

    #[test]
    fn changed_files_never_panic(file in any::<Index>(), changes in vec(change(), 1..6)) {
        let mut text = file.get(&CORPUS).clone();
        for (at, length, replacement) in changes {
            let at = at.index(text.len() + 1);
            let end = (at + length).min(text.len());
            text.splice(at..end, replacement);
        }
        try_all(&text);
    }
}

#[test]
fn many_mistakes_on_one_line_are_told_in_time() {
    let rules = vec!["{\"domian\": 1}"; 20_000].join(",");
    let text = std::format!("{{\"route\": {{\"rules\": [{rules}]}}}}");
    let start = std::time::Instant::now();
    let errors =
        load_with(&[Source::new("a.json", text.as_bytes())], &NoFiles).expect_err("every rule is wrong");
    assert!(errors.len() < 1_000);
    assert!(
        errors.to_string().ends_with("and 19800 more"),
        "{}",
        errors.to_string().lines().last().unwrap_or_default()
    );
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}

#[test]
fn many_mistakes_of_any_kind_are_told_in_time() {
    let join = |item: &dyn Fn(usize) -> String| (0..20_000).map(item).collect::<Vec<_>>().join(",");
    let outbounds = join(&|number| std::format!("{{\"type\": \"direct\", \"tag\": \"tag-{number}\"}}"));
    let lost = join(&|number| std::format!("{{\"port\": 1, \"outbound\": \"lost-{number}\"}}"));
    let cases = [
        std::format!("{{\"outbounds\": [{outbounds}], \"route\": {{\"rules\": [{lost}]}}}}"),
        std::format!("{{\"outbounds\": [{}]}}", join(&|_| "{\"type\": \"dirct\"}".to_owned())),
        std::format!(
            "{{\"outbounds\": [{{\"type\": \"direct\", {}}}]}}",
            join(&|n| std::format!("\"k{n}\": 1"))
        ),
        std::format!("{{\"log\": {{{}}}}}", join(&|_| "\"level\": \"x\"".to_owned())),
    ];
    for text in &cases {
        let start = std::time::Instant::now();
        let findings = match load_with(&[Source::new("a.json", text.as_bytes())], &NoFiles) {
            Ok(loaded) => loaded.warnings,
            Err(errors) => errors,
        };
        assert!(!findings.is_empty() && findings.len() < 1_000);
        assert!(start.elapsed().as_secs() < 30, "{:?} for {}", start.elapsed(), &text[..40]);
    }
}
