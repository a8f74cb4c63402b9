//! Quantities with units: durations, sizes, bandwidths, firewall marks.

use std::fmt;
use std::time::Duration;

use super::OptionValue;
use super::scalar::decode_integer;
use crate::cx::Cx;
use crate::json::{Node, Value};
use crate::schema::Schema;

/// A duration, written as numbers with the units `ns us µs ms s m h d`. Zero means "not set".
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Dur {
    nanos: i64,
}

/// A duration that may also be written as a number of seconds.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DurOrSeconds(pub Dur);

/// An amount of memory in bytes; output keeps the text of the file.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct MemorySize {
    /// Bytes.
    pub bytes: u64,
    text: String,
}

/// A speed in bytes per second; output keeps the text of the file.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Bandwidth {
    /// Bytes per second.
    pub bytes_per_second: u64,
    text: String,
}

/// A firewall mark (fwmark). Zero means "not set".
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Mark(pub u32);

const NANOS_PER_SECOND: i64 = 1_000_000_000;

impl Dur {
    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self { nanos: seconds.saturating_mul(NANOS_PER_SECOND) }
    }

    /// A duration of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self { nanos: millis.saturating_mul(1_000_000) }
    }

    /// The duration in nanoseconds; negative durations can be written, too.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// The duration if one is set; a negative one counts as no time at all.
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        (self.nanos != 0).then(|| Duration::from_nanos(u64::try_from(self.nanos).unwrap_or(0)))
    }

    /// The duration, or `default` if none is set.
    #[must_use]
    pub fn or(self, default: Duration) -> Duration {
        self.get().unwrap_or(default)
    }

    /// Reads a text such as `1h30m`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (sign, mut rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) if text.starts_with('-') => (-1, rest),
            Some(rest) => (1, rest),
            None => (1, text),
        };
        if rest == "0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(format!("`{text}` is not a duration; write for example `30s` or `1h30m`"));
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, tail) = rest.split_at(number_end);
            let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            total += scaled(number, unit_nanos(unit, text)?)
                .ok_or_else(|| format!("`{text}` is not a duration; write for example `30s` or `1h30m`"))?;
            if total > i128::from(i64::MAX) {
                return Err(format!("duration `{text}` is longer than 292 years"));
            }
            rest = tail;
        }
        let nanos = i64::try_from(sign * total).map_err(|_| format!("duration `{text}` is out of range"))?;
        Ok(Self { nanos })
    }
}

fn unit_nanos(unit: &str, text: &str) -> Result<i128, String> {
    Ok(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" => return Err(format!("duration `{text}` has no unit; write for example `{text}s`")),
        _ => {
            return Err(format!(
                "unknown unit `{unit}` in duration `{text}`; units are ns, us, ms, s, m, h, d, without spaces"
            ));
        }
    })
}

/// `number`, which may have a fraction, times `unit`; what is below one nanosecond is cut off.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || whole.len() > 19 {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(18)];
    let part = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<i128>().ok()? * unit / 10_i128.pow(u32::try_from(fraction.len()).ok()?)
    };
    whole.checked_mul(unit)?.checked_add(part)
}

/// As Go writes it: `1m30s`, `24h0m0s`, `1.5ms`.
impl fmt::Display for Dur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.nanos.unsigned_abs();
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", decimal(nanos, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", decimal(nanos, 1_000_000)),
            _ => {
                let minutes = nanos / 60_000_000_000;
                let (hours, minutes, rest) = (minutes / 60, minutes % 60, nanos % 60_000_000_000);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                write!(f, "{}s", decimal(rest, 1_000_000_000))
            }
        }
    }
}

/// `value / unit` without needless zeros.
fn decimal(value: u64, unit: u64) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", value % unit);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{}{dot}{fraction}", value / unit)
}

impl OptionValue for Dur {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a duration such as \"30s\"", node);
            return;
        };
        match Self::parse(text) {
            Ok(value) => *self = value,
            Err(message) => cx.error(node.place, message),
        }
    }

    fn decode_null(&mut self, node: &Node, cx: &mut Cx<'_>) {
        cx.expected("a duration such as \"30s\"", node);
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.shared("Duration", || {
            Node::object([
                ("type", Node::string("string")),
                (
                    "pattern",
                    Node::string(r"^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d))+)$"),
                ),
            ])
        })
    }
}

