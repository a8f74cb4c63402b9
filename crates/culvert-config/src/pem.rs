//! PEM blocks: base64 between `-----BEGIN X-----` and `-----END X-----` (RFC 7468). Text around them is ignored, and
//! so are blocks with damaged content.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// One block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Block {
    /// The words after `BEGIN`, such as `CERTIFICATE`.
    pub(crate) label: String,
    /// The content, usually DER.
    pub(crate) content: Vec<u8>,
}

/// The blocks of a text, in order.
pub(crate) fn blocks(text: &[u8]) -> Vec<Block> {
    let text = String::from_utf8_lossy(text);
    let mut blocks = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|line| line.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let (mut base64, mut closed) = (String::new(), false);
        for line in lines.by_ref() {
            if line == end {
                closed = true;
                break;
            }
            // Headers such as `Proc-Type: 4,ENCRYPTED` are no part of the content.
            if !line.contains(':') {
                base64.push_str(line);
            }
        }
        if let (true, Ok(content)) = (closed, STANDARD.decode(&base64)) {
            blocks.push(Block { label: label.to_owned(), content });
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text() {
        let text =
            b"hello\n-----BEGIN A B-----\nAQI=\n-----END A B-----\n-----BEGIN C-----\n!\n-----END C-----\n";
        assert_eq!(blocks(text), [Block { label: "A B".to_owned(), content: vec![1, 2] }]);
        assert_eq!(blocks(b"-----BEGIN A-----\nAQI=\n"), []);
    }
}
