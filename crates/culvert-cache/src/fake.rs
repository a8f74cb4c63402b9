//! Fake addresses, kept as they are given out.

use std::net::IpAddr;

use culvert_dns::server::fakeip::{FakeRange, FakeRecords, FakeStore};
use culvert_wire::Domain;
use redb::{ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use crate::{CacheFile, Write, address, put_text};

/// A change of what is kept.
pub(crate) enum FakeWrite {
    /// Everything is forgotten; these are the ranges from here on.
    Reset([String; 2]),
    Keep(IpAddr, Domain),
}

/// Keys of the ranges and of the addresses given out last, IPv4 before IPv6.
const RANGES: [&str; 2] = ["inet4", "inet6"];
const LAST: [&str; 2] = ["last4", "last6"];

impl FakeStore for CacheFile {
    fn load(&self, inet4: Option<FakeRange>, inet6: Option<FakeRange>) -> Option<FakeRecords> {
        let kept = RANGES.map(|key| self.text("state", key));
        if kept != texts(inet4, inet6).map(Some) {
            return None;
        }
        let last = LAST.map(|key| self.text("state", key).as_deref().and_then(address));
        let name = self.table("fake");
        let names = self.read(|database| {
            let read = database.begin_read()?;
            let table = match read.open_table(TableDefinition::<&str, &str>::new(&name)) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
            let mut names = Vec::new();
            for entry in table.iter()? {
                let (ip, name) = entry?;
                if let (Some(ip), Ok(name)) = (address(ip.value()), Domain::new(name.value())) {
                    names.push((ip, name));
                }
            }
            Ok(names)
        })?;
        Some(FakeRecords { names, last: (last[0], last[1]) })
    }

    fn reset(&self, inet4: Option<FakeRange>, inet6: Option<FakeRange>) {
        self.push(Write::Fake(self.id.clone(), FakeWrite::Reset(texts(inet4, inet6))));
    }

    fn keep(&self, ip: IpAddr, name: &Domain) {
        self.push(Write::Fake(self.id.clone(), FakeWrite::Keep(ip, name.clone())));
    }
}

impl FakeWrite {
    pub(crate) fn apply(&self, transaction: &WriteTransaction, id: &str) -> Result<(), redb::Error> {
        let (fake, state) = (format!("fake/{id}"), format!("state/{id}"));
        match self {
            Self::Reset(ranges) => {
                transaction.delete_table(TableDefinition::<&str, &str>::new(&fake))?;
                for (key, range) in RANGES.iter().zip(ranges) {
                    put_text(transaction, &state, key, range)?;
                }
                for key in LAST {
                    put_text(transaction, &state, key, "")?;
                }
                Ok(())
            }
            Self::Keep(ip, name) => {
                put_text(transaction, &fake, &ip.to_string(), name.as_str())?;
                put_text(transaction, &state, LAST[usize::from(ip.is_ipv6())], &ip.to_string())
            }
        }
    }
}

/// The ranges as they are kept; nothing for none.
fn texts(inet4: Option<FakeRange>, inet6: Option<FakeRange>) -> [String; 2] {
    [inet4, inet6].map(|range| range.map(|range| range.to_string()).unwrap_or_default())
}
