//! The known name somebody most likely meant.

/// Most names that are looked at.
const MANY: usize = 1000;

/// A word of so many letters or less is very short.
const SHORT: usize = 3;

/// The name closest to `word`, if any is close enough to be worth mentioning.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(word);
    let has_digits = folded.iter().any(char::is_ascii_digit);
    // A name with numbers in it is seldom meant where another number or another letter stands in a short one.
    let limit = if has_digits && folded.len() < 12 { 1 } else { (folded.len() / 4).max(1) };
    names
        .into_iter()
        .take(MANY)
        .map(|name| (fold(name), name))
        // Of a very short word a letter more or less, or another number, is another word.
        .filter(|(name, _)| folded.len() > SHORT || (name.len() == folded.len() && !has_digits))
        .filter(|(name, _)| !name.is_empty() && name.len().abs_diff(folded.len()) <= limit)
        .map(|(name, original)| (distance(&folded, &name), original))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// A sentence end that proposes the nearest name, or nothing.
pub(crate) fn did_you_mean<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

/// Letter case and the separators `_` and `-` are what people get wrong most, so they cost nothing.
fn fold(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(64).collect()
}

/// How many insertions, deletions, replacements and swaps of neighbours lead from one word to the other.
fn distance(from: &[char], to: &[char]) -> usize {
    let first: Vec<usize> = (0..=to.len()).collect();
    let mut rows = vec![first; from.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for i in 1..=from.len() {
        for j in 1..=to.len() {
            let replace = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_recognised() {
        let names = ["server", "server_name", "server_port", "alpn"];
        assert_eq!(nearest("severname", names), Some("server_name"));
        assert_eq!(nearest("ServerPort", names), Some("server_port"));
        assert_eq!(nearest("serevr", names), Some("server"));
        assert_eq!(nearest("padding", names), None);
    }

    #[test]
    fn other_words_are_not_taken_for_slips() {
        assert_eq!(nearest("1.4", ["1.0", "1.1", "1.2", "1.3"]), None);
        assert_eq!(nearest("ss", ["ssh", "tor"]), None);
        assert_eq!(nearest("aes-256-cbc", ["aes-256-cfb", "aes-256-ctr", "aes-256-gcm"]), None);
        assert_eq!(nearest("aes-256-gmc", ["aes-256-cfb", "aes-256-gcm"]), Some("aes-256-gcm"));
        assert_eq!(nearest("tpc", ["tcp", "udp"]), Some("tcp"));
        assert_eq!(nearest("jq", ["jp", "direct"]), Some("jp"));
    }
}
