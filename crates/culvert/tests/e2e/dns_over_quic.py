"""A name server of HTTP/3 and of DNS over QUIC, with aioquic, before one that speaks TCP:
dns_over_quic.py PORT UPSTREAM CERTIFICATE KEY."""
import asyncio
import sys

from aioquic.asyncio import serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, StreamDataReceived

UPSTREAM = int(sys.argv[2])


async def ask(message):
    reader, writer = await asyncio.open_connection("127.0.0.1", UPSTREAM)
    writer.write(len(message).to_bytes(2, "big") + message)
    reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
    writer.close()
    return reply


class Server(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http, self.heads, self.bodies = None, {}, {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated) and event.alpn_protocol == "h3":
            self.http = H3Connection(self._quic)
        if self.http is not None:
            for event in self.http.handle_event(event):
                if isinstance(event, HeadersReceived):
                    self.heads[event.stream_id] = dict(event.headers)
                if isinstance(event, DataReceived):
                    self.take(event.stream_id, event.data, event.stream_ended)
        elif isinstance(event, StreamDataReceived):
            self.take(event.stream_id, event.data, event.end_stream)

    def take(self, stream, data, ended):
        body = self.bodies.setdefault(stream, bytearray())
        body += data
        if ended:
            asyncio.ensure_future(self.answer(stream, bytes(self.bodies.pop(stream))))

    async def answer(self, stream, body):
        if self.http is None:
            assert int.from_bytes(body[:2], "big") == len(body) - 2
            reply = await ask(body[2:])
            self._quic.send_stream_data(stream, len(reply).to_bytes(2, "big") + reply, end_stream=True)
        else:
            head = self.heads.pop(stream)
            known = head[b":path"] == b"/dns-query" and head[b"content-type"] == b"application/dns-message"
            fields = [(b":status", b"200" if known else b"404"), (b"content-type", b"application/dns-message")]
            reply = await ask(body) if known else b""
            self.http.send_headers(stream, fields)
            self.http.send_data(stream, reply, end_stream=True)
        self.transmit()


async def main():
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3", "doq"])
    configuration.load_cert_chain(sys.argv[3], sys.argv[4])
    await serve("127.0.0.1", int(sys.argv[1]), configuration=configuration, create_protocol=Server)
    print("ready", file=sys.stderr, flush=True)
    await asyncio.Future()


asyncio.run(main())
