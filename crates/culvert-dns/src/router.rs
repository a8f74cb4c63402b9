//! The DNS servers of a configuration together: what clients' questions, the router and the outbounds ask.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::{ResolveError, Resolver, Session, Strategy};
use culvert_wire::Domain;

use crate::DnsError;
use crate::client::{Client, QueryOptions};
use crate::lookup::{self, Ask};
use crate::message::{Answer, Query, Request};
use crate::reverse::ReverseMapping;
use crate::server::fakeip::FakeAddresses;

/// On whose behalf a question is asked.
#[derive(Clone, Copy, Debug)]
pub enum Asker<'a> {
    /// A client, whose session this is, asked it itself.
    Client(&'a Session),
    /// The router looks up the target of a session, or something of its own. Servers of type `fakeip` are passed over:
    /// what they answer leads nowhere.
    Lookup(Option<&'a Session>),
}

/// Decides which server answers a question, and how. The rules of the configuration implement it.
#[async_trait]
pub trait DnsPolicy: Send + Sync {
    /// Answers `query` by asking the servers of `dns`.
    ///
    /// # Errors
    /// [`DnsError::Dropped`] where the rules say to keep silent, else what kept the servers from answering.
    async fn decide(&self, dns: &DnsRouter, query: &Query, asker: Asker<'_>) -> Result<Answer, DnsError>;
}

/// The policy of a configuration without rules: the default server answers everything.
pub struct DefaultOnly;

#[async_trait]
impl DnsPolicy for DefaultOnly {
    async fn decide(&self, dns: &DnsRouter, query: &Query, _: Asker<'_>) -> Result<Answer, DnsError> {
        dns.default.exchange(query, &dns.options).await
    }
}

/// Answers clients' requests; see [`hijack`](crate::hijack).
#[async_trait]
pub trait Exchange: Send + Sync {
    /// Answers one request of `from`. The first poll is made where the request was read: an answer from a cache is ready
    /// by then and costs no task.
    ///
    /// # Errors
    /// [`DnsError::Dropped`] asks for silence; others are reported to the client.
    async fn exchange(&self, request: &Request, from: &Session) -> Result<Answer, DnsError>;
}

/// All servers, and what holds for all of them.
pub struct DnsRouter {
    /// The servers by tag.
    pub clients: HashMap<Arc<str>, Client>,
    /// The server that answers where nothing else is said (`final`).
    pub default: Client,
    /// What holds where nothing else is said: `timeout`, `client_subnet`, `strategy`.
    pub options: QueryOptions,
    /// Who decides.
    pub policy: Box<dyn DnsPolicy>,
    /// Which names the addresses in answers belong to, if that is remembered (`reverse_mapping`).
    pub reverse: Option<ReverseMapping>,
    /// The fake addresses, if there is a server of that type.
    pub fake: Option<Arc<FakeAddresses>>,
}

impl DnsRouter {
    /// Answers a client's question by the rules.
    ///
    /// # Errors
    /// See [`DnsPolicy::decide`].
    pub async fn answer(&self, query: &Query, from: &Session) -> Result<Answer, DnsError> {
        let answer = self.policy.decide(self, query, Asker::Client(from)).await?;
        if let (Some(reverse), Some(name)) = (&self.reverse, query.domain()) {
            reverse.learn(&name, &answer);
        }
        Ok(answer)
    }

    /// The server with this tag.
    #[must_use]
    pub fn client(&self, tag: &str) -> Option<&Client> {
        self.clients.get(tag)
    }

    /// The addresses of a name by the rules, both families asked at the same time. One server's answers, whatever the
    /// rules, are to be had from its [`Client::lookup`].
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn lookup(
        &self,
        name: &Domain,
        strategy: Strategy,
        session: Option<&Session>,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let strategy = if strategy == Strategy::AsIs { self.options.strategy } else { strategy };
        lookup::lookup(name, strategy, &Asking { dns: self, session }).await
    }

    /// The name behind a destination, where one is known: a fake address's, or that of an answer given before.
    ///
    /// # Errors
    /// [`DnsError::NotFake`] for an address in a fake range that nobody was given.
    pub fn name_of(&self, ip: IpAddr) -> Result<Option<Domain>, DnsError> {
        match &self.fake {
            Some(fake) if fake.contains(ip) => fake.name(ip).map(Some).ok_or(DnsError::NotFake),
            _ => Ok(self.reverse.as_ref().and_then(|reverse| reverse.name(ip))),
        }
    }

    /// Forgets all cached answers.
    pub fn clear_caches(&self) {
        self.clients.values().for_each(Client::clear_cache);
    }

    /// Forgets all cached answers and connections, because the network has changed.
    pub fn reset(&self) {
        for client in self.clients.values() {
            client.clear_cache();
            client.server().reset();
        }
    }
}

#[async_trait]
impl Exchange for DnsRouter {
    async fn exchange(&self, request: &Request, from: &Session) -> Result<Answer, DnsError> {
        self.answer(&request.query, from).await
    }
}

/// Look-ups by the rules, for whoever has no server of its own to ask.
#[async_trait]
impl Resolver for DnsRouter {
    async fn resolve(&self, name: &Domain, strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        self.lookup(name, strategy, None).await
    }

    async fn ech_configs(&self, name: &Domain) -> Result<Vec<Vec<u8>>, ResolveError> {
        lookup::ech_configs(name, &Asking { dns: self, session: None }).await
    }
}

struct Asking<'a> {
    dns: &'a DnsRouter,
    session: Option<&'a Session>,
}

impl Ask for Asking<'_> {
    async fn ask(&self, query: Query) -> Result<Answer, DnsError> {
        self.dns.policy.decide(self.dns, &query, Asker::Lookup(self.session)).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use culvert_core::{Network, SessionId, Tag};

    use super::*;
    use crate::RecordType;
    use crate::cache::CacheOptions;
    use crate::server::DnsServer;
    use crate::server::fakeip::{FakeIpServer, FakeRange};
    use crate::server::hosts::HostsServer;
    use crate::system::Hosts;
    use crate::testing::{ParseDomain, query};

    /// Clients get fake addresses, look-ups the real ones: the usual rules of a transparent proxy.
    struct FakeForClients;

    #[async_trait]
    impl DnsPolicy for FakeForClients {
        async fn decide(&self, dns: &DnsRouter, query: &Query, asker: Asker<'_>) -> Result<Answer, DnsError> {
            let client = match asker {
                Asker::Client(_) => dns.client("fake").unwrap(),
                Asker::Lookup(_) => &dns.default,
            };
            client.exchange(query, &dns.options).await
        }
    }

    fn client(server: impl DnsServer + 'static) -> Client {
        Client::new(Arc::new(server), Some(CacheOptions::default()))
    }

    fn router(policy: impl DnsPolicy + 'static) -> DnsRouter {
        let range = FakeRange::new("198.18.0.0".parse().unwrap(), 15);
        let fake = Arc::new(FakeAddresses::new(range, None));
        let mut names = Hosts::default();
        for ip in ["192.0.2.1", "2001:db8::1"] {
            names.insert("a.test".parse_domain(), ip.parse().unwrap());
        }
        let default = client(HostsServer::new(Tag::new("hosts", "h"), names, vec!["/nonexistent".into()]));
        let faked = client(FakeIpServer::new(Tag::new("fakeip", "fake"), Arc::clone(&fake)));
        DnsRouter {
            clients: [("h".into(), default.clone()), ("fake".into(), faked)].into(),
            default,
            options: QueryOptions::default(),
            policy: Box::new(policy),
            reverse: Some(ReverseMapping::default()),
            fake: Some(fake),
        }
    }

    fn session() -> Session {
        Session {
            id: SessionId::next(),
            network: Network::Udp,
            inbound: Tag::new("tun", "t"),
            user: None,
            source: (Ipv4Addr::LOCALHOST, 1).into(),
            target: std::net::SocketAddr::from(([192, 0, 2, 53], 53)).into(),
            sniffed: None,
            alpn: None,
        }
    }

    async fn answer(dns: &DnsRouter, name: &str) -> String {
        let answer = dns.answer(&query(name, RecordType::A), &session()).await.unwrap();
        answer.reply.addresses().map(|ip| ip.to_string()).collect()
    }

    #[tokio::test]
    async fn fake_addresses_lead_back_to_their_names() {
        let dns = router(FakeForClients);
        assert_eq!(answer(&dns, "a.test").await, "198.18.0.2");
        let name = |ip: &str| dns.name_of(ip.parse().unwrap()).map(|name| name.map(|name| name.to_string()));
        assert_eq!(name("198.18.0.2").unwrap().as_deref(), Some("a.test"));
        assert!(name("198.18.0.3").unwrap_err().to_string().contains("missing fakeip record"));
        assert_eq!(name("192.0.2.1").unwrap(), None, "nobody was told");
        let real = dns.lookup(&"a.test".parse_domain(), Strategy::AsIs, None).await.unwrap();
        assert_eq!(real.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.1", "2001:db8::1"]);
    }

    #[tokio::test]
    async fn answers_are_remembered_by_address() {
        let dns = router(DefaultOnly);
        assert_eq!(answer(&dns, "A.test").await, "192.0.2.1");
        assert_eq!(dns.name_of("192.0.2.1".parse().unwrap()).unwrap().unwrap().as_str(), "a.test");
    }

    #[tokio::test]
    async fn the_strategy_of_all_holds_where_none_is_given() {
        let mut dns = router(DefaultOnly);
        dns.options.strategy = Strategy::PreferIpv6;
        let first = |strategy| {
            let dns = &dns;
            async move { dns.lookup(&"a.test".parse_domain(), strategy, None).await.unwrap()[0].to_string() }
        };
        assert_eq!(first(Strategy::AsIs).await, "2001:db8::1");
        assert_eq!(first(Strategy::PreferIpv4).await, "192.0.2.1");
        let missing = dns.resolve(&"none.test".parse_domain(), Strategy::AsIs).await;
        assert!(matches!(missing, Err(ResolveError::NotFound)));
    }
}
