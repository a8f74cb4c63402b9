//! Rule matchers, rule-set formats and sniffers: everything that decides from bytes and facts alone.
//!
//! | module | what it does |
//! |---|---|
//! | [`domain`] | name sets in a succinct trie, keywords, Go-syntax patterns, AdGuard tries |
//! | [`ip`] | prefixes, address sets by range search, the meaning of "private" |
//! | [`rule`] | conditions and how they join, rule-sets and how they merge, explanations |
//! | [`ruleset`] | rule-set files: source JSON, binary `.srs`, AdGuard lists, the `rule-set` commands |
//! | [`sniff`] | what protocol the first bytes speak, and for which host |
//!
//! Nothing here knows sockets, clocks or files: the router hands in [facts](rule::Facts) and bytes, and gets verdicts.
#![forbid(unsafe_code)]

pub mod domain;
pub mod ip;
pub mod rule;
pub mod ruleset;
pub mod sniff;
