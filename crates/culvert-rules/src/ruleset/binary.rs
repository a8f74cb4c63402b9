//! The binary format, `.srs`.
//!
//! ```text
//! "SRS"  version:u8  zlib( count:uvarint  rule* )
//! rule  = 0  item*  255  invert:u8               default; an item is a code and a body, see `read_item`
//!       | 1  mode:u8  count:uvarint  rule*  invert:u8    logical; mode 0 is and, 1 is or
//! ```
//!
//! Numbers are big-endian, counts and lengths LEB128. Source: `RULESET.md` sections 2 to 5. What we write inflates to
//! the very bytes that sing-box writes; the compressed bytes are another compressor's.
//!
//! Stricter than sing-box: the stream's checksum counts, text must be UTF-8, a trie must be sorted, ranges must not run
//! backwards, rules nest 64 deep at most, and a file may inflate to 64 times its size and 16 MiB.
//! An address or range inside `::ffff:0:0/96` is read and written as v4.

use std::{
    io::{self, Read, Write},
    net::IpAddr,
};

use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use thiserror::Error;

use super::{CURRENT_VERSION, RuleSetFile, any_default};
use crate::{
    domain::{AdGuardSet, DomainSet, EmptySuffix, TrieError},
    ip::{IpSet, IpSetBuilder, Prefix},
    rule::{DefaultRule, LogicalRule, Mode, NetworkType, RuleError, RuleOptions, ip_set},
};

const MAGIC: [u8; 3] = *b"SRS";
const MAX_DEPTH: usize = 64;
/// Real sets inflate to ten times their size; beyond this it is an attack.
const MAX_RATIO: usize = 64;
const ALWAYS_ALLOWED: usize = 16 << 20;

/// Why bytes are no binary rule-set.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum BinaryError {
    /// The first bytes are others.
    #[error("invalid sing-box rule-set file")]
    Magic,
    /// Made by a newer program.
    #[error("unsupported version: {0}")]
    Version(u8),
    /// The file ends too early.
    #[error("unexpected EOF")]
    Truncated,
    /// Not a zlib stream, or a damaged one.
    #[error("zlib: {0}")]
    Zlib(String),
    /// Inflates to more than such a file can hold.
    #[error("rule-set expands to more than {0} bytes")]
    TooLarge(usize),
    /// The stream ends or errs outside of any rule.
    #[error(transparent)]
    Count(ReadError),
    /// Something in a rule. The path counts from the outermost rule inwards.
    #[error("{}{reason}", rule_path(.path))]
    Rule {
        /// Positions, from 0.
        path: Vec<u64>,
        /// What is wrong.
        reason: ReadError,
    },
}

fn rule_path(path: &[u64]) -> String {
    let place = |(depth, index): (usize, &u64)| match depth {
        0 => format!("read rule[{index}]: "),
        _ => format!("read logical rule [{index}]: "),
    };
    path.iter().enumerate().map(place).collect()
}

