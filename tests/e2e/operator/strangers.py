"""Programs that reach the ports of a cluster and are neither its clients nor its members: where they can knock, what they
say, and what comes back. For stranger_test.py and scripts/stranger-cost."""

import collections
import contextlib
import errno
import json
import os
import pathlib
import random
import re
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import typing

import http2

LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
ACCEPTS = 0x10000  # __SO_ACCEPTCON in /proc/net/unix
WIRE, H2 = "penstock-wire/2", "h2"  # ALPN names
ALERT, HANDSHAKE = 0x15, 0x16  # kinds of TLS records
NOBODY = 65534
ELSEWHERE = "127.0.0.2"  # so that strangers who stay have another address than clients
IP_BIND_ADDRESS_NO_PORT = 24


class Port(typing.NamedTuple):
    server: str  # the name of its process
    host: str
    port: int

    def __str__(self):
        return f"{self.server}, port {self.port}"


def sockets_of(pid):
    """The inodes of a process's sockets."""
    found = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
                found.add(match.group(1))
    return found


def ports_of(name, pid):
    """All TCP ports on which a process listens."""
    mine, found = sockets_of(pid), []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != LISTENS or fields[9] not in mine:
                continue
            address, port = fields[1].split(":")
            host = socket.inet_ntop(family, b"".join(struct.pack("=I", int(address[i:i + 8], 16)) for i in range(0, len(address), 8)))
            found.append(Port(name, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port, 16)))
    return found


def unix_names_of(pid):
    """The addresses of the unix sockets on which a process listens; a leading @ stands for the abstract namespace."""
    mine, found = sockets_of(pid), []
    for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & ACCEPTS and fields[6] in mine:
            found.append(fields[7])
    return found


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# Messages that strangers send.


def ucx_message():
    """The 13 bytes that end a process with a TCP port of Debian's UCX: the magic number, and a message of an unknown kind."""
    return struct.pack("<Q", 0xCAFEBABE12345678) + b"\x7f" + struct.pack("<I", 0)


def ucx_put(address, more=0):
    """UCX's magic number, and a write to an address of the process that reads it (uct_tcp_am_hdr, uct_tcp_ep_put_req_hdr), of
    which `more` bytes do not come."""
    text = b"stranger was in!"
    return struct.pack("<QBIQQI", 0xCAFEBABE12345678, 33, 20, address, len(text) + more, 1) + text


def wire_hello():
    """The first packet of a lane, to a wire of another name."""
    return struct.pack("<IIQQQII88s", 0x32575350, 1, 2, 0, 0, 0, 32, b"0" * 32)


def link_hello():
    """The first bytes of a link's own connection, of a link that was told to nobody."""
    return struct.pack("<II16s32s8x", 0x32445350, 2, bytes(range(16)), bytes(32))


def client_hello():
    """The first record of a TLS handshake."""
    context, into, out = anonymous(), ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(into, out, server_hostname="localhost").do_handshake()
    return out.read()


def zeromq_subscriber():
    """A subscriber of everything, in ZMTP 3.0."""
    greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00NULL" + bytes(48)
    return greeting + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB" + b"\x00\x01\x01"


def grpc_call(path, body):
    """A whole connection with one call; without a `body`, one that the caller never sends."""
    data = b"" if body is None else http2.frame(http2.DATA, http2.END_STREAM, 1, body)
    return http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0) + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.grpc_head(path)) + data


