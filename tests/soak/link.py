"""The way to a worker's private port: a TCP proxy that can cut, refuse, hold back, delay and damage what goes over it."""

import contextlib
import socket
import threading

CHUNK_BYTES = 64 << 10
DAMAGED_EVERY = 8  # chunks: some messages arrive whole, so that connections get beyond their handshake


class Link:
    """Listens at `address` and forwards to `target`. One thread accepts; each connection has two that forward."""

    PASS, REFUSE, SILENT, DELAY, DAMAGE = "pass", "refuse", "silent", "delay", "damage"

    def __init__(self, target):
        self.target = split(target)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = "%s:%d" % self.listener.getsockname()
        self.changed = threading.Condition()
        self.mode, self.delay_s, self.chunks, self.closed = self.PASS, 0, 0, False
        self.open = set()  # sockets
        threading.Thread(target=self.accept, daemon=True).start()

    def set(self, mode, delay_s=0):
        with self.changed:
            self.mode, self.delay_s, self.chunks = mode, delay_s, 0
            self.changed.notify_all()

    def cut(self):
        """Ends every connection, as a middlebox does that forgets them."""
        with self.changed:
            sockets = list(self.open)
        for end in sockets:
            shut(end)

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        shut(self.listener)
        self.listener.close()
        self.cut()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.connect, args=(near,), daemon=True).start()

    def connect(self, near):
        try:
            if self.mode == self.REFUSE:
                raise ConnectionRefusedError
            far = socket.create_connection(self.target, timeout=5)
            far.settimeout(None)
        except OSError:
            near.close()
            return
        ends = (near, far)
        with self.changed:
            self.open.update(ends)
        for end in ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        forward = threading.Thread(target=self.forward, args=ends, daemon=True)
        forward.start()
        self.forward(far, near)
        forward.join()
        with self.changed:
            self.open.difference_update(ends)
        for end in ends:
            end.close()

    def forward(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(self.passed(data))
        shut(sink)
        shut(source)

    def passed(self, data):
        """What becomes of `data`, once it may go on."""
        with self.changed:
            if self.mode == self.DELAY:
                self.changed.wait_for(lambda: self.mode != self.DELAY or self.closed, self.delay_s)
            self.changed.wait_for(lambda: self.mode != self.SILENT or self.closed)
            if self.mode != self.DAMAGE:
                return data
            self.chunks += 1
            if self.chunks % DAMAGED_EVERY != 1:
                return data
        damaged = bytearray(data)
        damaged[len(damaged) // 2] ^= 0x10
        return bytes(damaged)


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def shut(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
