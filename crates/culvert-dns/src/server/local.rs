//! The server of type `local`: the system's resolver.

use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::Tag;

use super::DnsServer;
use crate::message::{Query, Reply};
use crate::{DnsError, SystemResolver};

/// A server of type `local`.
pub struct LocalServer {
    tag: Tag,
    system: Arc<SystemResolver>,
}

impl LocalServer {
    /// Asks `system`.
    #[must_use]
    pub fn new(tag: Tag, system: Arc<SystemResolver>) -> Self {
        Self { tag, system }
    }
}

#[async_trait]
impl DnsServer for LocalServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        self.system.fetch(query).await
    }
}
