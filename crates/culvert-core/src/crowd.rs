//! Memory that a crowd of connections leaves behind which are no flows: those that carry many streams, and are kept for a while
//! after the last of them. The [flows](crate::flow) give theirs back when a busy time ends; such connections end later.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// So many that ended leave enough for it to be given back.
const CROWD: usize = 64;
/// Others of the same crowd end meanwhile, and tasks are dropped.
const SETTLING: Duration = Duration::from_secs(2);

/// How many have ended since memory was given back for them.
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Held for as long as such a connection lives.
#[derive(Debug, Default)]
pub struct Member(());

impl Drop for Member {
    fn drop(&mut self) {
        if ENDED.fetch_add(1, Ordering::Relaxed) + 1 != CROWD {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async {
            tokio::time::sleep(SETTLING).await;
            ENDED.store(0, Ordering::Relaxed);
            culvert_wire::pool::trim();
            culvert_os::process::release_free_memory();
            culvert_os::process::release_program_pages();
        });
    }
}
