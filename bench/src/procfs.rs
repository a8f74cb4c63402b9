//! What a process has used, read from `/proc`: processor time and memory. Linux only, as is everything measured here.
//!
//! Processor time comes in two precisions. `/proc/PID/stat` covers all threads that ever lived but counts in ticks of
//! 10 ms; `/proc/PID/task/*/schedstat` counts nanoseconds but forgets a thread when it ends. A difference uses the
//! second as long as no thread has gone missing in between.

use std::collections::BTreeMap;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

/// `USER_HZ`, in which the kernel reports times to user space; 100 on every architecture that Rust's std supports.
const TICKS_PER_SECOND: u64 = 100;

/// Processor time of one process at one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct CpuSample {
    ticks: u64,
    /// Nanoseconds on a processor by thread id.
    threads: BTreeMap<u32, u64>,
}

impl CpuSample {
    /// Reads the counters of `pid`; `None` when it is gone.
    pub(crate) fn take(pid: u32) -> Option<Self> {
        let ticks = parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            // A thread may end between the listing and the reading.
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
            if let Some(nanoseconds) = parse_schedstat(&text) {
                threads.insert(thread, nanoseconds);
            }
        }
        Some(Self { ticks, threads })
    }

    /// Processor time spent since `earlier`, a sample of the same process; the default is its birth.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        let complete =
            !self.threads.is_empty() && earlier.threads.keys().all(|id| self.threads.contains_key(id));
        if complete {
            let sum = |threads: &BTreeMap<u32, u64>| threads.values().sum::<u64>();
            Duration::from_nanos(sum(&self.threads).saturating_sub(sum(&earlier.threads)))
        } else {
            ticks(self.ticks.saturating_sub(earlier.ticks))
        }
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * 1000 / TICKS_PER_SECOND)
}

/// `utime + stime` of a `/proc/PID/stat` line. The second field is the program's name in brackets, and may itself hold
/// blanks and brackets.
fn parse_stat(text: &str) -> Option<u64> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let utime: u64 = fields.nth(11)?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    Some(utime + stime)
}

/// Nanoseconds on a processor: the first of the three numbers.
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// How often threads of a process have gone to sleep so far, which is how often they were woken. A thread that has ended no
/// longer counts.
pub(crate) fn wake_ups(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let sleeps = threads.filter_map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    sleeps.sum()
}

/// Processor time that the kernel's `ksoftirqd` threads have used so far. There goes network work that the kernel broke off
/// in a program's own time, so on loopback it belongs to whoever caused it. Zero where they cannot be seen.
pub(crate) fn softirq_threads() -> Duration {
    static THREADS: OnceLock<Vec<u32>> = OnceLock::new();
    let threads = THREADS.get_or_init(|| {
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| {
            is_softirq_thread(&fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default())
        })
        .collect()
    });
    let used = |id: &u32| parse_schedstat(&fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?);
    Duration::from_nanos(threads.iter().filter_map(used).sum())
}

fn is_softirq_thread(name: &str) -> bool {
    name.starts_with("ksoftirqd/")
}

/// What all processors together did until one moment, in ticks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SystemCpu {
    busy: u64,
    all: u64,
}

impl SystemCpu {
    /// All zero where the kernel does not tell.
    pub(crate) fn take() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| parse_system(&text)).unwrap_or_default()
    }

    /// Which part of all processors' time since `earlier` went to others than those that used `ours`, in percent. Time
    /// that a hypervisor took away counts as theirs.
    pub(crate) fn foreign_percent(&self, earlier: &Self, ours: Duration) -> f64 {
        let all = ticks(self.all.saturating_sub(earlier.all));
        let busy = ticks(self.busy.saturating_sub(earlier.busy));
        if all.is_zero() {
            return 0.0;
        }
        busy.saturating_sub(ours).as_secs_f64() / all.as_secs_f64() * 100.0
    }
}

/// The first line: `cpu user nice system idle iowait irq softirq steal ...`, the rest being parts of `user`.
fn parse_system(text: &str) -> Option<SystemCpu> {
    let fields = text.strip_prefix("cpu ")?.lines().next()?.split_ascii_whitespace().take(8);
    let fields: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let all = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some(SystemCpu { busy: all - idle, all })
}

