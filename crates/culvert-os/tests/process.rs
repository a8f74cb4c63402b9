//! Settings of a whole process, and so one test in a process of its own.

#![cfg(target_os = "linux")]
// The lint knows test functions, but not what they call.
#![allow(clippy::unwrap_used)]

use culvert_os::process::{
    raise_open_files_limit, release_free_memory, release_program_pages, tune_allocator,
};

/// Resident memory in KiB.
fn resident() -> usize {
    status("VmRSS:")
}

/// A line of the process's status, in KiB.
fn status(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Soft and hard limit of open files.
fn open_files_limits() -> (String, String) {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

#[test]
fn process_is_set_up_and_gives_memory_back() {
    let limit = raise_open_files_limit().unwrap();
    let (soft, hard) = open_files_limits();
    assert_eq!(soft, hard);
    assert_eq!(soft, limit.to_string());
    assert_eq!(raise_open_files_limit().unwrap(), limit, "raising twice changes nothing");

    let before = status("RssFile:");
    release_program_pages();
    assert!(status("RssFile:") < before, "no page of the program went");
    assert_eq!(raise_open_files_limit().unwrap(), limit, "the program runs on");

    assert_eq!(tune_allocator(), cfg!(target_env = "gnu"));
    if !cfg!(target_env = "gnu") {
        return eprintln!("SKIPPED process_is_set_up_and_gives_memory_back: not glibc");
    }
    let mib = |blocks: usize| blocks * 32 / 1024;
    let before = resident();
    // Blocks below the threshold come from the heap; each second one stays, so the heap cannot shrink from its top.
    let mut blocks: Vec<Option<Vec<u8>>> = (0..2000).map(|_| Some(vec![1; 32 * 1024])).collect();
    let full = resident();
    assert!(full - before > (mib(2000) - 4) * 1024);
    for block in blocks.iter_mut().step_by(2) {
        *block = None;
    }
    assert!(full - resident() < 4 * 1024, "holes are kept, which is what there is to release");
    assert!(release_free_memory());
    assert!(full - resident() > (mib(1000) - 8) * 1024, "the pages inside the holes went back");

    // A block above the threshold is mapped, and gone when it is freed, also after a larger one was.
    for size in [8 << 20, 100 * 1024] {
        let before = resident();
        let large: Vec<Vec<u8>> = (0..(8 << 20) / size).map(|_| vec![1; size]).collect();
        assert!(resident() - before > 7 * 1024);
        drop(large);
        assert!(resident() < before + 1024);
    }
}
