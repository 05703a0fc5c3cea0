"""HTTP/2 frames written by hand: what no client library sends."""

import socket
import ssl
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header that enters no table, without Huffman coding; both shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def grpc_head(path, authority="localhost"):
    return b"\x83\x87" + literal(":path", path) + literal(":authority", authority) + literal("content-type", "application/grpc") \
        + literal("te", "trailers")


class Connection:
    """Over TLS to a server that speaks HTTP/2; what it sends is thrown away."""

    def __init__(self, address, ca):
        host, port = address.rsplit(":", 1)
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
        self.socket = context.wrap_socket(socket.create_connection((host, int(port)), timeout=20), server_hostname="localhost")
        assert self.socket.selected_alpn_protocol() == "h2"
        self.send(PREFACE + frame(SETTINGS, 0, 0))
        self.stream = -1

    def send(self, data):
        """False once the server has closed the connection."""
        try:
            self.socket.sendall(data)
            self.socket.setblocking(False)
            try:
                while self.socket.recv(65536):
                    pass
                return False
            except ssl.SSLWantReadError:
                return True
            finally:
                self.socket.settimeout(20)
        except OSError:
            return False

    def next_stream(self):
        self.stream += 2
        return self.stream

    def close(self):
        self.socket.close()