/// Memory of one process at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Memory {
    /// Resident set: what the process occupies.
    pub(crate) resident: u64,
    /// The highest resident set since the process began.
    pub(crate) peak: u64,
    /// Resident pages without a file behind them: heap and stacks.
    pub(crate) anonymous: u64,
}

impl Memory {
    /// Reads `/proc/PID/status`; `None` when the process is gone.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        parse_status(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }
}

fn parse_status(text: &str) -> Option<Memory> {
    Some(Memory {
        resident: kib_field(text, "VmRSS:")?,
        peak: kib_field(text, "VmHWM:")?,
        anonymous: kib_field(text, "RssAnon:")?,
    })
}

/// The value of a `Name:   123 kB` line, in bytes.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ticks: u64, threads: &[(u32, u64)]) -> CpuSample {
        CpuSample { ticks, threads: threads.iter().copied().collect() }
    }

    #[test]
    fn stat_of_a_program_with_brackets_and_blanks_in_its_name() {
        let line = "42 (a) b (c) S 1 42 42 0 -1 4194560 900 0 0 0 123 45 6 7 20 0 9 0 1000 12345 678";
        assert_eq!(parse_stat(line), Some(168));
    }

    #[test]
    fn a_cut_stat_line_is_refused() {
        assert_eq!(parse_stat("42 (name) S 1 42"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn schedstat_takes_the_first_number() {
        assert_eq!(parse_schedstat("5131072 57046 12\n"), Some(5_131_072));
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn difference_counts_nanoseconds_of_old_and_new_threads() {
        let earlier = sample(100, &[(1, 1_000), (2, 2_000)]);
        let later = sample(100, &[(1, 1_500), (2, 2_000), (3, 700)]);
        assert_eq!(later.since(&earlier), Duration::from_nanos(1_200));
    }

    #[test]
    fn difference_falls_back_to_ticks_when_a_thread_ended() {
        let earlier = sample(100, &[(1, 1_000), (2, 9_000_000)]);
        let later = sample(103, &[(1, 1_500)]);
        assert_eq!(later.since(&earlier), Duration::from_millis(30));
    }

    #[test]
    fn foreign_time_is_what_remains_after_ours() {
        let earlier = parse_system("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2").unwrap();
        let later = parse_system("cpu  150 0 130 710 100 0 5 5 0 0\ncpu0 1 2").unwrap();
        // 100 ticks in all, 90 of them busy, 60 of those ours.
        assert_eq!(later.foreign_percent(&earlier, Duration::from_millis(600)), 30.0);
        assert_eq!(later.foreign_percent(&earlier, Duration::from_secs(2)), 0.0);
        assert_eq!(later.foreign_percent(&later, Duration::ZERO), 0.0);
        assert_eq!(parse_system("cpu  1 2"), None);
    }

    #[test]
    fn status_fields_are_bytes() {
        let text = "Name:\tx\nVmPeak:\t   9 kB\nVmHWM:\t    8 kB\nVmRSS:\t    4 kB\nRssAnon:\t    2 kB\n";
        assert_eq!(parse_status(text), Some(Memory { resident: 4096, peak: 8192, anonymous: 2048 }));
    }

    #[test]
    fn only_the_kernels_own_softirq_threads_count() {
        assert!(is_softirq_thread("ksoftirqd/17\n"));
        assert!(!is_softirq_thread("kworker/0:1\n") && !is_softirq_thread(""));
        assert!(softirq_threads() <= softirq_threads());
    }

    #[test]
    fn this_process_uses_something() {
        let own = std::process::id();
        assert!(CpuSample::take(own).is_some());
        assert!(Memory::of(own).unwrap().resident > 0);
        // Other tests' threads may end meanwhile, and then no longer count.
        let woken = || {
            let before = wake_ups(own);
            std::thread::sleep(Duration::from_millis(1));
            wake_ups(own) > before
        };
        assert!((0..1000).any(|_| woken()));
    }
}
