//! Pipes shrink as they become many. One test, for it counts those of the whole process.

#![cfg(target_os = "linux")]

use std::io::ErrorKind;

use culvert_os::process::raise_open_files_limit;
use culvert_os::splice::{Pipe, trim};

const KIB: usize = 1024;

#[test]
fn first_pipes_are_large_and_many_stay_worth_it() {
    let limit = raise_open_files_limit().unwrap();
    let most = 400.min(limit as usize / 2 - 50);
    let mut pipes = Vec::new();
    let mut refused = None;
    while pipes.len() < most {
        match Pipe::take() {
            Ok(pipe) => pipes.push(pipe),
            Err(error) => {
                refused = Some(error.kind());
                break;
            }
        }
    }
    // A user's quota may be spent by other programs; what remains to be seen then is the refusal.
    assert!(matches!(refused, None | Some(ErrorKind::QuotaExceeded)), "{refused:?}");
    let capacities: Vec<usize> = pipes.iter().map(Pipe::capacity).collect();
    assert!(capacities.iter().all(|capacity| *capacity >= 64 * KIB), "{capacities:?}");
    if refused.is_none() {
        let (large, small) = capacities.split_at(32);
        assert!(large.iter().all(|capacity| *capacity == 1024 * KIB), "{capacities:?}");
        assert!(small.iter().all(|capacity| *capacity == 256 * KIB), "{capacities:?}");
    }

    // What is closed makes room again, also for large ones.
    let first = capacities.first().copied();
    drop(pipes);
    trim();
    assert_eq!(Pipe::take().ok().map(|pipe| pipe.capacity()), first);
}
