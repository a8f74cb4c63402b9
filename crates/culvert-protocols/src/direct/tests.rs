//! The inbound over loopback sockets, both halves; the outbound's way with early data.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_config::options::inbound::direct::DirectInbound;
use culvert_config::value::Networks;
use culvert_core::{Inbound, Network, PacketBatch, Tag};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::InboundCx;
use crate::table::BuildInbound;
use crate::testing::{World, recv_packet, send_packets, target};

async fn start(world: &World, options: &DirectInbound) -> (Arc<dyn Inbound>, Vec<SocketAddr>) {
    let inbound = options
        .build(InboundCx {
            tag: Tag::new("direct", "in"),
            dialer: &crate::testing::no_dialer,
            networks: None,
            marks: &[],
        })
        .unwrap();
    inbound.start(&world.dispatch).await.unwrap();
    let addresses = inbound.local_addrs();
    (inbound, addresses)
}

fn overriding(address: &str, port: u16) -> DirectInbound {
    DirectInbound { override_address: address.to_owned(), override_port: port, ..DirectInbound::default() }
}

#[tokio::test]
async fn streams_go_where_the_override_says() {
    for (options, expected) in [
        (overriding("target.test", 443), "target.test:443".to_owned()),
        (overriding("", 443), "127.0.0.1:443".to_owned()),
        (overriding("[::1]", 0), "[::1]:PORT".to_owned()),
        (overriding("", 0), "127.0.0.1:PORT".to_owned()),
    ] {
        let mut world = World::new();
        let (inbound, addresses) = start(&world, &options).await;
        assert_eq!(addresses.len(), 2);
        assert_eq!(addresses[0], addresses[1], "both halves have the same port");
        let mut client = TcpStream::connect(addresses[0]).await.unwrap();
        let arrived = world.next().await;
        let expected = expected.replace("PORT", &addresses[0].port().to_string());
        assert_eq!(arrived.session.target, target(&expected));
        let mut far = arrived.stream();
        far.write_all(b"banner").await.unwrap();
        let mut banner = [0; 6];
        client.read_exact(&mut banner).await.unwrap();
        assert_eq!(&banner, b"banner");
        inbound.close().await;
        assert!(TcpStream::connect(addresses[0]).await.is_err());
    }
}

#[tokio::test]
async fn each_client_has_its_association() {
    let mut world = World::new();
    let (inbound, addresses) = start(&world, &overriding("target.test", 53)).await;
    let mut far = Vec::new();
    let mut clients = Vec::new();
    for number in 0..3u8 {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(addresses[1]).await.unwrap();
        client.send(&[number]).await.unwrap();
        let arrived = world.next().await;
        assert_eq!(
            (arrived.session.network, arrived.session.target.to_string()),
            (Network::Udp, "target.test:53".into())
        );
        assert_eq!(arrived.session.source, client.local_addr().unwrap());
        far.push(arrived.packets());
        clients.push(client);
    }
    for (number, far) in far.iter_mut().enumerate() {
        clients[number].send(b"second").await.unwrap();
        let mut waiting = PacketBatch::new();
        assert_eq!(recv_packet(far, &mut waiting).await, ("target.test:53".into(), vec![number as u8]));
        assert_eq!(recv_packet(far, &mut waiting).await.1, b"second");
        send_packets(far, &[("192.0.2.9:9", &[number as u8; 3])]).await;
        let mut answer = [0; 9];
        let len = clients[number].recv(&mut answer).await.unwrap();
        assert_eq!(&answer[..len], &[number as u8; 3]);
    }
    // An association that has ended begins anew with the next packet.
    drop(far);
    loop {
        clients[0].send(b"again").await.unwrap();
        if let Ok(mut arrived) = tokio::time::timeout(std::time::Duration::from_millis(20), world.next())
            .await
            .map(|it| it.packets())
        {
            assert_eq!(recv_packet(&mut arrived, &mut PacketBatch::new()).await.1, b"again");
            break;
        }
    }
    inbound.close().await;
    UdpSocket::bind(addresses[1]).await.unwrap();
}

#[tokio::test]
async fn network_leaves_one_half_out() {
    let world = World::new();
    for network in [culvert_config::value::Network::Tcp, culvert_config::value::Network::Udp] {
        let options = DirectInbound { network: Networks::only(network), ..overriding("a.test", 1) };
        let (inbound, addresses) = start(&world, &options).await;
        assert_eq!(addresses.len(), 1);
        assert_eq!(inbound.stream_server().is_some(), network == culvert_config::value::Network::Tcp);
        inbound.close().await;
    }
}
