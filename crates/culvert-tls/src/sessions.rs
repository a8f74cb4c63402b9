//! Sessions that a client can take up again.
//!
//! The library's own store keeps up to eight tickets for each of 256 names, each with the server's certificates: a
//! client of one server in a list of hundreds of outbounds needs a fraction of that.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Sessions kept in all: about 4 KiB each.
const MOST: usize = 4;

/// The sessions of one client.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    tls13: VecDeque<(ServerName<'static>, Tls13ClientSessionValue)>,
    tls12: VecDeque<(ServerName<'static>, Tls12ClientSessionValue)>,
    groups: VecDeque<(ServerName<'static>, NamedGroup)>,
}

impl Sessions {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a value in; the oldest goes where there are too many.
fn push<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() == MOST {
        queue.pop_front();
    }
    queue.push_back(value);
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        let mut kept = self.kept();
        kept.groups.retain(|(other, _)| *other != name);
        push(&mut kept.groups, (name, group));
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept().groups.iter().find(|(other, _)| other == name).map(|(_, group)| *group)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, session: Tls12ClientSessionValue) {
        let mut kept = self.kept();
        kept.tls12.retain(|(other, _)| *other != name);
        push(&mut kept.tls12, (name, session));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept().tls12.iter().find(|(other, _)| other == name).map(|(_, session)| session.clone())
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.kept().tls12.retain(|(other, _)| other != name);
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, session: Tls13ClientSessionValue) {
        push(&mut self.kept().tls13, (name, session));
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut kept = self.kept();
        // The newest lives longest.
        let index = kept.tls13.iter().rposition(|(other, _)| other == name)?;
        kept.tls13.remove(index).map(|(_, session)| session)
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept();
        write!(f, "Sessions({} of TLS 1.3, {} of TLS 1.2)", kept.tls13.len(), kept.tls12.len())
    }
}
