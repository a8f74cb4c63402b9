//! `experimental`: the cache file, APIs and knobs for debugging.

use crate::cx::Cx;
use crate::json::Node;
use crate::table::options;
use crate::value::{Dur, List, LooseOutboundTag, MemorySize, Secret};

options! {
    /// The cache file, APIs and knobs for debugging.
    pub struct ExperimentalOptions {
        /// What is kept across restarts.
        cache_file: Option<CacheFileOptions>,
        /// The REST API of Clash.
        clash_api: Option<ClashApiOptions>,
        /// The statistics API of V2Ray.
        v2ray_api: Option<V2RayApiOptions>,
        /// Knobs for debugging.
        debug: Option<DebugOptions>,
    }

    /// What is kept across restarts: always the mode, the members chosen and fetched rule-sets.
    pub struct CacheFileOptions {
        /// Whether anything is kept.
        enabled: bool,
        /// The file; `cache.db` when absent.
        path: String,
        /// Name space inside the file, so that several configurations can share it.
        cache_id: String,
        /// Keeps which address stands for which name.
        store_fakeip: bool,
        /// Without effect: refused answers are kept with the other ones.
        store_rdrc: bool [hidden],
        /// How long refused answers are kept; 7d when absent.
        rdrc_timeout: Dur,
        /// Keeps DNS answers.
        store_dns: bool,
    }
    check = CacheFileOptions::check_rdrc;

    /// The REST API of Clash.
    pub struct ClashApiOptions {
        /// Address and port to listen on; no API when absent.
        external_controller: String,
        /// Directory of a web page to serve under `/ui`.
        external_ui: String,
        /// Where to fetch that page from when the directory is empty.
        external_ui_download_url: String,
        /// Outbound to fetch it through; the default one when absent.
        external_ui_download_detour: LooseOutboundTag,
        /// What clients must present.
        secret: Secret<String>,
        /// Mode at the start; `Rule` when absent.
        default_mode: String,
        /// Web origins that may use the API; all when absent.
        access_control_allow_origin: List<String>,
        /// Lets web pages from public networks use the API.
        access_control_allow_private_network: bool,
    }
    check = ClashApiOptions::check_controller;

    /// The statistics API of V2Ray.
    pub struct V2RayApiOptions {
        /// Address and port to listen on.
        listen: String,
        /// What is counted.
        stats: Option<V2RayStatsOptions>,
    }

    /// What the statistics API counts.
    pub struct V2RayStatsOptions {
        /// Whether anything is counted.
        enabled: bool,
        /// Inbounds to count.
        inbounds: Vec<String>,
        /// Outbounds to count.
        outbounds: Vec<String>,
        /// Users to count.
        users: Vec<String>,
    }

    /// Knobs for debugging; those for the Go runtime are accepted without effect.
    pub struct DebugOptions {
        /// Address and port of a server with runtime figures.
        listen: String,
        /// Without effect.
        gc_percent: Option<i64>,
        /// Without effect.
        max_stack: Option<i64>,
        /// Without effect.
        max_threads: Option<i64>,
        /// Without effect.
        panic_on_fault: Option<bool>,
        /// Without effect.
        trace_back: String,
        /// How much memory should be used at most.
        memory_limit: Option<MemorySize>,
    }
}

impl ClashApiOptions {
    fn check_controller(&self, node: &Node, cx: &mut Cx<'_>) {
        if !self.external_controller.is_empty() && !self.external_controller.contains(':') {
            let message = "`external_controller` has no port; write for example \"127.0.0.1:9090\"";
            cx.error(node.place_of("external_controller"), message);
        }
    }
}

impl CacheFileOptions {
    fn check_rdrc(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.store_rdrc {
            cx.warn(node.place_of("store_rdrc"), "`store_rdrc` is old; write `\"store_dns\": true`");
        }
    }
}
