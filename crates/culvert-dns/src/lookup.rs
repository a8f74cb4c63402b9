//! Names to addresses, over anything that answers questions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use culvert_core::{ResolveError, Strategy, timeouts};
use culvert_wire::Domain;
use tokio::time::timeout;

use crate::DnsError;
use crate::message::{Answer, Query, Rcode, RecordType, records, text};

/// How long one family's addresses wait for the other's (RFC 8305 section 3 has 50 ms; here the other family is not merely
/// a race but part of the answer).
const OTHER_FAMILY: Duration = Duration::from_millis(300);
/// How many aliases are followed from question to question.
const MOST_ALIASES: usize = 8;

/// Anything that answers questions.
pub(crate) trait Ask: Sync {
    /// Asks one question.
    fn ask(&self, query: Query) -> impl Future<Output = Result<Answer, DnsError>> + Send;
}

/// The addresses of `name`, both families asked at the same time.
pub(crate) async fn lookup(
    name: &Domain,
    strategy: Strategy,
    asked: &impl Ask,
) -> Result<Vec<IpAddr>, ResolveError> {
    let family = |kind, ip: IpAddr| async move {
        if strategy.wants(ip) { lookup_family(name, kind, asked).await } else { Ok(Vec::new()) }
    };
    let v4 = family(RecordType::A, Ipv4Addr::UNSPECIFIED.into());
    let v6 = family(RecordType::AAAA, Ipv6Addr::UNSPECIFIED.into());
    let (v4, v6) = both(v4, v6).await;
    let mut addresses = Vec::new();
    let mut failure = None;
    for outcome in [v4, v6] {
        match outcome {
            Ok(found) => addresses.extend(found),
            // What a server could not say weighs more than that the name is not there.
            Err(error) if matches!(failure, None | Some(ResolveError::NotFound)) => failure = Some(error),
            Err(_) => {}
        }
    }
    strategy.apply(&mut addresses);
    if addresses.is_empty() { Err(failure.unwrap_or(ResolveError::NoAddress)) } else { Ok(addresses) }
}

/// The `ECHConfigList`s in the HTTPS records of `name`.
pub(crate) async fn ech_configs(name: &Domain, asked: &impl Ask) -> Result<Vec<Vec<u8>>, ResolveError> {
    let query = Query::new(name, RecordType::HTTPS).map_err(|_| ResolveError::NotFound)?;
    let reply = asked.ask(query).await?.reply;
    match reply.rcode() {
        Rcode::NOERROR => Ok(records::ech_configs(&reply)),
        Rcode::NXDOMAIN => Err(ResolveError::NotFound),
        other => Err(ResolveError::Failed(format!("name server answered {other}"))),
    }
}

type Lookup = Result<Vec<IpAddr>, ResolveError>;

/// The addresses of one family; none if the name has other records only.
async fn lookup_family(name: &Domain, kind: RecordType, asked: &impl Ask) -> Lookup {
    let mut name = name.clone();
    for _ in 0..MOST_ALIASES {
        let query = Query::new(&name, kind).map_err(|_| ResolveError::NotFound)?;
        let reply = asked.ask(query).await?.reply;
        match reply.rcode() {
            Rcode::NOERROR => {}
            Rcode::NXDOMAIN => return Err(ResolveError::NotFound),
            other => return Err(ResolveError::Failed(format!("name server answered {other}"))),
        }
        let addresses: Vec<_> = reply.addresses().collect();
        // A server that follows aliases itself says with an SOA that nothing is at their end.
        let end = if reply.lifetime() == 0 { reply.alias_end() } else { None };
        match end.and_then(|end| text(end.as_bytes())) {
            Some(end) if addresses.is_empty() && end != name => name = end,
            _ => return Ok(addresses),
        }
    }
    Err(ResolveError::Failed("too many aliases".into()))
}

/// Waits for both look-ups, but once one has found something, no longer than [`OTHER_FAMILY`] for the other.
async fn both(v4: impl Future<Output = Lookup>, v6: impl Future<Output = Lookup>) -> (Lookup, Lookup) {
    tokio::pin!(v4, v6);
    let patience = |lookup: &Lookup| match lookup {
        Ok(addresses) if !addresses.is_empty() => OTHER_FAMILY,
        _ => timeouts::RESOLVE,
    };
    tokio::select! {
        v4 = &mut v4 => {
            let v6 = timeout(patience(&v4), v6).await.unwrap_or(Err(ResolveError::Timeout));
            (v4, v6)
        }
        v6 = &mut v6 => {
            let v4 = timeout(patience(&v6), v4).await.unwrap_or(Err(ResolveError::Timeout));
            (v4, v6)
        }
    }
}