/// What can be wrong with the bytes of a rule.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum ReadError {
    /// Bytes are missing.
    #[error("unexpected EOF")]
    Truncated,
    /// A number of more than 64 bits.
    #[error("number overflows 64 bits")]
    Overflow,
    /// Neither default nor logical.
    #[error("unknown rule type: {0}")]
    RuleType(u8),
    /// Neither and nor or.
    #[error("unknown logical mode: {0}")]
    Mode(u8),
    /// An item of a newer program; its length is unknown.
    #[error("unknown rule item type: {code}, last type: {last}")]
    ItemType {
        /// Its code.
        code: u8,
        /// The code before it.
        last: u8,
    },
    /// A string that is not UTF-8.
    #[error("item {0} holds text that is not UTF-8")]
    Text(u8),
    /// A domain trie.
    #[error(transparent)]
    Trie(#[from] TrieError),
    /// An address that is neither v4 nor v6, a range that runs backwards, a prefix that is too long, a network type
    /// without a name.
    #[error("invalid {0}")]
    Value(&'static str),
    /// More than 64 levels.
    #[error("rules nest too deeply")]
    Depth,
}

/// Why a rule-set cannot be written as binary.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum WriteError {
    /// An item that the version does not have.
    #[error("`{item}` rule item is only supported in version {version} or later")]
    Version {
        /// Its key.
        item: &'static str,
        /// The version that has it.
        version: u8,
    },
    /// An address that is none.
    #[error(transparent)]
    Address(RuleError),
    /// An empty suffix.
    #[error(transparent)]
    Suffix(#[from] EmptySuffix),
}

/// Reads a binary file. Allocates no more than the inflated data and what it says takes.
///
/// # Errors
/// When the bytes are damaged, cut or from a newer program.
pub fn read_binary(data: &[u8]) -> Result<RuleSetFile, BinaryError> {
    read_limited(data, ALWAYS_ALLOWED.saturating_add(data.len().saturating_mul(MAX_RATIO)))
}

fn read_limited(data: &[u8], limit: usize) -> Result<RuleSetFile, BinaryError> {
    let [s, r, s2, version, compressed @ ..] = data else {
        let known = data.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic);
        return Err(if known { BinaryError::Truncated } else { BinaryError::Magic });
    };
    if [*s, *r, *s2] != MAGIC {
        return Err(BinaryError::Magic);
    }
    if *version > CURRENT_VERSION {
        return Err(BinaryError::Version(*version));
    }
    let payload = inflate(compressed, limit)?;
    let mut reader = Bytes(&payload);
    let mut path = Vec::new();
    let rules = reader.rules(&mut path);
    let rules = rules.map_err(|reason| match path.is_empty() {
        true => BinaryError::Count(reason),
        false => BinaryError::Rule { path, reason },
    })?;
    Ok(RuleSetFile { version: *version, rules })
}

fn inflate(compressed: &[u8], limit: usize) -> Result<Vec<u8>, BinaryError> {
    let mut payload = Vec::new();
    let mut limited = ZlibDecoder::new(compressed).take(limit as u64 + 1);
    limited.read_to_end(&mut payload).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BinaryError::Truncated,
        _ => BinaryError::Zlib(error.to_string()),
    })?;
    if payload.len() > limit { Err(BinaryError::TooLarge(limit)) } else { Ok(payload) }
}

/// Writes a binary file of exactly this version.
///
/// # Errors
/// When an item is not in that version, or a value means nothing.
pub fn write_binary(file: &RuleSetFile) -> Result<Vec<u8>, WriteError> {
    let mut payload = Writer { out: Vec::new(), version: file.version };
    payload.uvarint(file.rules.len());
    for rule in &file.rules {
        payload.rule(rule)?;
    }
    let mut header = MAGIC.to_vec();
    header.push(file.version);
    let mut encoder = ZlibEncoder::new(header, Compression::best());
    let written = encoder.write_all(&payload.out).and_then(|()| encoder.finish());
    Ok(written.expect("writing to memory does not fail"))
}

/// The oldest version that holds the rules, but never 1 unless the file says so.
pub(super) fn lowest_version(file: &RuleSetFile) -> u8 {
    let has = |condition: &dyn Fn(&DefaultRule) -> bool| any_default(&file.rules, condition);
    let mut version = file.version;
    if version == 5 && !has(&|rule| !rule.package_name_regex.is_empty()) {
        version = 4;
    }
    let addresses = |rule: &DefaultRule| {
        !rule.network_interface_address.is_empty() || !rule.default_interface_address.is_empty()
    };
    if version == 4 && !has(&addresses) {
        version = 3;
    }
    let networks = |rule: &DefaultRule| {
        !rule.network_type.is_empty() || rule.network_is_expensive || rule.network_is_constrained
    };
    if version == 3 && !has(&networks) {
        version = 2;
    }
    version
}