def http1_post():
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{\"prompt\": \"One"


def openings():
    """The proper beginning of each protocol that a port of ours speaks."""
    call = grpc_call("/penstock.v1.WorkerStatus/Watch", None) + http2.frame(http2.DATA, 0, 1, b"\x00\x00\x00\x10\x00abc")
    return [client_hello(), call, http1_post(), wire_hello(), link_hello(), ucx_put(0x10), zeromq_subscriber()]


def garbage(seed):
    """Bytes of every size class, noise and constant ones, with and without the magic numbers by which protocols are told apart."""
    pick = random.Random(seed)
    magics = [b"", b"PSW2", b"PSD2", b"PSF2", b"\x16\x03\x01\x40\x00", b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/1.1\r\n", ucx_message()[:8]]
    made = []
    for size in (1, 3, 4, 5, 31, 63, 64, 65, 127, 128, 129, 1000, 4096, 16385, 65537, 1 << 20):
        made.append(pick.randbytes(size))
        made.append((pick.choice(magics) + pick.choice((b"\0", b"\xff")) * size)[:max(size, 24)])
    return made


def junk_frames(seed):
    """HTTP/2 connections that break the protocol, each in another way."""
    pick = random.Random(seed)
    begin = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0)
    head = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.grpc_head("/penstock.v1.WorkerStatus/Watch"))
    broken = [
        http2.frame(http2.DATA, 0, 0, b"x"),  # data of no stream
        http2.frame(http2.SETTINGS, 0, 0, b"12345"),  # settings that are cut
        http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 5, 1)),  # frames of one byte
        http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 0)),
        head + http2.frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 0x7fffffff)) * 2,
        http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"x"),  # of no headers
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff" * 200),  # headers that no table has
        http2.frame(http2.HEADERS, http2.END_HEADERS, 2, http2.grpc_head("/")),  # a stream of the server's
        http2.frame(http2.HEADERS, http2.END_HEADERS | 8, 1, b"\xff"),  # more padding than there is
        head + http2.frame(http2.DATA, http2.END_STREAM, 1, b"\x01\xff\xff\xff\xff"),  # a compressed message of 4 GiB
        head + http2.frame(http2.RST_STREAM, 0, 1, b"123"),
        http2.frame(http2.GOAWAY, 0, 0, b"1"),
        b"\xff\xff\xff" + bytes(6),  # a frame of 16 MiB
        b"".join(http2.frame(pick.randrange(16), pick.randrange(256), pick.randrange(9), pick.randbytes(pick.randrange(60))) for _ in range(40)),
    ]
    return [begin + frames for frames in broken] + [http2.PREFACE[:-1] + b"x", http2.PREFACE * 3]


def grpc_methods(folder):
    """/package.Service/Method of all that the .proto files name."""
    found = []
    for file in sorted(folder.glob("*.proto")):
        text = re.sub(r"//.*", "", file.read_text())
        package = re.search(r"^package\s+([\w.]+);", text, re.M)
        for service in re.finditer(r"^service\s+(\w+)\s*\{(.*?)^\}", text, re.M | re.S):
            for method in re.findall(r"\brpc\s+(\w+)", service.group(2)):
                found.append(f"/{package.group(1)}.{service.group(1)}/{method}")
    return found


# How they say it.


def anonymous():
    """TLS of a caller that believes every server and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([WIRE, H2, "http/1.1"])
    return context


def bearer(folder):
    """TLS of a caller that has the certificate in `folder`."""
    context = anonymous()
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def connect(port, context=None, alpn=None, patience_s=1):
    """A connection; over TLS where there is a `context`. None where the handshake fails."""
    plain = socket.create_connection((port.host, port.port), timeout=patience_s)
    if context is None:
        return plain
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except OSError:  # ssl.SSLError is one, too
        plain.close()
        return None


def say(port, data, context=None, alpn=None, patience_s=0.1, enough=lambda received: False):
    """Says it, and returns what comes back until the port closes the connection, `enough` has come, or nothing more comes for
    a while."""
    connection, received = connect(port, context, alpn, max(1, patience_s)), b""
    if connection is None:
        return received
    with connection:
        connection.settimeout(2)
        with contextlib.suppress(OSError):  # closed before it was all said
            connection.sendall(data)
        connection.settimeout(patience_s)
        with contextlib.suppress(OSError):
            while not enough(received) and len(received) < 1 << 16 and (more := connection.recv(65536)):
                received += more
    return received


def reset(port, data):
    """Says it, and cuts the connection by a reset."""
    connection = connect(port)
    with contextlib.suppress(OSError):
        connection.sendall(data)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answered(received):
    """Whether there is the head of an answer in HTTP/2 frames."""
    while len(received) >= 9:
        if received[3] == http2.HEADERS:
            return True
        received = received[9 + int.from_bytes(received[:3], "big"):]
    return False


def refusal():
    """Why no packets can be recorded, and no other users played, here; None where they can."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM).close()
    except OSError as error:
        return f"packet sockets: {error}"
    return None if os.geteuid() == 0 else "users: not root"


