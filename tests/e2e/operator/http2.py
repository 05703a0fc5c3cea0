"""HTTP/2 frames written by hand: what no client library sends."""

import socket
import ssl
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header that enters no table, without Huffman coding; both shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def grpc_head(path, authority="localhost"):
    """The header fields of a request; behind a proxy they say https."""
    return b"\x83\x87" + literal(":path", path) + literal(":authority", authority) + literal("content-type", "application/grpc") \
        + literal("te", "trailers")


def grpc_message(message):
    return b"\x00" + struct.pack(">I", len(message)) + message


class Connection:
    """To a server that speaks HTTP/2, over TLS where there is a `ca`."""

    def __init__(self, address, ca=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            assert self.socket.selected_alpn_protocol() == "h2"
        self.received, self.resets = b"", {}
        self.send(PREFACE + frame(SETTINGS, 0, 0))
        self.stream = -1

    def send(self, data):
        """False once the server has closed the connection."""
        try:
            self.socket.sendall(data)
            self.socket.setblocking(False)
            try:
                while data := self.socket.recv(65536):
                    self.note(data)
                return False
            except (ssl.SSLWantReadError, BlockingIOError):
                return True
            finally:
                self.socket.settimeout(20)
        except OSError:
            return False

    def note(self, data):
        """Keeps which streams the server has reset and why, and throws the rest away."""
        self.received += data
        while len(self.received) >= 9:
            length, (kind, _, stream) = int.from_bytes(self.received[:3], "big"), struct.unpack(">BBI", self.received[3:9])
            if len(self.received) < 9 + length:
                return
            if kind == RST_STREAM:
                self.resets[stream] = int.from_bytes(self.received[9:13], "big")
            self.received = self.received[9 + length:]

    def next_stream(self):
        self.stream += 2
        return self.stream

    def close(self):
        self.socket.close()
