"""A stranger at every port of a running cluster, in each way in which workers hand KV to each other. Ports are found as the
kernel lists them, so one that is added later is attacked, too. Whatever is said there: no process ends, no memory and no answer
changes, others are served meanwhile, and descriptors and memory come back."""

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import ssl
import sys
import tempfile
import time
import unittest
import unittest.mock

import http2
import strangers
from load import Load, connect
from operations import ROOT, Cluster, events_of, eventually, resident_mib, samples, scrape
from strangers import H2, NOBODY, WIRE

GROWN_MIB, MORE_DESCRIPTORS = 48, 16  # what may be left after an attack; a pool of 16 MiB fills meanwhile
ROOT_ONLY = strangers.refusal()
WORDS = "the river runs down from a hill where old trees stand and birds sing of rain"
REQUESTS = [{"model": "tiny", "prompt": f"{i}: {' '.join([WORDS] * (1 + i))}", "max_tokens": 12 + 4 * i, "ignore_eos": True, "seed": i,
             "temperature": (0, 0.8, 1.2)[i % 3], "stream": i % 2 == 0, "return_token_ids": True} for i in range(6)]
FLAGS = ["--kv_memory=16MiB", "--dram_memory=8MiB"]
EVENTS = "--kv_events_listen=127.0.0.1:0"
METHODS = strangers.grpc_methods(ROOT / "proto") + ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]


def spoiled(server):
    """KV that arrived or lay there with a wrong checksum, or that somebody changed on its way."""
    return sum(value for name, value in samples(scrape(server)).items()
               if "corrupt_total" in name or 'outcome="checksum"' in name or 'reason="tag"' in name)


class Watched:
    """The processes of a cluster as they are now."""

    def __init__(self, cluster):
        self.servers = cluster.servers()
        self.pids = {server.name: server.process.pid for server in self.servers}
        self.environments = {name: strangers.environment(pid) for name, pid in self.pids.items()}
        self.descriptors = {name: strangers.descriptors(pid) for name, pid in self.pids.items()}
        self.resident = {server.name: resident_mib(server.process) for server in self.servers}
        self.spoiled = {server.name: spoiled(server) for server in self.servers}

    def harm(self):
        """Changes of the processes since."""
        found = []
        for server in self.servers:
            if server.process.poll() is not None:
                found.append(f"{server.name} has ended with {server.process.returncode}: {server.log.read_text()[-1000:]}")
            elif strangers.environment(server.process.pid) != self.environments[server.name]:
                found.append(f"{server.name} has other memory than before")
        return found

    def left_over(self):
        """Resources that they hold beyond those that they held."""
        found = []
        for server in self.servers:
            more = strangers.descriptors(server.process.pid) - self.descriptors[server.name]
            grown = resident_mib(server.process) - self.resident[server.name]
            if more > MORE_DESCRIPTORS or grown > GROWN_MIB:
                found.append(f"{server.name}: {more} more descriptors, {grown:.1f} MiB more")
        return found


