//! The disguises, byte by byte.

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::duplex;
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test]
async fn http_goes_before_the_first_write_and_the_answer_is_skipped() {
    for cut in [1, 7, 1000] {
        let (near, mut far) = duplex(1 << 16);
        let mut conn = ObfsHttp::new(Box::new(near), "example.com", 8388);
        write_chain(&mut conn, &mut BufChain::copied(b"first")).await.unwrap();
        let sent = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
        let sent = String::from_utf8(sent).unwrap();
        assert!(
            sent.starts_with("GET / HTTP/1.1\r\nHost: example.com:8388\r\nUser-Agent: curl/7."),
            "{sent}"
        );
        assert!(
            sent.contains("\r\nContent-Length: 5\r\nConnection: Upgrade\r\nSec-Websocket-Key: "),
            "{sent}"
        );
        assert!(sent.ends_with("==\r\nUpgrade: websocket\r\n\r\nfirst"), "{sent}");
        conn.write_all(b"second").await.unwrap();
        assert_eq!(read_chain(&mut far, Room::NONE).await.unwrap().to_vec(), b"second");

        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nanswer";
        let reading = async {
            let mut answer = [0; 6];
            conn.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"answer");
        };
        let cuts = [cut];
        let writing = crate::testing::write_in_pieces(&mut far, answer, &cuts);
        let ((), written) = tokio::join!(reading, writing);
        written.unwrap();
    }
}

#[tokio::test]
async fn tls_hides_the_first_write_in_a_hello_and_the_rest_in_records() {
    let (near, mut far) = duplex(1 << 16);
    let mut conn = ObfsTls::new(Box::new(near), "example.com".to_owned());
    write_chain(&mut conn, &mut BufChain::copied(b"first")).await.unwrap();
    let sent = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
    let (n, s) = (5, 11);
    assert_eq!(sent.len(), 5 + 212 + n + s);
    assert_eq!(sent[..5], [0x16, 3, 1, 0, (212 + n + s) as u8]);
    let at = 5 + 4 + 2 + 32 + 1 + 32 + 2 + 56 + 2 + 2;
    assert_eq!(&sent[at..at + 4 + n], b"\0\x23\0\x05first");
    assert_eq!(&sent[at + 4 + n..at + 4 + n + 9 + s], b"\0\0\0\x10\0\x0e\0\0\x0bexample.com");
    let long: Vec<u8> = (0..40_000u32).map(|at| at as u8).collect();
    write_chain(&mut conn, &mut BufChain::copied(&long)).await.unwrap();
    let mut rest = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
    let mut found: Vec<u8> = Vec::new();
    while rest.len() >= 5 {
        assert_eq!(rest[..3], [0x17, 3, 3]);
        let len = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
        assert!(len <= 16_384);
        found.extend(&rest[5..5 + len]);
        rest.drain(..5 + len);
    }
    assert!(rest.is_empty() && found == long);

    let mut answer = vec![0x16; 96];
    answer.extend([0x14, 3, 3, 0, 1, 1, 0x16, 3, 3, 0, 3]);
    answer.extend(b"abc\x17\x03\x03\0\x02de");
    crate::testing::write_in_pieces(&mut far, &answer, &[1, 50, 3]).await.unwrap();
    let mut read = [0; 5];
    conn.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"abcde");
    drop(far);
    assert_eq!(conn.read(&mut read).await.unwrap(), 0);
}

#[tokio::test]
async fn v2ray_makes_each_stream_the_one_session_of_a_connection() {
    let (near, mut far) = duplex(1 << 20);
    let mut conn = OneSession::new(Box::new(near));
    write_chain(&mut conn, &mut BufChain::copied(b"first")).await.unwrap();
    write_chain(&mut conn, &mut BufChain::copied(&[7; 20_000])).await.unwrap();
    let mut sent = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
    let opening = b"\0\x14\0\0\x01\x01\x01\x02\x9a\x02\x0bv1.mux.cool\0\x05first";
    assert_eq!(sent[..opening.len()], opening[..]);
    sent.drain(..opening.len());
    let mut count = 0;
    while !sent.is_empty() {
        assert_eq!(sent[..6], *b"\0\x04\0\0\x02\x01");
        let len = usize::from(u16::from_be_bytes([sent[6], sent[7]]));
        assert!(sent[8..8 + len].iter().all(|byte| *byte == 7));
        sent.drain(..8 + len);
        count += len;
    }
    assert_eq!(count, 20_000);
    let answer = b"\0\x04\0\0\x02\x01\0\x03abc\0\x04\0\0\x04\0\0\x04\0\0\x02\x01\0\x02de\0\x04\0\0\x03\0more";
    for cut in [1, 5, 100] {
        let (near, mut far) = duplex(1 << 20);
        let mut conn = OneSession::new(Box::new(near));
        let cuts = [cut];
        let mut all = Vec::new();
        let (written, read) = tokio::join!(
            crate::testing::write_in_pieces(&mut far, answer, &cuts),
            conn.read_to_end(&mut all)
        );
        written.unwrap();
        assert_eq!((read.unwrap(), &*all), (5, &b"abcde"[..]));
    }
}