impl OptionValue for DurOrSeconds {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if matches!(node.value, Value::Number(_)) {
            let Some(seconds) = decode_integer(node, cx) else { return };
            match i64::try_from(seconds) {
                Ok(seconds) => self.0 = Dur::from_secs(seconds),
                Err(_) => cx.error(node.place, format!("{seconds} seconds are out of range")),
            }
        } else {
            self.0.decode(node, cx);
        }
    }

    fn decode_null(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.0.decode_null(node, cx);
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let duration = self.0.schema(schema);
        Schema::any_of([duration, Schema::integer(0, i64::MAX)])
    }
}

impl MemorySize {
    /// An amount in bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self { bytes, text: String::new() }
    }
}

/// Factor of a memory unit in any letter case: powers of 1024.
fn memory_unit(unit: &str) -> Option<u64> {
    let power = match unit.to_ascii_lowercase().as_str() {
        "b" => 0,
        "k" | "kb" => 1,
        "m" | "mb" => 2,
        "g" | "gb" => 3,
        "t" | "tb" => 4,
        "p" | "pb" => 5,
        "e" | "eb" => 6,
        _ => return None,
    };
    Some(1 << (10 * power))
}

/// Bytes per second of a network unit: a decimal one, else one of the byte units also with an `i`.
fn bandwidth_unit(unit: &str) -> Option<(u64, u64)> {
    let decimal = |power: u32, bits: bool| Some((1000_u64.pow(power), if bits { 8 } else { 1 }));
    match unit {
        "Bps" => decimal(0, false),
        "Kbps" => decimal(1, true),
        "KBps" => decimal(1, false),
        "Mbps" => decimal(2, true),
        "MBps" => decimal(2, false),
        "Gbps" => decimal(3, true),
        "GBps" => decimal(3, false),
        "Tbps" => decimal(4, true),
        "TBps" => decimal(4, false),
        "Pbps" => decimal(5, true),
        "PBps" => decimal(5, false),
        "Ebps" => decimal(6, true),
        "EBps" => decimal(6, false),
        _ => {
            let folded = unit.to_ascii_lowercase();
            let plain = match folded.as_bytes() {
                [size, b'i'] | [size, b'i', b'b'] => char::from(*size).to_string(),
                _ => folded,
            };
            memory_unit(&plain).map(|factor| (factor, 1))
        }
    }
}

/// Reads `64 mb`: a whole number and a unit that `factor` knows as a fraction.
fn sized(text: &str, factor: impl Fn(&str) -> Option<(u64, u64)>) -> Result<u64, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    if number.is_empty() || unit.is_empty() {
        return Err("needs a whole number and a unit");
    }
    let number: u64 = number.parse().map_err(|_| "is out of range")?;
    let (times, divided) = factor(unit).ok_or("has an unknown unit")?;
    let bytes = u128::from(number) * u128::from(times) / u128::from(divided);
    u64::try_from(bytes).map_err(|_| "is out of range")
}

impl OptionValue for MemorySize {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(text) = node.as_str() {
            match sized(text, |unit| memory_unit(unit).map(|factor| (factor, 1))) {
                Ok(bytes) => *self = Self { bytes, text: text.to_owned() },
                Err(why) => {
                    let help =
                        "write a number of bytes, or for example \"64 MB\" (units b, kb, mb, gb, tb, pb, eb)";
                    cx.error(node.place, format!("memory size `{text}` {why}; {help}"));
                }
            }
        } else if matches!(node.value, Value::Number(_)) {
            self.text.clear();
            self.bytes.decode(node, cx);
        } else {
            cx.expected("a memory size", node);
        }
    }

    fn encode(&self) -> Node {
        if self.text.is_empty() { self.bytes.encode() } else { self.text.encode() }
    }

    fn is_zero(&self) -> bool {
        self.bytes == 0
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.shared("MemorySize", || {
            let pattern = r"^[0-9]+ *([bB]|[kKmMgGtTpPeE][bB]?)$";
            let text = Node::object([("type", Node::string("string")), ("pattern", Node::string(pattern))]);
            Schema::any_of([Schema::integer(0, u64::MAX), text])
        })
    }
}