class Strangers:
    """The attacks; a class for each mode has a cluster of its own."""

    wire, sealed = "auto", False

    @classmethod
    def setUpClass(cls):
        with contextlib.ExitStack() as stack:
            cls.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-stranger-")))
            cls.folder.chmod(0o755)  # so that the modes of what is in it decide
            flags, public, tls, ca = [], [], None, None
            if cls.sealed:
                cls.cluster_ca, cls.other_ca = (strangers.make_ca(cls.folder / name, name) for name in ("cluster", "other"))
                ca = cls.cluster_ca / "ca.crt"
                member = [cls.cluster_ca / name for name in ("tls.crt", "tls.key")]
                flags = [f"--cluster_ca={ca}", *(f"--cluster_{what}={file}" for what, file in zip(("cert", "key"), member))]
                public = [f"--tls_cert={member[0]}", f"--tls_key={member[1]}", "--http_tls"]
                tls = ssl.create_default_context(cafile=ca)
            if not ROOT_ONLY:
                cls.recorder = strangers.Recorder()
                stack.callback(cls.recorder.stop)
            cls.cluster = Cluster(1, 1, [f"--wire={cls.wire}", f"--nvme_dir={cls.folder}/nvme", EVENTS, *FLAGS, *flags],
                                  decode_flags=["--local_prefill_max_tokens=0"], router_flags=["--admin_listen=127.0.0.1:0", *flags, *public], ca=ca)
            stack.callback(cls.cluster.stop)
            cls.router = cls.cluster.router
            cls.load = Load([cls.router.http()], REQUESTS, clients=2, tls=tls, salted=True)
            stack.callback(cls.load.stop)
            eventually(lambda: cls.load.done >= 24 or cls.load.failed, what="answers before all attacks")
            cls.ports = cls.listening()  # also those that came with the first lane
            cls.call_each_port()
            if not ROOT_ONLY:
                cls.recorder.stop()
            cls.tls, cls.watched = tls, Watched(cls.cluster)
            cls.addClassCleanup(stack.pop_all().close)

    @classmethod
    def listening(cls):
        return [port for server in cls.cluster.servers() for port in strangers.ports_of(server.name, server.process.pid)]

    @classmethod
    def call_each_port(cls):
        """As those do for whom it is there: what they say can be replayed."""
        clients = strangers.anonymous() if cls.sealed else None
        members = strangers.bearer(cls.cluster_ca) if cls.sealed else None
        for port in cls.ports:
            if cls.is_metrics(port):
                strangers.say(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            elif cls.is_events(port):
                strangers.say(port, strangers.zeromq_subscriber(), patience_s=1, enough=lambda received: len(received) > 64)
            elif not cls.is_wire(port):
                health = strangers.grpc_call("/grpc.health.v1.Health/Check", http2.grpc_message(b""))
                strangers.say(port, health, clients if cls.is_public(port) else members, H2, 1, strangers.answered)

    @classmethod
    def is_at(cls, port, *addresses):
        return f"{port.host}:{port.port}" in addresses

    @classmethod
    def is_public(cls, port):
        return cls.is_at(port, cls.router.listen, cls.router.http())

    @classmethod
    def is_metrics(cls, port):
        return cls.is_at(port, *(server.metrics for server in cls.cluster.servers()))

    @classmethod
    def is_events(cls, port):
        return cls.is_at(port, *(events_of(worker) for worker in cls.cluster.workers))

    @classmethod
    def is_private(cls, port):
        """Only for members, where there are certificates. A port that nobody has named here is."""
        return not cls.is_public(port) and not cls.is_metrics(port) and not cls.is_events(port)

    @classmethod
    def is_wire(cls, port):
        return port.server != "router" and cls.is_private(port) and not cls.is_at(port, *(worker.listen for worker in cls.cluster.workers))

    def attack(self, act):
        """Calls act(port) for all ports at once."""
        with concurrent.futures.ThreadPoolExecutor(len(self.ports)) as pool:
            for _ in pool.map(act, self.ports):
                pass

    def setUp(self):
        self.began, self.done = time.monotonic(), self.load.done

    def tearDown(self):
        """Nobody has noticed anything."""
        self.assertEqual(self.watched.harm(), [])
        answers = self.load.done + 4  # of which two or more were asked for after the attack
        eventually(lambda: self.load.done >= answers or self.load.failed, what="answers after the attack")
        self.assertEqual(self.load.failed, [])
        self.assertEqual(self.watched.harm(), [])
        self.assertEqual(self.listening(), self.ports)
        self.assertEqual({server.name: spoiled(server) for server in self.cluster.servers()}, self.watched.spoiled)
        eventually(lambda: not self.watched.left_over(), 60, f"descriptors and memory as before ({self.watched.left_over()})")
        print(f"{self.id()}: {time.monotonic() - self.began:.1f} s, {self.load.done - self.done} answers as before", file=sys.stderr)

    def assert_says_nothing(self, port, received):
        """To who is no member, at a private port of a cluster with certificates: apart from TLS's own records."""
        if self.sealed and self.is_private(port):
            self.assertIn(received[:1], (b"", bytes([strangers.ALERT]), bytes([strangers.HANDSHAKE])), f"{port} answered {received[:100]}")

    def contexts(self):
        """Callers over TLS who are no members; none of them is greeted by plain ports."""
        return [strangers.anonymous(), *([strangers.bearer(self.other_ca)] if self.sealed else [])]

    def test_every_port_is_known(self):
        """Each worker has gRPC, metrics, KV events and the wire's door, and the router its two public ports, metrics and operators'."""
        self.assertEqual(sorted(port.server for port in self.ports), ["decode-0"] * 4 + ["prefill-0"] * 4 + ["router"] * 4)
        self.assertEqual(sorted(port.server for port in self.ports if self.is_wire(port)), ["decode-0", "prefill-0"])
        connection = connect(self.router.http(), self.tls)
        self.addCleanup(connection.close)
        connection.request("GET", "/cluster")
        links = [link for link in json.load(connection.getresponse())["links"] if link["kind"] == "handoff" and link["done"] > 0]
        lane = "shared memory" if self.wire == "auto" else "tcp, sealed" if self.sealed else "tcp"
        self.assertEqual({link["transport"] for link in links}, {lane})

    def test_what_ends_a_process_with_ports_of_ucx(self):
        def act(port):
            pid = self.watched.pids[port.server]
            address = strangers.environment_at(pid)
            for words in (strangers.ucx_put(address), strangers.ucx_put(address, more=1), strangers.ucx_message(), strangers.ucx_put(0x10)):
                self.assert_says_nothing(port, strangers.say(port, words))
        self.attack(act)

    def test_garbage(self):
        def act(port):
            for words in strangers.garbage(port.port):
                self.assert_says_nothing(port, strangers.say(port, words, patience_s=0.03))
        self.attack(act)

    def test_tls_without_a_certificate_or_with_anothers(self):
        def act(port):
            for context in self.contexts():
                for alpn, words in ((WIRE, strangers.wire_hello()), (H2, strangers.grpc_call(METHODS[0], b"")), (H2, b"\xff" * 5000)):
                    received = strangers.say(port, words, context, alpn)
                    if self.sealed and self.is_private(port):
                        self.assertEqual(received, b"", f"{port} answered within TLS")
        self.attack(act)

    def test_junk_frames(self):
        def act(port):
            contexts = [None, strangers.anonymous()] if self.sealed and self.is_public(port) else [None]
            for words, context in itertools.product(strangers.junk_frames(port.port), contexts):
                self.assert_says_nothing(port, strangers.say(port, words, context, H2, patience_s=0.03))
        self.attack(act)

    def test_calls(self):
        """Every method of every service, with a message that is none; where there are certificates, nobody without is answered."""
        broken = http2.grpc_message(b"\xff" * 5)
        def act(port):
            contexts = [None, *(self.contexts() if self.sealed and not self.is_metrics(port) and not self.is_events(port) else [])]
            for method, context in itertools.product(METHODS, contexts):
                received = strangers.say(port, strangers.grpc_call(method, broken), context, H2, 0.02, strangers.answered)
                if self.sealed and self.is_private(port):
                    self.assertFalse(strangers.answered(received), f"{port} answered {method}")
        self.attack(act)

    def test_half_a_message_and_then_silence(self):
        with contextlib.ExitStack() as held:
            for port in self.ports:
                for words in [b"", *strangers.openings()] * 3:
                    connection = held.enter_context(strangers.connect(port))
                    connection.sendall(words[:len(words) // 2])
            answers = self.load.done + 4
            eventually(lambda: self.load.done >= answers or self.load.failed, what="answers beside the silent")
            for server in self.cluster.servers():
                scrape(server)

    def test_a_byte_at_a_time(self):
        with contextlib.ExitStack() as held:
            slow = [(held.enter_context(strangers.connect(port)), words) for port in self.ports for words in strangers.openings()]
            for at, (connection, words) in itertools.product(range(60), slow):
                with contextlib.suppress(OSError):  # closed meanwhile
                    connection.send(words[at:at + 1])

    def test_resets_in_the_middle(self):
        def act(port):
            for words in strangers.openings():
                for cut in (0, 1, len(words) // 2, len(words)):
                    strangers.reset(port, words[:cut])
        self.attack(act)

    @unittest.skipIf(ROOT_ONLY, str(ROOT_ONLY))
    def test_replay(self):
        """The first bytes of what members and clients said, whole, cut and twice."""
        unheard = [port for port in self.ports if not self.recorder.said_to(port)]
        self.assertTrue(all(self.is_wire(port) for port in unheard), unheard)
        self.assertEqual(len(unheard), 2 if self.wire == "auto" else 1, unheard)  # prefill workers call, and are not called
        def act(port):
            for words in self.recorder.said_to(port)[:6]:
                for said in (words, words[:len(words) // 2], words + words):
                    self.assert_says_nothing(port, strangers.say(port, said))
        self.attack(act)

    @unittest.skipIf(ROOT_ONLY, str(ROOT_ONLY))
    def test_another_user_of_the_machine(self):
        pids = [worker.process.pid for worker in self.cluster.workers]
        names = [name for pid in pids for name in strangers.unix_names_of(pid)]
        self.assertEqual(len(names), 0 if self.wire == "tcp" else 2)
        files = [path for path in (self.folder / "nvme").rglob("*")]
        self.assertNotEqual(files, [])
        for path in (self.folder / "nvme", *files):
            self.assertEqual((path.stat().st_uid, path.stat().st_mode & 0o077), (os.geteuid(), 0), path)
        files += [f"/proc/{pid}/{what}" for pid in pids for what in ("mem", "environ", "maps")]
        processes = [(pid, strangers.environment_at(pid)) for pid in pids]
        self.assertEqual(strangers.what_can(NOBODY, files, processes, names), [])
        own = strangers.what_can(os.geteuid(), files[-1:], processes[:0], names)  # so the questions are such that there are answers
        self.assertEqual(len(own), 2 + len(names), own)


class SharedMemory(Strangers, unittest.TestCase):
    """Within one host, without certificates: what everybody has first."""


class Plain(Strangers, unittest.TestCase):
    """Between hosts, without certificates."""

    wire = "tcp"


class Sealed(Strangers, unittest.TestCase):
    """Between hosts, with certificates, and TLS at the public ports."""

    wire, sealed = "tcp", True

    def test_members_are_answered(self):
        """The counter-check: the same words, with the cluster's certificate."""
        member = strangers.bearer(self.cluster_ca)
        for port in self.ports:
            if self.is_wire(port):
                self.assertNotEqual(strangers.say(port, strangers.wire_hello(), member, WIRE, 30, len), b"", port)
            elif self.is_private(port):
                call = strangers.grpc_call("/grpc.health.v1.Health/Check", http2.grpc_message(b""))
                self.assertTrue(strangers.answered(strangers.say(port, call, member, H2, 30, strangers.answered)), port)


@unittest.skipIf(ROOT_ONLY, str(ROOT_ONLY))
class PortsOfUcx(unittest.TestCase):
    """The counter-check: with --wire=ucx the same words write memory and end a worker, and that is noticed. Its network
    must be trusted."""

    def test_harm_is_noticed(self):
        # Shared memory is for one user, so another's worker needs UCX. Its end writes no core.
        as_another = ["prlimit", "--core=0", "setpriv", f"--reuid={NOBODY}", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        with unittest.mock.patch.dict(os.environ, {"UCX_TLS": "tcp"}):
            cluster = Cluster(1, 1, ["--wire=ucx", "--wire_network_trusted", *FLAGS], inside_prefill=as_another)
        self.addCleanup(cluster.stop)
        code, answer = cluster.generate()
        self.assertEqual(code, 0, answer)
        worker, watched = cluster.worker("prefill-0"), Watched(cluster)
        self.assertEqual(watched.harm(), [])
        ports = strangers.ports_of(worker.name, worker.process.pid)
        self.assertGreater(len(ports), 3)  # the kernel lists UCX's, too
        address = strangers.environment_at(worker.process.pid)
        with contextlib.ExitStack() as held:
            for port in ports:  # a whole write would end the process when it is acknowledged
                held.enter_context(strangers.connect(port)).sendall(strangers.ucx_put(address, more=1))
            harm = eventually(watched.harm, what="a stranger's write")
            self.assertEqual(harm, ["prefill-0 has other memory than before"])
            self.assertIn(b"stranger was in!", strangers.environment(worker.process.pid))
            for port in ports:
                with contextlib.suppress(OSError):  # once it is gone
                    strangers.say(port, strangers.ucx_message())
            eventually(lambda: worker.process.poll() is not None, what="the end of a worker")
        self.assertIn("prefill-0 has ended", watched.harm()[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
