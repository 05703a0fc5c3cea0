"""Attacks on the router's public ports without a proxy in front: each attack ends in refusals,
the router stays small, and who asks properly is answered all the while."""

import socket
import struct
import sys
import time
import unittest

import http2
from attacks import GENERATE, PROMPT, AttackTest, flood, resets, send_headers_without_end
from operations import Cluster, eventually, resident_mib

WATCH = "/grpc.health.v1.Health/Watch"


class Attacked(AttackTest):
    def setUp(self):
        self.assertEqual(self.cluster.generate()[0], 0)
        self.before = resident_mib(self.router.process)

    def assert_unharmed(self, mib, what):
        """Serves, and has grown by less than `mib`."""
        grown = resident_mib(self.router.process) - self.before
        print(f"{what}: the router grew by {grown:.1f} MiB", file=sys.stderr)
        self.assertLess(grown, mib)
        code, answer = self.cluster.generate()
        self.assertEqual(code, 0, answer)

    def flood(self, frames, seconds=3):
        sent, connections = flood(lambda: http2.Connection(self.router.listen), frames, seconds)
        self.assertGreater(sent, 0)
        return sent, connections

    def test_streams_that_are_reset_at_once(self):
        sent, connections = self.flood(lambda attacker: resets(attacker, 100))
        self.assert_unharmed(32, f"{sent * 100} streams opened and reset over {connections} connections")

    def test_requests_that_are_reset_at_once(self):
        sent, connections = self.flood(lambda attacker: resets(attacker, 20, PROMPT))
        eventually(lambda: sum(row["running"] for row in self.cluster.top().values()) == 0, what="the end of what nobody waits for")
        self.assert_unharmed(48, f"{sent * 20} requests sent and reset over {connections} connections")

    def test_headers_without_end(self):
        going, sent = send_headers_without_end(http2.Connection(self.router.listen))
        self.assertFalse(going, f"{sent} bytes of headers were taken")
        self.assert_unharmed(8, f"{sent} bytes of one request's headers")

    def test_many_large_heads(self):
        head = http2.grpc_head(GENERATE) + b"".join(http2.literal(f"x-{i}", "y" * 100) for i in range(120))
        sent, connections = self.flood(lambda attacker: http2.frame(http2.HEADERS, http2.END_HEADERS, attacker.next_stream(), head))
        self.assert_unharmed(32, f"{sent} heads of {len(head)} bytes over {connections} connections")

    def test_headers_that_unpack_to_much(self):
        # One entry of 4,000 bytes in the table, and then a byte for each time it is meant.
        entry = b"\x40\x01x" + b"\x7f" + bytes([4000 - 127 & 0x7f | 0x80, 4000 - 127 >> 7]) + b"y" * 4000
        head = http2.grpc_head(GENERATE) + entry + b"\xbe" * 8000
        sent, connections = self.flood(lambda attacker: http2.frame(http2.HEADERS, http2.END_HEADERS, attacker.next_stream(), head))
        self.assert_unharmed(32, f"{sent} heads of 32 MB each, packed into {len(head)} bytes, over {connections} connections")

    def test_pings_and_settings_whose_answers_nobody_reads(self):
        for name, frame in (("pings", http2.frame(http2.PING, 0, 0, b"12345678")), ("settings", http2.frame(http2.SETTINGS, 0, 0)),
                            ("windows", http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))):
            with self.subTest(name):
                attacker, batch, sent, end = socket.create_connection(self.router.listen.split(":")), frame * 1000, 0, time.monotonic() + 2
                attacker.settimeout(0.5)
                try:
                    attacker.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
                    while time.monotonic() < end:
                        attacker.sendall(batch)
                        sent += 1000
                except OSError:
                    pass  # closed, or nothing more is read
                self.assert_unharmed(8, f"{sent} {name}")
                attacker.close()

    def test_a_body_of_a_gigabyte(self):
        attacker = http2.Connection(self.router.listen)
        stream, piece, sent = attacker.next_stream(), b"\xff" * 16384, 0
        going = attacker.send(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.grpc_head(GENERATE)))
        while going and stream not in attacker.resets and sent < 1 << 30:
            going = attacker.send(http2.frame(http2.DATA, 0, stream, piece))
            sent += len(piece)
        self.assertLess(sent, 16 << 20, "of a body, before it is refused")
        while going and sent < 1 << 30:  # whatever the server says
            going = attacker.send(http2.frame(http2.DATA, 0, stream, piece) * 64)
            sent += len(piece) * 64
        attacker.close()
        self.assert_unharmed(16, f"{sent} bytes of one body")

    def test_bodies_that_never_come(self):
        """Many connections, each with many streams that stay open for nothing."""
        attackers = []
        for _ in range(20):
            attacker = http2.Connection(self.router.listen)
            frames = b""
            for _ in range(100):
                frames += http2.frame(http2.HEADERS, http2.END_HEADERS, attacker.next_stream(), http2.grpc_head(GENERATE))
            attacker.send(frames)
            attackers.append(attacker)
        self.assert_unharmed(32, "2,000 requests without bodies")
        for attacker in attackers:
            attacker.close()

    def test_watches_of_health(self):
        attackers = []
        for _ in range(20):
            attacker = http2.Connection(self.router.listen)
            frames = b""
            for _ in range(100):
                stream = attacker.next_stream()
                frames += http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.grpc_head(WATCH))
                frames += http2.frame(http2.DATA, http2.END_STREAM, stream, http2.grpc_message(b""))
            attacker.send(frames)
            attackers.append(attacker)
        self.assert_unharmed(32, "2,000 watches")
        eventually(lambda: self.cluster.healthy(self.router), what="a healthy router")
        for attacker in attackers:
            attacker.close()


class WithoutDescriptors(unittest.TestCase):
    def test_it_answers_again_once_there_are_some(self):
        cluster = Cluster(prefill=1, decode=1, inside_router=["prlimit", "--nofile=256:256"])
        self.addCleanup(cluster.stop)
        for name, address in (("gRPC", cluster.router.listen), ("HTTP", cluster.http())):
            with self.subTest(name):
                host, port = address.rsplit(":", 1)
                held = [socket.create_connection((host, int(port)), timeout=20) for _ in range(600)]
                time.sleep(1)  # as an operator would see it: full for a while
                for connection in held:
                    connection.close()
                eventually(lambda: cluster.generate()[0] == 0, what="an answer after the connections are gone")


if __name__ == "__main__":
    unittest.main(verbosity=2)
