"""Attacks by HTTP/2 frames written by hand, on a router as it is (attack_test.py) and behind a proxy (proxy_test.py)."""

import time
import unittest

import http2
from operations import Cluster

GENERATE = "/penstock.v1.Inference/Generate"
PROMPT = http2.grpc_message(b"\x12\x04Once")  # GenerateRequest.text


class AttackTest(unittest.TestCase):
    """One router and a worker of each role, which the tests of a class share."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill=1, decode=1)
        cls.router = cls.cluster.router

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()


def flood(connect, frames, seconds):
    """Sends what `frames(connection)` gives again and again, over a new connection when one is closed. Returns how many times
    it was sent on a connection that stayed open, and over how many connections."""
    sent, connections, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            attacker = connect()
        except OSError:
            continue  # A refused connection is a good answer.
        connections += 1
        while time.monotonic() < end and attacker.send(frames(attacker)):
            sent += 1
        attacker.close()
    return sent, connections


def resets(attacker, count, body=b""):
    """Frames of `count` requests, each of which is reset at once."""
    head, cancel, frames = http2.grpc_head(GENERATE), http2.CANCEL.to_bytes(4, "big"), b""
    for _ in range(count):
        stream = attacker.next_stream()
        frames += http2.frame(http2.HEADERS, http2.END_HEADERS, stream, head)
        if body:
            frames += http2.frame(http2.DATA, http2.END_STREAM, stream, body)
        frames += http2.frame(http2.RST_STREAM, 0, stream, cancel)
    return frames


def send_headers_without_end(attacker, bytes_max=64 << 20):
    """Sends one request's headers until the server closes the connection. Returns whether it is still open, and the bytes."""
    more = b"".join(http2.literal(f"x-{i}", "y" * 100) for i in range(100))
    going, sent = attacker.send(http2.frame(http2.HEADERS, 0, attacker.next_stream(), http2.grpc_head(GENERATE))), 0
    while going and sent < bytes_max:
        going = attacker.send(http2.frame(http2.CONTINUATION, 0, attacker.stream, more))
        sent += len(more)
    attacker.close()
    return going, sent
