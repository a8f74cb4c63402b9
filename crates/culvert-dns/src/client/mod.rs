//! One server with all that saves asking it: cache, de-duplication, the limit of time, and what the options of a query
//! change.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use culvert_core::{ResolveError, Resolver, Strategy, timeouts};
use culvert_wire::Domain;
use tokio::time::{Instant, timeout};

use crate::DnsError;
use crate::cache::{Cache, CacheOptions, Found};
use crate::chain::Chain;
use crate::flight::Flights;
use crate::lookup::{self, Ask};
use crate::message::edns::Subnet;
use crate::message::{Answer, Query, Rcode, RecordType, Reply, records};
use crate::server::DnsServer;

/// What is done with the subnet that a question may carry.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ClientSubnet {
    /// It goes along as the client sent it.
    #[default]
    Keep,
    /// It is replaced.
    Set(Subnet),
    /// It is taken out.
    Remove,
}

/// How a question is asked: what the DNS rules and `domain_resolver` can say about it.
#[derive(Clone, Debug)]
pub struct QueryOptions {
    /// How long it may take.
    pub timeout: Duration,
    /// Always asks, and keeps no answer.
    pub disable_cache: bool,
    /// Takes no answer that is past its time.
    pub disable_optimistic_cache: bool,
    /// TTL that all records get.
    pub rewrite_ttl: Option<u32>,
    /// The client's subnet.
    pub client_subnet: ClientSubnet,
    /// With one family only, questions for the other have no records.
    pub strategy: Strategy,
}

impl Default for QueryOptions {
    fn default() -> Self {
        Self {
            timeout: timeouts::RESOLVE,
            disable_cache: false,
            disable_optimistic_cache: false,
            rewrite_ttl: None,
            client_subnet: ClientSubnet::Keep,
            strategy: Strategy::AsIs,
        }
    }
}

/// A server behind its cache. Cloning shares it.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    server: Arc<dyn DnsServer>,
    /// `None` with `disable_cache`.
    cache: Option<Cache>,
    flights: Flights<Result<Arc<Reply>, DnsError>>,
}

impl Client {
    /// Puts a cache before `server`; `None` keeps nothing (`disable_cache`).
    #[must_use]
    pub fn new(server: Arc<dyn DnsServer>, cache: Option<CacheOptions>) -> Self {
        Self(Arc::new(Inner { server, cache: cache.map(Cache::new), flights: Flights::new() }))
    }

    /// The server itself.
    #[must_use]
    pub fn server(&self) -> &Arc<dyn DnsServer> {
        &self.0.server
    }

    /// Forgets what is cached.
    pub fn clear_cache(&self) {
        if let Some(cache) = &self.0.cache {
            cache.clear();
        }
    }

    /// The cached answers as bytes, if there are others than when they were last asked for ([`Cache::save`]).
    #[must_use]
    pub fn save_cache(&self) -> Option<Vec<u8>> {
        self.0.cache.as_ref()?.save(Instant::now(), SystemTime::now())
    }

    /// Caches what [`Client::save_cache`] has written.
    pub fn restore_cache(&self, saved: &[u8]) {
        if let Some(cache) = &self.0.cache {
            cache.restore(saved, Instant::now(), SystemTime::now());
        }
    }

    /// Asks one question. From the cache this is ready at once: a reply's bytes are shared, nothing is copied.
    ///
    /// # Errors
    /// No answer in time, or none at all. An answer that reports an error is an answer.
    pub async fn exchange(&self, query: &Query, options: &QueryOptions) -> Result<Answer, DnsError> {
        if is_unwanted(query, options.strategy) {
            return Ok(Answer::fresh(Reply::empty(query, Rcode::NOERROR)));
        }
        let answer = match options.client_subnet {
            ClientSubnet::Keep => self.cached_or_asked(query, options).await?,
            ClientSubnet::Set(subnet) => {
                self.cached_or_asked(&query.with_subnet(Some(subnet)), options).await?
            }
            ClientSubnet::Remove => self.cached_or_asked(&query.with_subnet(None), options).await?,
        };
        if query.kind() == RecordType::HTTPS
            && matches!(options.strategy, Strategy::Ipv4Only | Strategy::Ipv6Only)
        {
            let reply = records::without_hints(query, &answer.reply, options.strategy);
            return Ok(Answer { reply: reply.map_or(answer.reply, Arc::new), ..answer });
        }
        Ok(answer)
    }

