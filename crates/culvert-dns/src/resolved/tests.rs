//! Against a real bus: `dbus-daemon`, which the tests start with a configuration of their own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use culvert_os::iface;
use culvert_testkit::temp::TempDir;
use culvert_tls::StoreSettings;
use tokio::task::JoinHandle;

use super::manager::NAME;
use super::*;
use crate::bus::Bus;
use crate::bus::message::Value;
use crate::cache::CacheOptions;
use crate::message::wire::kind;
use crate::testing::{Asked, Mock, query};
use crate::{Client, DefaultOnly, DnsRouter, QueryOptions, RecordType};

const MANAGER: [&str; 3] = [NAME, "/org/freedesktop/resolve1", "org.freedesktop.resolve1.Manager"];

/// How long the bus may take to be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// A bus of its own.
struct Daemon {
    process: Child,
    socket: PathBuf,
    _folder: TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `None`, aloud, where the program is missing and need not be there.
async fn daemon() -> Option<Daemon> {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("bus");
    let config = format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
        <busconfig><type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>
        <policy context="default"><allow send_destination="*" eavesdrop="true"/><allow receive_sender="*" eavesdrop="true"/><allow own="*"/><allow user="*"/></policy>
        </busconfig>"#,
        socket.display()
    );
    let config = folder.write("bus.conf", config).unwrap();
    let started = Command::new("dbus-daemon")
        .args(["--nofork", "--nopidfile", "--nosyslog", "--config-file"])
        .arg(&config)
        .stdout(Stdio::null())
        .spawn();
    let process = match started {
        Ok(process) => process,
        Err(error) => {
            assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "dbus-daemon: {error}");
            culvert_testkit::peer::skip(&format!("dbus-daemon: {error}"));
            return None;
        }
    };
    let daemon = Daemon { process, socket, _folder: folder };
    let there = async {
        while Bus::connect(&daemon.socket).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.expect("dbus-daemon does not come up");
    Some(daemon)
}

/// A manager on the bus, and the server that its links are for.
struct Running {
    links: Arc<Links>,
    server: ResolvedServer,
    serving: JoinHandle<std::io::Result<()>>,
}

async fn manager(daemon: &Daemon) -> Running {
    let links = Arc::new(Links::default());
    let store = Store::new(StoreSettings::default());
    let tag = Tag::new("resolved", "r");
    let server = || ResolvedServer::new(tag.clone(), Arc::clone(&links), true, Arc::clone(&store));
    let default = Client::new(Arc::new(server()), Some(CacheOptions::default()));
    let dns = Arc::new(DnsRouter {
        clients: [("r".into(), default.clone())].into(),
        default,
        options: QueryOptions::default(),
        policy: Box::new(DefaultOnly),
        reverse: None,
        fake: None,
    });
    let mut bus = Bus::connect(&daemon.socket).await.unwrap();
    assert!(bus.own(NAME).await.unwrap());
    let manager = Arc::new(Manager::new(tag.clone(), Arc::clone(&links), dns));
    let serving = tokio::spawn(manager.serve(bus));
    Running { server: server(), links, serving }
}

/// Tells that link `lo` has this server, for these names.
async fn tell(bus: &mut Bus, mock: &Mock, domains: &[(&str, bool)]) -> i32 {
    let index = iface::index("lo").unwrap() as i32;
    let server = Value::Struct(vec![
        Value::I32(2),
        Value::bytes(&[127, 0, 0, 1]),
        Value::U16(mock.address.port()),
        Value::text(""),
    ]);
    let servers = Value::Array("(iayqs)".into(), vec![server]);
    bus.call(MANAGER, "SetLinkDNSEx", vec![Value::I32(index), servers]).await.unwrap();
    let domains =
        domains.iter().map(|(name, only)| Value::Struct(vec![Value::text(name), Value::Bool(*only)]));
    let domains = Value::Array("(sb)".into(), domains.collect());
    bus.call(MANAGER, "SetLinkDomains", vec![Value::I32(index), domains]).await.unwrap();
    index
}

/// A chain of three aliases for `a.test`, and names of one address each.
fn chain(asked: &Asked) -> Vec<Vec<u8>> {
    let alias = |to: &str| {
        let mut wire = Vec::new();
        for label in to.split('.') {
            wire.push(label.len() as u8);
            wire.extend(label.as_bytes());
        }
        wire.push(0);
        wire
    };
    match (asked.name.as_str(), asked.kind) {
        ("a.test", RecordType::A) => {
            let reply = asked.reply().record(6, "a.test", kind::CNAME, 60, &alias("b.test"));
            let reply = reply.record(6, "b.test", kind::CNAME, 60, &alias("c.test"));
            reply
                .record(6, "c.test", kind::CNAME, 60, &alias("d.test"))
                .address("d.test", 60, "192.0.2.4")
                .only()
        }
        ("a.test", _) => asked.reply().only(),
        ("1.2.0.192.in-addr.arpa", RecordType::PTR) => {
            asked.reply().record(6, &asked.name, kind::PTR, 60, &alias("one.test")).only()
        }
        (name, RecordType::A) => asked.reply().address(name, 60, "192.0.2.1").only(),
        _ => asked.reply().only(),
    }
}

