//! Service `oom-killer`: ends connections when memory runs short.

use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Dur, MemorySize};

options! {
    /// Options of the guard over memory.
    pub struct OomKillerService {
        /// How much memory may be used; what the system allows when absent.
        memory_limit: Option<MemorySize>,
        /// How much of it to keep free.
        safety_margin: Option<MemorySize>,
        /// Least time between looks at the memory.
        min_interval: Dur,
        /// Greatest time between looks at the memory.
        max_interval: Dur,
    }
    check = OomKillerService::check_intervals;
}

impl OomKillerService {
    fn check_intervals(&self, node: &Node, cx: &mut Cx<'_>) {
        if let (Some(min), Some(max)) = (self.min_interval.get(), self.max_interval.get())
            && max < min
        {
            cx.error(node.place_of("max_interval"), "`max_interval` must not be shorter than `min_interval`");
        }
    }
}
