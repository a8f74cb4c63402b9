//! The two sides against one another, against the stock library, and against other programs.

mod handshake;
mod imitation;
mod interop;
mod provided;
mod trust;

use std::sync::Arc;

use culvert_wire::{Domain, Host};

use crate::settings::{
    ClientAuthentication, ClientSettings, Identity, KeyPairSource, ServerSettings, Source, StoreBase,
    StoreSettings, Trust,
};
use crate::testing::{Ca, Issued};
use crate::{Acceptor, Connector, Store};

pub(crate) use provided::Given;

/// A store that trusts nobody, so that no test depends on the system.
fn nobody() -> Arc<Store> {
    Store::new(StoreSettings { base: StoreBase::None, ..StoreSettings::default() })
}

fn host(name: &str) -> Host {
    match name.parse() {
        Ok(ip) => Host::Ip(ip),
        Err(_) => Host::Domain(Domain::new(name).unwrap()),
    }
}

/// A client that trusts `ca`.
fn client_of(ca: &Ca) -> ClientSettings {
    ClientSettings { trust: Trust::Authorities(Source::Inline(ca.pem())), ..ClientSettings::default() }
}

fn server_with(source: KeyPairSource) -> ServerSettings {
    ServerSettings {
        parameters: crate::settings::Parameters::default(),
        identity: Identity::Given(source),
        clients: ClientAuthentication::None,
        handshake_timeout: None,
    }
}

fn connector(settings: ClientSettings, name: &str) -> Connector {
    Connector::new(settings, &host(name), &nobody()).unwrap()
}

fn acceptor(identity: &Issued) -> Acceptor {
    Acceptor::new(&server_with(identity.source())).unwrap()
}
