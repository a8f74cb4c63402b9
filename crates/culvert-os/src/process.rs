//! What a process sets for itself at start: the limit of open files, and how its allocator keeps memory. And whether who
//! reads its output keeps up.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys;

/// Raises the soft limit of open files to the hard one and returns the limit that holds (RLIMIT_NOFILE, getrlimit(2)).
///
/// A relayed connection takes two descriptors, and two more while a pipe moves its bytes.
pub fn raise_open_files_limit() -> io::Result<u64> {
    sys::raise_open_files_limit()
}

/// Counts this process's open descriptors, without the one it opens to look. For tests and diagnosis.
pub fn open_files() -> io::Result<usize> {
    let directory = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    Ok(std::fs::read_dir(directory)?.count().saturating_sub(1))
}

/// Most bytes that a write to `fd` takes without waiting after [`takes_more`] said yes (PIPE_BUF, pipe(7)).
pub const TAKEN_AT_ONCE: usize = 4096;

/// Whether a write of [`TAKEN_AT_ONCE`] bytes to a pipe, a terminal or a file would go through, now or within `patience`.
/// True where that cannot be told.
pub fn takes_more(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let millis = patience.as_millis().try_into().unwrap_or(i32::MAX);
    sys::wait_writable(fd, millis).unwrap_or(true)
}

/// Allocation arenas. One per thread, glibc's way, keeps each thread's peak for good; two spare most of the contention.
const ARENAS: i32 = 2;

/// Allocations of this many bytes and more are mapped, and go back to the system when freed. Saying it at all also stops
/// glibc from raising it after the first large free.
const MMAP_THRESHOLD: i32 = 64 * 1024;

/// Free memory at the top of the heap beyond this many bytes goes back to the system.
const TRIM_THRESHOLD: i32 = 128 * 1024;

/// Sets up the allocator to give memory back (mallopt(3)): call once, before threads start. False where the C library is
/// not glibc, and nothing changes.
pub fn tune_allocator() -> bool {
    sys::tune_allocator(ARENAS, MMAP_THRESHOLD, TRIM_THRESHOLD)
}

/// Gives free memory back to the system (malloc_trim(3)). True when some went.
///
/// Walks all arenas under their locks, milliseconds on a large heap: for a timer after load has fallen, not for a data path.
pub fn release_free_memory() -> bool {
    sys::trim_allocator()
}

/// Takes pages of the program's own code and constants out of memory (madvise(2)); those still in use come back from the
/// file, mostly from the kernel's cache of it, as they are touched.
///
/// Half of what a start touches is needed only for it. A fault for 64 KiB costs about a microsecond; so for the end of a
/// start and of a busy time, not for a data path.
pub fn release_program_pages() {
    sys::forget_program_pages();
}