class Recorder:
    """The first bytes that callers of loopback say on each connection, as a process that may open packet sockets sees them."""

    HOST, EACH_MAX = 0, 16384  # PACKET_HOST: each packet of loopback is also seen as outgoing
    BUFFER_BYTES = 64 << 20
    RCVBUFFORCE = 33  # SO_RCVBUFFORCE: more than net.core.rmem_max

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.BUFFER_BYTES)
        with contextlib.suppress(PermissionError):  # without CAP_NET_ADMIN the buffer stays smaller
            self.socket.setsockopt(socket.SOL_SOCKET, self.RCVBUFFORCE, self.BUFFER_BYTES)
        self.socket.bind(("lo", 0x0800))
        self.socket.settimeout(0.1)
        self.flows = {}  # (port called, port of the caller): sequence number and bytes
        self.last_words = os.urandom(16)  # a datagram that ends the record
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        packet = b""
        while not packet.endswith(self.last_words):
            try:
                packet, place = self.socket.recvfrom(1 << 17)
            except TimeoutError:
                continue
            if place[2] == self.HOST and packet[9] == socket.IPPROTO_TCP:
                self.note(packet[4 * (packet[0] & 15):])

    def note(self, segment):
        caller, called, sequence = struct.unpack(">HHI", segment[:8])
        payload, flags = segment[4 * (segment[12] >> 4):], segment[13]
        if flags & 0x12 == 2:  # SYN without ACK
            self.flows[called, caller] = [sequence + 1 & 0xffffffff, b""]
        elif payload and (flow := self.flows.get((called, caller))) and flow[0] == sequence and len(flow[1]) < self.EACH_MAX:
            flow[0] = sequence + len(payload) & 0xffffffff
            flow[1] += payload

    def stop(self):
        """Returns when all that has been said until now is noted. May be called again."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.bind(("127.0.0.1", 0))
            while self.thread.is_alive():
                last.sendto(self.last_words, last.getsockname())
                self.thread.join(0.1)
        self.socket.close()

    def said_to(self, port):
        return [data[:self.EACH_MAX] for (called, _), (_, data) in self.flows.items() if called == port.port and data]


# Certificates.


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_ca(folder, name):
    folder.mkdir()
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", folder / "ca.key", "-out", folder / "ca.crt")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", folder / "tls.key",
            "-out", folder / "tls.csr")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    openssl("x509", "-req", "-in", folder / "tls.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2",
            "-out", folder / "tls.crt", "-extfile", folder / "names")
    return folder


# Another user of the same machine.

OTHER_USER = r"""
import ctypes, json, os, socket, sys
asked, found = json.load(sys.stdin), []
os.setgroups([])
os.setgid(asked["uid"])
os.setuid(asked["uid"])
libc = ctypes.CDLL(None, use_errno=True)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
for path in asked["files"]:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(path, flags))
            found.append(f"opened {path}")
        except PermissionError:
            pass
for pid, address in asked["processes"]:
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        buffer = ctypes.create_string_buffer(b"stranger was in!", 16)
        here, there = Piece(ctypes.addressof(buffer), 16), Piece(address, 16)
        call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
        call.restype = ctypes.c_ssize_t
        if call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != -1:
            found.append(f"{call.__name__} of process {pid}")
