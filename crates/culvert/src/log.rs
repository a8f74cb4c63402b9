//! What Culvert says: `tracing` events as lines in sing-box's form, or as JSON lines.
//!
//! ```text
//! INFO[0012] [0000000042 3ms] inbound/mixed[in]: tcp connection from … to … by outbound/direct[out]
//! +0000 2026-11-30 14:26:23 INFO [0000000042 3ms] …                       with `log.timestamp`
//! {"time":"2026-11-30T14:26:23.120Z","level":"info","conn":42,"age_ms":3,"message":"…"}
//! ```
//!
//! One subscriber serves the process from its start; a reload changes its settings in place. Fields of an event other
//! than the message appear in JSON only, except `conn` and `age_ms`, which are the bracket.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use culvert_config::options::log::{LogLevel, LogOptions};
use culvert_os::process::{TAKEN_AT_ONCE, takes_more};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Format {
    /// sing-box's.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Where lines go.
enum Output {
    Stderr,
    Stdout,
    File(File),
}

impl Output {
    fn write(&mut self, bytes: &[u8]) {
        // A log that cannot be written has nowhere to complain.
        let _ = match self {
            Self::Stderr => io::stderr().write_all(bytes),
            Self::Stdout => io::stdout().write_all(bytes),
            Self::File(file) => file.write_all(bytes),
        };
    }

    fn takes_more(&self, patience: Duration) -> bool {
        match self {
            Self::Stderr => takes_more(io::stderr().as_fd(), patience),
            Self::Stdout => takes_more(io::stdout().as_fd(), patience),
            Self::File(file) => takes_more(file.as_fd(), patience),
        }
    }
}

/// How long a line waits for a reader that does not keep up, before lines are dropped until it does.
const PATIENCE: Duration = Duration::from_millis(100);

struct Settings {
    output: Output,
    format: Format,
    timestamp: bool,
    color: bool,
    /// Lines dropped since the last one that was written.
    lost: u64,
}

impl Settings {
    /// Writes what can be written without waiting for long: a terminal that is held, or a pager nobody scrolls, must not
    /// hold up the program.
    fn put(&mut self, line: &str) {
        if self.lost > 0 {
            if !self.output.takes_more(Duration::ZERO) {
                self.lost += 1;
                return;
            }
            let lost = std::mem::take(&mut self.lost);
            self.output
                .write(format!("{lost} lines of the log were dropped, as nobody took them\n").as_bytes());
        }
        for part in line.as_bytes().chunks(TAKEN_AT_ONCE) {
            if !self.output.takes_more(PATIENCE) {
                self.lost += 1;
                return;
            }
            self.output.write(part);
        }
    }
}

struct Logger {
    /// A [`LevelFilter`] as a number: 0 is off, 5 is trace.
    level: AtomicU8,
    /// Set by `log.disabled` once the start is over.
    silent: AtomicBool,
    started: Instant,
    settings: Mutex<Settings>,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

fn logger() -> &'static Logger {
    LOGGER.get_or_init(|| Logger {
        level: AtomicU8::new(number(LevelFilter::INFO)),
        silent: AtomicBool::new(false),
        started: Instant::now(),
        settings: Mutex::new(Settings {
            output: Output::Stderr,
            format: Format::Text,
            timestamp: false,
            color: io::stderr().is_terminal(),
            lost: 0,
        }),
    })
}

/// Makes the logger the process' subscriber. `color` false is `--disable-color`; colours also need a terminal.
pub fn install(format: Format, color: bool) {
    let logger = logger();
    let mut settings = logger.settings.lock().unwrap_or_else(PoisonError::into_inner);
    settings.format = format;
    settings.color &= color && format == Format::Text;
    drop(settings);
    // A second installation, by tests that share a process, finds the same logger in place.
    let _ = tracing::subscriber::set_global_default(Forward);
}

/// Applies the `log` section.
///
/// # Errors
/// The output file cannot be opened.
pub fn configure(options: &LogOptions) -> io::Result<()> {
    let output = match options.output.as_str() {
        "" | "stderr" => Output::Stderr,
        "stdout" => Output::Stdout,
        path => Output::File(open(Path::new(path))?),
    };
    let logger = logger();
    let mut settings = logger.settings.lock().unwrap_or_else(PoisonError::into_inner);
    settings.color &= !matches!(output, Output::File(_));
    settings.output = output;
    settings.timestamp = options.timestamp;
    drop(settings);
    logger.level.store(number(filter(&options.level)), Ordering::Relaxed);
    logger.silent.store(false, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

/// Says nothing more (`log.disabled`).
pub fn silence() {
    logger().silent.store(true, Ordering::Relaxed);
}

/// Writes a last line at level FATAL, which `tracing` does not have. Goes out whatever the level.
pub fn fatal(message: &dyn fmt::Display) {
    logger().write("FATAL", "\x1b[31m", &Fields { message: message.to_string(), ..Fields::default() });
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The config's words. Without one Culvert shows a line per connection, where sing-box shows everything.
fn filter(level: &LogLevel) -> LevelFilter {
    match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Unset | LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn | LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Fatal | LogLevel::Panic => LevelFilter::OFF,
    }
}

fn number(filter: LevelFilter) -> u8 {
    match filter.into_level() {
        None => 0,
        Some(Level::ERROR) => 1,
        Some(Level::WARN) => 2,
        Some(Level::INFO) => 3,
        Some(Level::DEBUG) => 4,
        Some(_) => 5,
    }
}

fn filter_of(number: u8) -> LevelFilter {
    match number {
        0 => LevelFilter::OFF,
        1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

impl Logger {
    fn enabled(&self, level: Level) -> bool {
        filter_of(self.level.load(Ordering::Relaxed)) >= level && !self.silent.load(Ordering::Relaxed)
    }

    fn write(&self, level: &str, color: &str, fields: &Fields) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let line = match settings.format {
            Format::Text => self.text(&settings, level, color, fields),
            Format::Json => json(level, fields),
        };
        settings.put(&line);
    }

    fn text(&self, settings: &Settings, level: &str, color: &str, fields: &Fields) -> String {
        let (on, off) = if settings.color { (color, "\x1b[0m") } else { ("", "") };
        let mut line = String::with_capacity(96 + fields.message.len());
        // Writing to a string cannot fail.
        let _ = if settings.timestamp {
            write!(line, "+0000 {} {on}{level}{off} ", Clock::now().spaced())
        } else {
            write!(line, "{on}{level}{off}[{:04}] ", self.started.elapsed().as_secs())
        };
        if let Some(conn) = fields.conn {
            let _ = match fields.age_ms {
                Some(age) => write!(line, "[{conn:010} {}] ", Age(age)),
                None => write!(line, "[{conn:010}] "),
            };
        }
        for char in fields.message.chars() {
            if deceives(char) { line.extend(char.escape_unicode()) } else { line.push(char) }
        }
        line.push('\n');
        line
    }
}

/// Whether a character makes a terminal show something else than what is written: a line of its own, other colours, the
/// rest of the line backwards. Names that strangers ask for are in the log.
fn deceives(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `3ms`, `1.2s`, `5m12s`, as sing-box shows the age of a connection.
struct Age(u64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms @ ..1_000 => write!(f, "{ms}ms"),
            ms @ 1_000..60_000 => write!(f, "{}.{}s", ms / 1_000, ms % 1_000 / 100),
            ms => write!(f, "{}m{}s", ms / 60_000, ms % 60_000 / 1_000),
        }
    }
}

fn json(level: &str, fields: &Fields) -> String {
    let mut object = serde_json::Map::new();
    object.insert("time".into(), Clock::now().rfc3339().into());
    object.insert("level".into(), level.to_ascii_lowercase().into());
    object.extend(fields.conn.map(|conn| ("conn".into(), conn.into())));
    object.extend(fields.age_ms.map(|age| ("age_ms".into(), age.into())));
    object.insert("message".into(), fields.message.clone().into());
    object.extend(fields.others.iter().cloned());
    let text = serde_json::Value::Object(object).to_string();
    let mut line = String::with_capacity(text.len() + 1);
    for char in text.chars() {
        // Such a character can only stand in a string, where JSON has this for it.
        if deceives(char) {
            let _ = write!(line, "\\u{:04x}", char as u32);
        } else {
            line.push(char);
        }
    }
    line.push('\n');
    line
}

/// A moment in UTC.
struct Clock {
    seconds: u64,
    millis: u32,
}

impl Clock {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs(), millis: since.subsec_millis() }
    }

    /// Year, month, day (the civil calendar from days since 1970, after H. Hinnant's "chrono-compatible low-level
    /// date algorithms").
    fn date(&self) -> (u64, u64, u64) {
        let days = self.seconds / 86_400 + 719_468;
        let era = days / 146_097;
        let day_of_era = days % 146_097;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
    }

    fn time(&self) -> (u64, u64, u64) {
        let seconds = self.seconds % 86_400;
        (seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }

    fn spaced(&self) -> String {
        let ((y, m, d), (h, min, s)) = (self.date(), self.time());
        format!("{y:04}-{m:02}-{d:02} {h:02}:{min:02}:{s:02}")
    }

    fn rfc3339(&self) -> String {
        let ((y, m, d), (h, min, s)) = (self.date(), self.time());
        format!("{y:04}-{m:02}-{d:02}T{h:02}:{min:02}:{s:02}.{:03}Z", self.millis)
    }
}

/// What an event holds.
#[derive(Default)]
struct Fields {
    message: String,
    conn: Option<u64>,
    age_ms: Option<u64>,
    others: Vec<(String, serde_json::Value)>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "conn" => self.conn = Some(value),
            "age_ms" => self.age_ms = Some(value),
            name => self.others.push((name.to_owned(), value.into())),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.others.push((name.to_owned(), value.into())),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name().to_owned(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.others.push((name.to_owned(), format!("{value:?}").into())),
        }
    }
}

/// The process' subscriber. There are no spans: a connection's lines are tied together by its id.
struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries below speak their own dialects; what of theirs matters comes up as an error of ours.
        metadata.is_event() && metadata.target().starts_with("culvert") && logger().enabled(*metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(filter_of(logger().level.load(Ordering::Relaxed)))
    }

    fn event(&self, event: &Event<'_>) {
        let (level, color) = match *event.metadata().level() {
            Level::ERROR => ("ERROR", "\x1b[31m"),
            Level::WARN => ("WARN", "\x1b[33m"),
            Level::INFO => ("INFO", "\x1b[36m"),
            Level::DEBUG => ("DEBUG", "\x1b[37m"),
            Level::TRACE => ("TRACE", "\x1b[90m"),
        };
        if logger().silent.load(Ordering::Relaxed) {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        logger().write(level, color, &fields);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_in_utc() {
        let at = |seconds| Clock { seconds, millis: 7 };
        assert_eq!(at(0).rfc3339(), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_400).spaced(), "2000-02-29 00:00:00");
        assert_eq!(at(1_796_048_783).spaced(), "2026-11-30 14:26:23");
    }

    #[test]
    fn names_cannot_forge_what_a_terminal_shows() {
        let name = "a\u{202e}moc.elgoog\u{9b}31m\n\u{1b}[2J é 🇩🇪";
        let fields = Fields { message: name.into(), ..Fields::default() };
        let settings =
            Settings { output: Output::Stderr, format: Format::Text, timestamp: true, color: false, lost: 0 };
        let line = logger().text(&settings, "INFO", "", &fields);
        assert!(line.ends_with("a\\u{202e}moc.elgoog\\u{9b}31m\\u{a}\\u{1b}[2J é 🇩🇪\n"), "{line}");
        let line = json("INFO", &fields);
        assert!(line.trim_end().chars().all(|char| !deceives(char)), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["message"], name);
    }

    #[test]
    fn ages_read_like_those_of_sing_box() {
        let shown: Vec<_> = [0, 999, 1_250, 312_000].iter().map(|ms| Age(*ms).to_string()).collect();
        assert_eq!(shown, ["0ms", "999ms", "1.2s", "5m12s"]);
    }

    #[test]
    fn a_reader_that_stops_holds_up_nobody() {
        use std::io::Read;
        use std::os::fd::OwnedFd;

        let (mut reader, writer) = io::pipe().unwrap();
        let output = Output::File(File::from(OwnedFd::from(writer)));
        let mut settings = Settings { output, format: Format::Text, timestamp: false, color: false, lost: 0 };
        let (line, start) = (format!("{}\n", "x".repeat(999)), Instant::now());
        (0..3000).for_each(|_| settings.put(&line));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(settings.lost > 1000, "{} lines lost", settings.lost);
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        while !settings.output.takes_more(Duration::from_secs(5)) {}
        settings.put("the last line\n");
        drop(settings);
        let text = reading.join().unwrap().unwrap();
        assert!(text.ends_with("lines of the log were dropped, as nobody took them\nthe last line\n"));
    }

    #[test]
    fn json_lines_are_json() {
        let mut fields = Fields { message: "a \"b\"\n".into(), conn: Some(4), ..Fields::default() };
        fields.others.push(("up".into(), 3.into()));
        let value: serde_json::Value = serde_json::from_str(&json("WARN", &fields)).unwrap();
        assert_eq!(value["message"], "a \"b\"\n");
        assert_eq!((&value["conn"], &value["up"], &value["level"]), (&4.into(), &3.into(), &"warn".into()));
    }
}
