use bytes::Bytes;
use culvert_config::options::transport::{HttpTransport, TransportKind};
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::testing::{Caught, server};
use crate::testing::World;

/// The server of `http` takes HTTP/2 without TLS; its client speaks it with TLS only, so this one is the library's.
#[tokio::test]
async fn bodies_are_streams() {
    let options = HttpTransport { path: "/h".into(), ..HttpTransport::default() };
    let world = World::new();
    let (server, mut caught) = server(TransportKind::Http(Box::new(options)));
    let (conn, _serving) = world.serve(&server);
    let (mut send, connection) = h2::client::handshake(conn).await.unwrap();
    tokio::spawn(connection);
    let (response, _) = send.send_request(Request::put("https://x/other").body(()).unwrap(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 404);
    let (response, mut body) =
        send.send_request(Request::put("https://x/h/more?q").body(()).unwrap(), false).unwrap();
    let mut response = response.await.unwrap();
    assert_eq!(response.headers()["cache-control"], "no-store");
    body.send_data(Bytes::from_static(b"up"), true).unwrap();
    let Caught { mut conn, .. } = caught.recv().await.unwrap();
    let mut up = Vec::new();
    conn.read_to_end(&mut up).await.unwrap();
    assert_eq!(up, b"up");
    conn.write_all(b"down").await.unwrap();
    conn.shutdown().await.unwrap();
    let mut down = Vec::new();
    while let Some(data) = response.body_mut().data().await {
        down.extend(data.unwrap());
    }
    assert_eq!(down, b"down");
}
