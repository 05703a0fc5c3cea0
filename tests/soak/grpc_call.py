"""The same over gRPC with a deadline: `Inference.Generate`, by frames and fields written by hand."""

import socket
import struct
import time

import http2
from answers import COMPLETE, DEADLINE, LOST, STUCK, STUCK_S, UNREACHED, Answer, Choice

GENERATE = "/penstock.v1.Inference/Generate"
FINISH = {1: "stop", 2: "length"}
WINDOW_BYTES = 1 << 24


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(int(value))


def real(field, value):
    return varint(field << 3 | 5) + struct.pack("<f", value)


def part(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def message_of(request, salt, name):
    """GenerateRequest with the fields of a completion."""
    body = request.body
    sampling = real(1, body["temperature"]) + number(8, body["seed"]) + number(10, body["n"])
    for field, key in ((2, "top_p"), (5, "frequency_penalty"), (6, "presence_penalty"), (7, "repetition_penalty")):
        if key in body:
            sampling += real(field, body[key])
    if "top_k" in body:
        sampling += number(3, body["top_k"])
    stop = number(1, body["max_tokens"]) + b"".join(part(3, text.encode()) for text in body.get("stop", ())) + number(5, body["ignore_eos"])
    return part(2, body["prompt"].encode()) + part(5, sampling) + part(6, stop) + part(7, number(2, 1)) + part(8, part(1, salt.encode())) \
        + part(10, name.encode())


def fields(data):
    """(field, value) of a message; a value is a number or bytes."""
    at = 0

    def read_varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
    while at < len(data):
        tag = read_varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, read_varint()
            continue
        size = read_varint() if kind == 2 else {1: 8, 5: 4}[kind]
        yield tag >> 3, data[at:at + size]
        at += size


def numbers(data):
    """Of a packed repeated field."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value)
            value, shift = 0, 0
    return found


class GrpcCall:
    def __init__(self, address, request, name, salt, timeout_s):
        self.address, self.timeout_s = address, timeout_s
        self.message = message_of(request, salt, name)
        self.wanted, self.choices = request.choices, {}

    def run(self):
        host, port = self.address.rsplit(":", 1)
        try:
            self.socket = socket.create_connection((host, int(port)), timeout=STUCK_S)
        except OSError as error:
            return Answer(UNREACHED, {}, repr(error), 1)
        self.start = time.monotonic()
        try:
            self.ask()
            outcome, detail = self.read()
        except TimeoutError:
            outcome, detail = STUCK, f"no frame for {STUCK_S} s"
        except OSError as error:
            outcome, detail = LOST, repr(error)
        finally:
            self.socket.close()
        return Answer(outcome, self.choices, detail, 0.2 if outcome == LOST else 0)

    def ask(self):
        head = http2.grpc_head(GENERATE) + http2.literal("grpc-timeout", f"{int(self.timeout_s * 1000)}m")
        settings = struct.pack(">HI", 4, WINDOW_BYTES)  # SETTINGS_INITIAL_WINDOW_SIZE
        self.socket.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, settings)
                            + http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_BYTES))
                            + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, head)
                            + http2.frame(http2.DATA, http2.END_STREAM, 1, http2.grpc_message(self.message)))

    def read(self):
        """Until the stream ends; the status is in compressed trailers, so what has arrived and when must tell."""
        file, data = self.socket.makefile("rb"), b""
        end = self.start + min(self.timeout_s, STUCK_S) + STUCK_S
        while True:
            if time.monotonic() > end:  # The server's pings are frames, too.
                return STUCK, f"no end {time.monotonic() - self.start:.0f} s after the request"
            head = file.read(9)
            if len(head) < 9:
                return LOST, "the connection ended"
            length, (kind, flags, stream) = int.from_bytes(head[:3], "big"), struct.unpack(">BBI", head[3:])
            payload = file.read(length)
            if kind == http2.SETTINGS and not flags & http2.ACK:
                self.socket.sendall(http2.frame(http2.SETTINGS, http2.ACK, 0))
            elif kind == http2.PING and not flags & http2.ACK:
                self.socket.sendall(http2.frame(http2.PING, http2.ACK, 0, payload))
            if stream != 1:
                continue
            if kind == http2.DATA:
                data = self.take(data + payload)
            if kind == http2.RST_STREAM or kind in (http2.DATA, http2.HEADERS) and flags & http2.END_STREAM:
                return self.end()

    def end(self):
        if len(self.choices) == self.wanted and all(choice.finish for choice in self.choices.values()):
            return COMPLETE, ""
        if time.monotonic() - self.start >= self.timeout_s:
            return DEADLINE, ""
        # Refused before it, with a status: also when the deadline cannot be met.
        return "gRPC error before the deadline", f"after {time.monotonic() - self.start:.3f} of {self.timeout_s} s"

    def take(self, data):
        """Whole messages of `data`; returns the rest."""
        while len(data) >= 5 and len(data) >= 5 + (size := struct.unpack(">I", data[1:5])[0]):
            for kind, event in fields(data[5:5 + size]):
                self.add(kind, event)
            data = data[5 + size:]
        return data

    def add(self, kind, event):
        index, tokens, text, finish = 0, [], "", None
        for field, value in fields(event):
            if field == 1:
                index = value
            elif kind == 2 and field == 3:
                tokens += numbers(value)
            elif kind == 2 and field == 4:
                text = value.decode()
            elif kind == 3 and field == 2:
                finish = FINISH[value]
        choice = self.choices.setdefault(index, Choice())
        choice.tokens += tokens
        choice.text += text
        choice.finish = finish or choice.finish