/// Unread payload.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ReadError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ReadError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, ReadError> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, ReadError> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    fn u64(&mut self) -> Result<u64, ReadError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_be_bytes(bytes))
    }

    fn uvarint(&mut self) -> Result<u64, ReadError> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ReadError::Overflow)
    }

    /// Reads `count` things of at least `size` bytes each. The list grows with what is really there.
    fn list<T>(
        &mut self,
        count: u64,
        size: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, ReadError>,
    ) -> Result<Vec<T>, ReadError> {
        let possible = self.0.len() / size;
        let count =
            usize::try_from(count).ok().filter(|count| *count <= possible).ok_or(ReadError::Truncated)?;
        let mut list = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            list.push(read(self)?);
        }
        list.shrink_to_fit();
        Ok(list)
    }

    fn counted<T>(
        &mut self,
        size: usize,
        read: impl FnMut(&mut Self) -> Result<T, ReadError>,
    ) -> Result<Vec<T>, ReadError> {
        let count = self.uvarint()?;
        self.list(count, size, read)
    }

    fn texts(&mut self, code: u8) -> Result<Vec<String>, ReadError> {
        self.counted(1, |this| {
            let len = usize::try_from(this.uvarint()?).map_err(|_| ReadError::Truncated)?;
            let text = std::str::from_utf8(this.take(len)?).map_err(|_| ReadError::Text(code))?;
            Ok(text.to_owned())
        })
    }

    fn rules(&mut self, path: &mut Vec<u64>) -> Result<Vec<RuleOptions>, ReadError> {
        let count = self.uvarint()?;
        let mut index = 0;
        self.list(count, 3, |this| {
            if path.len() == MAX_DEPTH {
                return Err(ReadError::Depth);
            }
            path.push(index);
            index += 1;
            let rule = this.rule(path)?;
            // Stays in place when there is an error: it says where.
            path.pop();
            Ok(rule)
        })
    }

    fn rule(&mut self, path: &mut Vec<u64>) -> Result<RuleOptions, ReadError> {
        match self.u8()? {
            0 => Ok(RuleOptions::Default(self.default_rule()?)),
            1 => {
                let mode = match self.u8()? {
                    0 => Mode::And,
                    1 => Mode::Or,
                    other => return Err(ReadError::Mode(other)),
                };
                let rules = self.rules(path)?;
                Ok(LogicalRule { mode, rules, invert: self.u8()? != 0 }.into())
            }
            other => Err(ReadError::RuleType(other)),
        }
    }

    fn default_rule(&mut self) -> Result<Box<DefaultRule>, ReadError> {
        let mut rule = Box::new(DefaultRule::default());
        let mut last = 0;
        loop {
            let code = self.u8()?;
            if code == code::END {
                rule.invert = self.u8()? != 0;
                return Ok(rule);
            }
            self.item(code, last, &mut rule)?;
            last = code;
        }
    }

    fn item(&mut self, code: u8, last: u8, rule: &mut DefaultRule) -> Result<(), ReadError> {
        match code {
            code::QUERY_TYPE => rule.query_type = self.counted(2, Self::u16)?,
            code::NETWORK => rule.network = self.texts(code)?,
            code::DOMAIN => {
                let (leaves, edges, labels) = self.trie()?;
                rule.domain_set = Some(DomainSet::from_parts(leaves, edges, labels)?);
            }
            code::DOMAIN_KEYWORD => rule.domain_keyword = self.texts(code)?,
            code::DOMAIN_REGEX => rule.domain_regex = self.texts(code)?,
            code::SOURCE_IP_CIDR => rule.source_ip_set = Some(self.ip_set()?),
            code::IP_CIDR => rule.ip_set = Some(self.ip_set()?),
            code::SOURCE_PORT => rule.source_port = self.counted(2, Self::u16)?,
            code::SOURCE_PORT_RANGE => rule.source_port_range = self.texts(code)?,
            code::PORT => rule.port = self.counted(2, Self::u16)?,
            code::PORT_RANGE => rule.port_range = self.texts(code)?,
            code::PROCESS_NAME => rule.process_name = self.texts(code)?,
            code::PROCESS_PATH => rule.process_path = self.texts(code)?,
            code::PROCESS_PATH_REGEX => rule.process_path_regex = self.texts(code)?,
            code::PACKAGE_NAME => rule.package_name = self.texts(code)?,
            code::PACKAGE_NAME_REGEX => rule.package_name_regex = self.texts(code)?,
            code::WIFI_SSID => rule.wifi_ssid = self.texts(code)?,
            code::WIFI_BSSID => rule.wifi_bssid = self.texts(code)?,
            code::ADGUARD_DOMAIN => {
                let (leaves, edges, labels) = self.trie()?;
                rule.adguard_set = Some(AdGuardSet::from_parts(leaves, edges, labels)?);
            }
            code::NETWORK_TYPE => rule.network_type = self.counted(1, Self::network_type)?,
            code::NETWORK_IS_EXPENSIVE => rule.network_is_expensive = true,
            code::NETWORK_IS_CONSTRAINED => rule.network_is_constrained = true,
            code::NETWORK_INTERFACE_ADDRESS => {
                rule.network_interface_address =
                    self.counted(2, |this| Ok((this.network_type()?, this.counted(6, Self::prefix)?)))?;
            }
            code::DEFAULT_INTERFACE_ADDRESS => {
                rule.default_interface_address = self.counted(6, Self::prefix)?
            }
            _ => return Err(ReadError::ItemType { code, last }),
        }
        Ok(())
    }

    fn network_type(&mut self) -> Result<NetworkType, ReadError> {
        let number = usize::from(self.u8()?);
        NetworkType::ALL.get(number).copied().ok_or(ReadError::Value("network type"))
    }

    #[allow(clippy::type_complexity)] // the three arrays go straight into a trie
    fn trie(&mut self) -> Result<(Vec<u64>, Vec<u64>, Vec<u8>), ReadError> {
        self.u8()?; // written as 0 and ignored
        let (leaves, edges) = (self.counted(8, Self::u64)?, self.counted(8, Self::u64)?);
        let len = usize::try_from(self.uvarint()?).map_err(|_| ReadError::Truncated)?;
        Ok((leaves, edges, self.take(len)?.to_vec()))
    }

    fn ip_set(&mut self) -> Result<IpSet, ReadError> {
        if self.u8()? != 1 {
            return Err(ReadError::Value("version of an IP set"));
        }
        let count = self.u64()?;
        let mut builder = IpSetBuilder::default();
        self.list(count, 10, |this| {
            let (first, last) = (this.address()?, this.address()?);
            if builder.add_range(first, last) { Ok(()) } else { Err(ReadError::Value("address range")) }
        })?;
        Ok(builder.build())
    }

    fn address(&mut self) -> Result<IpAddr, ReadError> {
        match self.uvarint()? {
            4 => {
                let bytes = self.take(4)?;
                Ok(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            16 => {
                let mut bytes = [0; 16];
                bytes.copy_from_slice(self.take(16)?);
                Ok(IpAddr::from(bytes))
            }
            _ => Err(ReadError::Value("address length")),
        }
    }

    fn prefix(&mut self) -> Result<Prefix, ReadError> {
        let addr = self.address()?;
        Prefix::new(addr, self.u8()?).map_err(|_| ReadError::Value("prefix length"))
    }
}

mod code {
    pub(super) const QUERY_TYPE: u8 = 0;
    pub(super) const NETWORK: u8 = 1;
    pub(super) const DOMAIN: u8 = 2;
    pub(super) const DOMAIN_KEYWORD: u8 = 3;
    pub(super) const DOMAIN_REGEX: u8 = 4;
    pub(super) const SOURCE_IP_CIDR: u8 = 5;
    pub(super) const IP_CIDR: u8 = 6;
    pub(super) const SOURCE_PORT: u8 = 7;
    pub(super) const SOURCE_PORT_RANGE: u8 = 8;
    pub(super) const PORT: u8 = 9;
    pub(super) const PORT_RANGE: u8 = 10;
    pub(super) const PROCESS_NAME: u8 = 11;
    pub(super) const PROCESS_PATH: u8 = 12;
    pub(super) const PACKAGE_NAME: u8 = 13;
    pub(super) const WIFI_SSID: u8 = 14;
    pub(super) const WIFI_BSSID: u8 = 15;
    pub(super) const ADGUARD_DOMAIN: u8 = 16;
    pub(super) const PROCESS_PATH_REGEX: u8 = 17;
    pub(super) const NETWORK_TYPE: u8 = 18;
    pub(super) const NETWORK_IS_EXPENSIVE: u8 = 19;
    pub(super) const NETWORK_IS_CONSTRAINED: u8 = 20;
    pub(super) const NETWORK_INTERFACE_ADDRESS: u8 = 21;
    pub(super) const DEFAULT_INTERFACE_ADDRESS: u8 = 22;
    pub(super) const PACKAGE_NAME_REGEX: u8 = 23;
    pub(super) const END: u8 = 255;
}

struct Writer {
    out: Vec<u8>,
    version: u8,
}

impl Writer {
    fn uvarint(&mut self, value: usize) {
        let mut value = value as u64;
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn rule(&mut self, rule: &RuleOptions) -> Result<(), WriteError> {
        match rule {
            RuleOptions::Default(rule) => self.default_rule(rule),
            RuleOptions::Logical(rule) => {
                self.out.extend([1, u8::from(rule.mode == Mode::Or)]);
                self.uvarint(rule.rules.len());
                rule.rules.iter().try_for_each(|part| self.rule(part))?;
                self.out.push(rule.invert.into());
                Ok(())
            }
        }
    }

    /// The items in the order of sing-box.
    fn default_rule(&mut self, rule: &DefaultRule) -> Result<(), WriteError> {
        self.out.push(0);
        self.numbers(code::QUERY_TYPE, &rule.query_type);
        self.texts(code::NETWORK, &rule.network);
        if !rule.domain.is_empty() || !rule.domain_suffix.is_empty() {
            let set = match self.version {
                1 => DomainSet::new_version_1(&rule.domain, &rule.domain_suffix)?,
                _ => DomainSet::new(&rule.domain, &rule.domain_suffix)?,
            };
            self.trie(code::DOMAIN, set.parts());
        } else if let Some(set) = &rule.domain_set {
            self.trie(code::DOMAIN, set.parts());
        }
        self.texts(code::DOMAIN_KEYWORD, &rule.domain_keyword);
        self.texts(code::DOMAIN_REGEX, &rule.domain_regex);
        let source = (&*rule.source_ip_cidr, &rule.source_ip_set);
        self.ip_set(code::SOURCE_IP_CIDR, "source_ip_cidr", source)?;
        self.ip_set(code::IP_CIDR, "ipcidr", (&rule.ip_cidr, &rule.ip_set))?;
        self.numbers(code::SOURCE_PORT, &rule.source_port);
        self.texts(code::SOURCE_PORT_RANGE, &rule.source_port_range);
        self.numbers(code::PORT, &rule.port);
        self.texts(code::PORT_RANGE, &rule.port_range);
        self.texts(code::PROCESS_NAME, &rule.process_name);
        self.texts(code::PROCESS_PATH, &rule.process_path);
        self.texts(code::PROCESS_PATH_REGEX, &rule.process_path_regex);
        self.texts(code::PACKAGE_NAME, &rule.package_name);
        if !rule.package_name_regex.is_empty() {
            self.needs(5, "package_name_regex")?;
            self.texts(code::PACKAGE_NAME_REGEX, &rule.package_name_regex);
        }
        self.network_items(rule)?;
        self.texts(code::WIFI_SSID, &rule.wifi_ssid);
        self.texts(code::WIFI_BSSID, &rule.wifi_bssid);
        if !rule.adguard_domain.is_empty() {
            self.trie(code::ADGUARD_DOMAIN, AdGuardSet::new(&rule.adguard_domain).parts());
        } else if let Some(set) = &rule.adguard_set {
            self.trie(code::ADGUARD_DOMAIN, set.parts());
        }
        self.out.extend([code::END, rule.invert.into()]);
        Ok(())
    }

    fn network_items(&mut self, rule: &DefaultRule) -> Result<(), WriteError> {
        if !rule.network_type.is_empty() {
            self.needs(3, "network_type")?;
            self.out.push(code::NETWORK_TYPE);
            self.uvarint(rule.network_type.len());
            self.out.extend(rule.network_type.iter().map(|kind| *kind as u8));
        }
        if rule.network_is_expensive {
            self.needs(3, "network_is_expensive")?;
            self.out.push(code::NETWORK_IS_EXPENSIVE);
        }
        if rule.network_is_constrained {
            self.needs(3, "network_is_constrained")?;
            self.out.push(code::NETWORK_IS_CONSTRAINED);
        }
        if !rule.network_interface_address.is_empty() {
            self.needs(4, "network_interface_address")?;
            self.out.push(code::NETWORK_INTERFACE_ADDRESS);
            self.uvarint(rule.network_interface_address.len());
            for (kind, prefixes) in &rule.network_interface_address {
                self.out.push(*kind as u8);
                self.prefixes(prefixes);
            }
        }
        if !rule.default_interface_address.is_empty() {
            self.needs(4, "default_interface_address")?;
            self.out.push(code::DEFAULT_INTERFACE_ADDRESS);
            self.prefixes(&rule.default_interface_address);
        }
        Ok(())
    }

    fn needs(&self, version: u8, item: &'static str) -> Result<(), WriteError> {
        if self.version < version { Err(WriteError::Version { item, version }) } else { Ok(()) }
    }

    fn numbers(&mut self, code: u8, list: &[u16]) {
        if !list.is_empty() {
            self.out.push(code);
            self.uvarint(list.len());
            self.out.extend(list.iter().flat_map(|number| number.to_be_bytes()));
        }
    }

    fn texts(&mut self, code: u8, list: &[String]) {
        if !list.is_empty() {
            self.out.push(code);
            self.uvarint(list.len());
            for text in list {
                self.uvarint(text.len());
                self.out.extend(text.as_bytes());
            }
        }
    }

    fn trie(&mut self, code: u8, (leaves, edges, labels): (&[u64], &[u64], &[u8])) {
        self.out.extend([code, 0]);
        for words in [leaves, edges] {
            self.uvarint(words.len());
            self.out.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        }
        self.uvarint(labels.len());
        self.out.extend(labels);
    }

    fn ip_set(
        &mut self,
        code: u8,
        field: &'static str,
        (list, set): (&[String], &Option<IpSet>),
    ) -> Result<(), WriteError> {
        let listed;
        let set = if !list.is_empty() {
            listed = ip_set(field, list).map_err(WriteError::Address)?;
            &listed
        } else if let Some(set) = set {
            set
        } else {
            return Ok(());
        };
        self.out.extend([code, 1]);
        self.out.extend((set.ranges().count() as u64).to_be_bytes());
        for (first, last) in set.ranges() {
            self.address(first);
            self.address(last);
        }
        Ok(())
    }

    fn address(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(addr) => {
                self.out.push(4);
                self.out.extend(addr.octets());
            }
            IpAddr::V6(addr) => {
                self.out.push(16);
                self.out.extend(addr.octets());
            }
        }
    }

    fn prefixes(&mut self, prefixes: &[Prefix]) {
        self.uvarint(prefixes.len());
        for prefix in prefixes {
            self.address(prefix.addr());
            self.out.push(prefix.bits());
        }
    }
}

/// As a file, and as a payload of its own (so that a fuzzer need not learn zlib): what is read can be written, and what
/// is written reads the same.
#[doc(hidden)]
pub fn fuzz_srs(data: &[u8]) {
    const LIMIT: usize = 1 << 20;
    let file = read_limited(data, LIMIT);
    let rules = Bytes(data).rules(&mut Vec::new());
    let payload = rules.ok().map(|rules| RuleSetFile { version: CURRENT_VERSION, rules });
    for file in file.into_iter().chain(payload) {
        let written = write_binary(&RuleSetFile { version: CURRENT_VERSION, ..file.clone() });
        let written = written.expect("compiled sets and the newest version leave nothing to refuse");
        assert_eq!(read_binary(&written).expect("what was written is readable").rules, file.rules);
    }
}
