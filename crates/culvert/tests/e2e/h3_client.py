"""Asks a web server by HTTP/3, with aioquic: h3_client.py PORT METHOD PATH [BODY]. Prints the status, the fields, an empty line
and the body."""
import asyncio
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.fields, self.body = [], b""
        self.done = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event):
        for event in self.http.handle_event(event):
            if isinstance(event, HeadersReceived):
                self.fields += event.headers
            if isinstance(event, DataReceived):
                self.body += event.data
            if event.stream_ended and not self.done.done():
                self.done.set_result(None)

    async def ask(self, method, path, body):
        stream = self._quic.get_next_available_stream_id()
        head = [(b":method", method), (b":scheme", b"https"), (b":authority", b"site.test"), (b":path", path)]
        self.http.send_headers(stream, head + [(b"user-agent", b"aioquic")], end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        await asyncio.wait_for(self.done, 20)


async def main(port, method, path, body=""):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="site.test")
    configuration.verify_mode = ssl.CERT_NONE
    async with connect("127.0.0.1", int(port), configuration=configuration, create_protocol=Client) as client:
        await client.ask(method.encode(), path.encode(), body.encode())
        fields = {name.decode(): value.decode() for name, value in client.fields}
        print(fields.pop(":status"))
        for name, value in fields.items():
            print(f"{name}: {value}")
        print()
        print(client.body.decode(), end="")


asyncio.run(main(*sys.argv[1:]))