#[tokio::test]
async fn what_the_system_is_told_is_what_servers_ask() {
    let Some(daemon) = daemon().await else { return };
    let mock = Mock::start(chain).await;
    let running = manager(&daemon).await;
    let ask = async |name: &str| running.server.exchange(&query(name, RecordType::A)).await.unwrap();
    assert_eq!(ask("x.corp.test").await.rcode(), Rcode::NXDOMAIN, "nobody has said anything");
    let mut bus = Bus::connect(&daemon.socket).await.unwrap();
    let index = tell(&mut bus, &mock, &[("corp.test", true)]).await;
    assert_eq!(ask("x.corp.test").await.addresses().count(), 1);
    assert_eq!(ask("x.other.test").await.rcode(), Rcode::NXDOMAIN, "the link is for some names only");
    bus.call(MANAGER, "SetLinkDefaultRoute", vec![Value::I32(index), Value::Bool(true)]).await.unwrap();
    assert_eq!(ask("x.other.test").await.addresses().count(), 1);
    bus.call(MANAGER, "RevertLink", vec![Value::I32(index)]).await.unwrap();
    assert_eq!(running.links.link(index), None);
    for (method, arguments) in [
        ("SetLinkDNS", vec![Value::I32(index), Value::text("x")]),
        ("SetLinkDNS", vec![]),
        ("SetLinkDefaultRoute", vec![Value::I32(index), Value::I32(1)]),
        ("Unknown", vec![]),
    ] {
        bus.call(MANAGER, method, arguments).await.unwrap_err();
    }
    bus.call(MANAGER, "SetLinkLLMNR", vec![Value::I32(index), Value::text("no")]).await.unwrap();
    assert!(!running.serving.is_finished());
}

/// D9: the aliases of an answer lead to its canonical name.
#[tokio::test]
async fn names_addresses_and_records_are_looked_up_by_the_rules() {
    let Some(daemon) = daemon().await else { return };
    let mock = Mock::start(chain).await;
    let _running = manager(&daemon).await;
    let mut bus = Bus::connect(&daemon.socket).await.unwrap();
    tell(&mut bus, &mock, &[]).await;
    let name = |name: &str, family| vec![Value::I32(0), Value::text(name), Value::I32(family), Value::U64(0)];
    let found = bus.call(MANAGER, "ResolveHostname", name("A.test.", 0)).await.unwrap();
    let address = |ip: [u8; 4]| Value::Struct(vec![Value::I32(0), Value::I32(2), Value::bytes(&ip)]);
    assert_eq!(found[0], Value::Array("(iiay)".into(), vec![address([192, 0, 2, 4])]));
    assert_eq!(found[1].as_text(), Some("d.test"));
    let error = bus.call(MANAGER, "ResolveHostname", name("a.test", 10)).await.unwrap_err();
    assert!(error.to_string().contains("NoSuchRR"), "{error}");
    let literal = bus.call(MANAGER, "ResolveHostname", name("192.0.2.9", 0)).await.unwrap();
    assert_eq!(literal[0], Value::Array("(iiay)".into(), vec![address([192, 0, 2, 9])]));
    let arguments = vec![Value::I32(0), Value::I32(2), Value::bytes(&[192, 0, 2, 1]), Value::U64(0)];
    let names = bus.call(MANAGER, "ResolveAddress", arguments).await.unwrap();
    assert_eq!(names[0].items().unwrap()[0], Value::Struct(vec![Value::I32(0), Value::text("one.test")]));
    let arguments = |kind: u16| {
        vec![Value::I32(0), Value::text("x.test"), Value::U16(1), Value::U16(kind), Value::U64(0)]
    };
    let records = bus.call(MANAGER, "ResolveRecord", arguments(1)).await.unwrap();
    let record = records[0].items().unwrap()[0].items().unwrap()[3].as_bytes().unwrap();
    assert_eq!(record, b"\x01x\x04test\0\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
    bus.call(MANAGER, "ResolveRecord", arguments(16)).await.unwrap_err();
    bus.call(MANAGER, "FlushCaches", vec![]).await.unwrap();
}

#[tokio::test]
async fn a_name_that_is_taken_stays_where_it_is() {
    let Some(daemon) = daemon().await else { return };
    let _running = manager(&daemon).await;
    let mut second = Bus::connect(&daemon.socket).await.unwrap();
    assert!(!second.own(NAME).await.unwrap());
}