for name in asked["names"]:
    for words in (bytes.fromhex(asked["words"]), os.urandom(128)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(20)
            try:
                stranger.connect("\0" + name[1:] if name.startswith("@") else name)
                stranger.send(words)
                if answer := stranger.recv(4096):
                    found.append(f"an answer of {len(answer)} bytes from {name}")
            except (PermissionError, ConnectionError):
                pass
            except TimeoutError:
                found.append(f"a connection to {name}")
json.dump(found, sys.stdout)
"""


def what_can(uid, files, processes, names):
    """The parts that a process of user `uid` reaches of `files`, of the memory of `processes` (pid and an address), and of the
    unix sockets `names`."""
    asked = {"uid": uid, "files": [str(file) for file in files], "processes": processes, "names": names, "words": wire_hello().hex()}
    done = subprocess.run([sys.executable, "-c", OTHER_USER], input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def environment_at(pid):
    """The address of a process's environment: memory that nobody changes, and that /proc/PID/environ shows."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[47])  # env_start: field 50, counted from 1, of which two are before the name's end


def environment(pid):
    return pathlib.Path(f"/proc/{pid}/environ").read_bytes()


# Strangers that stay: a program of its own.


class Crowd:
    """Holds `count` connections to `ports` in turn, and opens another for each that is closed, at most `per_s` a second. Each
    says `words`, a byte every `gap_s` seconds, or all at once where there is no gap."""

    def __init__(self, ports, count, per_s, words=lambda number: b"", gap_s=0):
        self.ports, self.count, self.per_s, self.words, self.gap_s = ports, count, per_s, words, gap_s
        self.open, self.opened, self.closed, self.failed = {}, 0, 0, 0  # descriptor: socket, and what it has yet to say
        self.poll = select.epoll()

    def add(self):
        port = self.ports[self.opened % len(self.ports)]
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            one.bind((ELSEWHERE, 0))
            if one.connect_ex((port.host, port.port)) not in (0, errno.EINPROGRESS):
                raise OSError
        except OSError:
            one.close()
            self.failed += 1
            return
        self.open[one.fileno()] = [one, self.words(self.opened)]
        self.poll.register(one, select.EPOLLIN | select.EPOLLRDHUP)
        self.opened += 1

    def drop(self, descriptor):
        self.poll.unregister(descriptor)
        self.open.pop(descriptor)[0].close()
        self.closed += 1

    def read(self, wait_s):
        for descriptor, _ in self.poll.poll(wait_s):
            try:
                if self.open[descriptor][0].recv(4096):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            self.drop(descriptor)

    def speak(self):
        for descriptor, entry in list(self.open.items()):
            piece = entry[1][:1] if self.gap_s else entry[1]
            try:
                if piece:
                    entry[1] = entry[1][entry[0].send(piece):]
            except BlockingIOError:
                pass
            except OSError:
                self.drop(descriptor)

    def run(self, until):
        """Calls `until` often, and ends when that is true."""
        start = spoke = time.monotonic()
        begun = 0
        while not until():
            now = time.monotonic()
            due = min(self.count - len(self.open), int((now - start) * self.per_s) - begun)
            if len(self.open) >= self.count:
                start, begun = now, 0  # what was not needed is not saved up
            for _ in range(due):
                self.add()
            begun += max(due, 0)
            if now >= spoke + self.gap_s:
                self.speak()
                spoke = now
            self.read(0.01)


class Sink:
    """Ports that accept every connection, read nothing, and close it after `hold_s`: what connections cost a machine of themselves."""

    def __init__(self, count, hold_s=5):
        self.hold_s, self.held = hold_s, collections.deque()  # when to close it, connection
        self.poll = select.epoll()
        self.listeners = {}
        for _ in range(count):
            one = socket.create_server(("127.0.0.1", 0), backlog=4096)
            one.setblocking(False)
            self.listeners[one.fileno()] = one
            self.poll.register(one, select.EPOLLIN)

    def places(self):
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in self.listeners.values()]

    def accept(self, listener):
        with contextlib.suppress(BlockingIOError):
            while True:
                self.held.append((time.monotonic() + self.hold_s, listener.accept()[0]))

    def run(self, until):
        while not until():
            for descriptor, _ in self.poll.poll(0.01):
                self.accept(self.listeners[descriptor])
            while self.held and self.held[0][0] <= time.monotonic():
                self.held.popleft()[1].close()


def crowd(kind, ports):
    """The strangers of each kind."""
    words = openings()
    if kind == "silent":
        return Crowd(ports, 64 * len(ports), 500)
    if kind == "slow":
        return Crowd(ports, 64 * len(ports), 500, lambda number: words[number // len(ports) % len(words)], gap_s=0.2)
    if kind == "ucx":
        return Crowd(ports, 16 * len(ports), 500, lambda number: (ucx_message(), ucx_put(0x10))[number // len(ports) % 2])
    if kind == "5,000":
        return Crowd(ports, 5000, 1000)
    raise ValueError(kind)


def ended():
    return select.select([sys.stdin], [], [], 0)[0]


def sink(count):
    """Stays until its input ends. Says its ports in one line."""
    ports = Sink(int(count))
    print(*ports.places(), flush=True)
    ports.run(ended)


def main(kind, *places):
    """Stays until its input ends. Says a line when it has begun, and what it did at the end."""
    if kind == "sink":
        sink(*places)
        return
    ports = [Port("", *place.rsplit(":", 1)) for place in places]
    strangers = crowd(kind, [port._replace(port=int(port.port)) for port in ports])
    strangers.run(lambda: strangers.opened >= strangers.count or ended())
    print("begun", flush=True)
    strangers.run(ended)
    print(json.dumps({"opened": strangers.opened, "closed": strangers.closed, "failed": strangers.failed, "open": len(strangers.open)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
