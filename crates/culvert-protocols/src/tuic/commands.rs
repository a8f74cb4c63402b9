//! Reading the commands that come on streams in one direction.

use culvert_core::conn::read_chain;
use culvert_core::handshake::read_message;
use culvert_core::{ServeError, timeouts};
use culvert_quic::QuicStream;
use culvert_wire::{BufChain, Room};

use super::codec::{Command, MAX_COMMAND, PacketHead};

/// What a stream brought.
pub(super) enum Message {
    /// A command without payload.
    Command(Command),
    /// A packet.
    Packet(PacketHead, Vec<u8>),
    /// Something that is no command.
    Fault(ServeError),
    /// Nothing, or not all of it, as the peer broke it off or took too long.
    Nothing,
}

/// Reads a stream that holds one command.
pub(super) async fn read(stream: QuicStream) -> Message {
    match tokio::time::timeout(timeouts::HANDSHAKE, read_whole(stream)).await {
        Ok(Ok(message)) => message,
        Ok(Err(error @ ServeError::Invalid(_))) => Message::Fault(error),
        Ok(Err(_)) | Err(_) => Message::Nothing,
    }
}

async fn read_whole(mut stream: QuicStream) -> Result<Message, ServeError> {
    let mut read = BufChain::new();
    let head = match read_message(&mut stream, &mut read, MAX_COMMAND, Command::decode).await? {
        Command::Packet(head) => head,
        command => return Ok(Message::Command(command)),
    };
    let len = usize::from(head.len);
    while read.len() < len {
        let mut more = read_chain(&mut stream, Room::NONE).await?;
        if more.is_empty() {
            return Err(ServeError::Left);
        }
        read.append(&mut more);
    }
    let mut data = read.to_vec();
    data.truncate(len);
    Ok(Message::Packet(head, data))
}