impl Bandwidth {
    /// A speed in bytes per second.
    #[must_use]
    pub const fn from_bytes_per_second(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, text: String::new() }
    }
}

impl OptionValue for Bandwidth {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(text) = node.as_str() {
            match sized(text, bandwidth_unit) {
                Ok(bytes_per_second) => *self = Self { bytes_per_second, text: text.to_owned() },
                Err(why) => {
                    let help = "write for example \"100 Mbps\" (bits) or \"10 MBps\" (bytes), with these letter cases";
                    cx.error(node.place, format!("bandwidth `{text}` {why}; {help}"));
                }
            }
        } else if matches!(node.value, Value::Number(_)) {
            self.text.clear();
            self.bytes_per_second.decode(node, cx);
        } else {
            cx.expected("a bandwidth", node);
        }
    }

    fn encode(&self) -> Node {
        if self.text.is_empty() { self.bytes_per_second.encode() } else { self.text.encode() }
    }

    fn is_zero(&self) -> bool {
        self.bytes_per_second == 0
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.shared("Bandwidth", || Schema::any_of([Schema::integer(0, u64::MAX), Schema::typed("string")]))
    }
}

impl OptionValue for Mark {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            self.0.decode(node, cx);
            return;
        };
        match go_integer(text) {
            Some(value) => match u32::try_from(value) {
                Ok(value) => self.0 = value,
                Err(_) => cx.error(node.place, format!("mark `{text}` does not fit into 32 bits")),
            },
            None => cx.error(
                node.place,
                format!("mark `{text}` is not a number; write for example \"0x1f\" or 31"),
            ),
        }
    }

    fn decode_null(&mut self, node: &Node, cx: &mut Cx<'_>) {
        cx.expected("a mark such as \"0x1f\" or 31", node);
    }

    fn encode(&self) -> Node {
        Node::string(format!("{:#x}", self.0))
    }

    fn is_zero(&self) -> bool {
        self.0 == 0
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::any_of([Schema::integer(0, u32::MAX), Schema::typed("string")])
    }
}

/// A number in the syntax of Go: `0x`, `0o`, `0b`, a plain leading zero for octal, `_` between digits.
fn go_integer(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    let digits = digits.replace('_', "");
    let valid = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    if !valid {
        return None;
    }
    // Too many digits are a number out of range, not a text that is no number.
    Some(u64::from_str_radix(&digits, radix).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_written_as_in_go() {
        for (text, canonical) in [
            ("90s", "1m30s"),
            ("1d", "24h0m0s"),
            ("5m", "5m0s"),
            ("0", "0s"),
            ("1.5h", "1h30m0s"),
            ("-1.5ms", "-1.5ms"),
            ("100us", "100µs"),
            ("1h0.5s", "1h0m0.5s"),
            (".5s", "500ms"),
        ] {
            assert_eq!(Dur::parse(text).map(|dur| dur.to_string()), Ok(canonical.to_owned()), "{text}");
        }
        for text in ["", "5", "5 s", "1w", "s", "1..5s", ".s", "-", "300y", "9999999999999h"] {
            assert!(Dur::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_speeds_use_their_own_units() {
        let memory = |text| sized(text, |unit| memory_unit(unit).map(|factor| (factor, 1)));
        assert_eq!(memory("64 MB"), Ok(64 << 20));
        assert_eq!(memory("1g"), Ok(1 << 30));
        assert!(memory("64MiB").is_err() && memory("64").is_err() && memory("1.5mb").is_err());
        assert_eq!(sized("100 Mbps", bandwidth_unit), Ok(12_500_000));
        assert_eq!(sized("10 MBps", bandwidth_unit), Ok(10_000_000));
        assert_eq!(sized("1 MiB", bandwidth_unit), Ok(1 << 20));
        assert!(sized("100 mbps", bandwidth_unit).is_err());
    }

    #[test]
    fn marks_use_the_number_syntax_of_go() {
        assert_eq!(go_integer("0x1f"), Some(31));
        assert_eq!(go_integer("0b101"), Some(5));
        assert_eq!(go_integer("010"), Some(8));
        assert_eq!(go_integer("123"), Some(123));
        assert_eq!(go_integer("abc"), None);
        assert_eq!(go_integer("0x"), None);
    }
}