    /// The addresses of a name, both families asked at the same time.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn lookup(
        &self,
        name: &Domain,
        strategy: Strategy,
        options: &QueryOptions,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let strategy = if strategy == Strategy::AsIs { options.strategy } else { strategy };
        lookup::lookup(name, strategy, &Asking { client: self, options }).await
    }

    /// The `ECHConfigList`s in the HTTPS records of a name, best first.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn ech_configs(
        &self,
        name: &Domain,
        options: &QueryOptions,
    ) -> Result<Vec<Vec<u8>>, ResolveError> {
        lookup::ech_configs(name, &Asking { client: self, options }).await
    }

    /// This server as the resolver of a dialer.
    #[must_use]
    pub fn resolver(&self, options: QueryOptions) -> Arc<dyn Resolver> {
        Arc::new(ClientResolver { client: self.clone(), options })
    }

    async fn cached_or_asked(&self, query: &Query, options: &QueryOptions) -> Result<Answer, DnsError> {
        let inner = &self.0;
        let cache = inner.cache.as_ref().filter(|_| !options.disable_cache);
        let Some(cache) = cache else {
            let asked = Chain::with(inner.server.tag())?.scope(inner.ask(query, options));
            return asked.await.map(Answer::fresh);
        };
        match cache.find(query, Instant::now()) {
            Some(Found::Fresh(answer)) => return Ok(answer),
            Some(Found::Stale(answer)) if !options.disable_optimistic_cache => {
                self.refresh(query, options);
                return Ok(answer);
            }
            Some(Found::Stale(_)) | None => {}
        }
        self.join(query, options).await.map(Answer::fresh)
    }

    /// Waits for the one exchange of all who ask this.
    async fn join(&self, query: &Query, options: &QueryOptions) -> Result<Arc<Reply>, DnsError> {
        let chain = Chain::with(self.0.server.tag())?;
        let start = || {
            let (inner, query, options) = (Arc::clone(&self.0), query.clone(), options.clone());
            chain.scope(async move {
                let reply = inner.ask(&query, &options).await?;
                if let Some(cache) = &inner.cache {
                    cache.keep(&query, &reply, Instant::now());
                }
                Ok(reply)
            })
        };
        self.0.flights.join(query.key(), start).await.unwrap_or(Err(DnsError::Broken))
    }

    /// Asks again in the background, unless that is being done. A failure leaves the old answer in its place.
    fn refresh(&self, query: &Query, options: &QueryOptions) {
        if self.0.flights.is_under_way(query.key()) {
            return;
        }
        let (client, query, options) = (self.clone(), query.clone(), options.clone());
        tokio::spawn(async move {
            if let Err(error) = client.join(&query, &options).await {
                tracing::debug!(%query, %error, "stale answer could not be refreshed");
            }
        });
    }
}

impl Inner {
    async fn ask(&self, query: &Query, options: &QueryOptions) -> Result<Arc<Reply>, DnsError> {
        let asked = timeout(options.timeout, self.server.exchange(query)).await;
        let mut reply = asked.map_err(|_| DnsError::Timeout(options.timeout))??;
        if let Some(ttl) = options.rewrite_ttl {
            reply.rewrite_ttl(ttl);
        }
        Ok(Arc::new(reply))
    }
}

/// Whether the strategy leaves the family out that is asked for.
fn is_unwanted(query: &Query, strategy: Strategy) -> bool {
    match query.kind() {
        RecordType::A => strategy == Strategy::Ipv6Only,
        RecordType::AAAA => strategy == Strategy::Ipv4Only,
        _ => false,
    }
}

struct Asking<'a> {
    client: &'a Client,
    options: &'a QueryOptions,
}

impl Ask for Asking<'_> {
    async fn ask(&self, query: Query) -> Result<Answer, DnsError> {
        self.client.exchange(&query, self.options).await
    }
}

struct ClientResolver {
    client: Client,
    options: QueryOptions,
}

#[async_trait]
impl Resolver for ClientResolver {
    async fn resolve(&self, name: &Domain, strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        self.client.lookup(name, strategy, &self.options).await
    }

    async fn ech_configs(&self, name: &Domain) -> Result<Vec<Vec<u8>>, ResolveError> {
        self.client.ech_configs(name, &self.options).await
    }
}
