"""A router and workers as real processes, and what an operator would do to them. For the tests beside
it; PENSTOCK_BIN_DIR and PENSTOCK_SOURCE_DIR say where things are."""

import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

BIN = pathlib.Path(os.environ["PENSTOCK_BIN_DIR"])
ROOT = pathlib.Path(os.environ["PENSTOCK_SOURCE_DIR"])
MODEL = ROOT / "models/penstock-tiny"
PATIENCE_S = 60


def eventually(done, patience_s=PATIENCE_S, what="it"):
    """Waits until `done` returns something true and returns that; fails after a while."""
    end = time.monotonic() + patience_s
    while True:
        result = done()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {patience_s} s")
        time.sleep(0.05)


def free_port():
    """A port of loopback on which no process listens. It is below those that the system gives to whoever asks for any, so
    that nobody is given it before it is used."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, first) if first > 20_000 else 0
        with socket.socket() as probe, contextlib.suppress(OSError):  # another process has it
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]


def resident_mib(process):
    """The memory of a process that is in RAM."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.M).group(1)) / 1024


class Server:
    """One process. `restart` starts it again at the same addresses."""

    def __init__(self, folder, name, flags, listen="127.0.0.1:0", inside=(), model=MODEL, program=None):
        self.binary, self.model = BIN / (program or "penstock-" + name.split("-")[0]), model
        self.name, self.log, self.ready = name, folder / f"{name}.log", folder / f"{name}.ready"
        self.flags, self.inside = [str(flag) for flag in flags], list(inside)  # a command that runs another
        self.listen, self.metrics = listen, "127.0.0.1:0"
        self.start()

    def start(self):
        self.ready.unlink(missing_ok=True)
        self.log.write_text("")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*self.inside, self.binary, f"--listen={self.listen}", f"--metrics_listen={self.metrics}", f"--model={self.model}",
                 f"--ready_file={self.ready}", *self.flags], stdout=log, stderr=log)

    def await_ready(self, patience_s=PATIENCE_S):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended: {self.log.read_text()}")
            return self.ready.exists()
        eventually(ready, patience_s, f"{self.name} to be ready")
        self.listen = self.ready.read_text().splitlines()[0]
        self.metrics = eventually(lambda: re.search(r'\bmetrics"?[=:]"?([0-9.:]+)', self.log.read_text())).group(1)

    restart = start

    def http(self):
        """The address of a router that serves HTTP: host:port."""
        return re.search(r"^http=(\S+)", self.ready.read_text(), re.M).group(1)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def engine_thread(self):
        """The thread that runs the engine of the role that the program starts with."""
        name = "engine-" + self.name.split("-")[0]
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == name:
                return int(task.name)
        raise AssertionError(f"{self.name} has no thread called {name}")


def http_flags():
    """A free port for HTTP, where this router serves that."""
    text = subprocess.run([BIN / "penstock-router", "--help"], text=True, capture_output=True, check=False).stdout
    return ["--http_listen=127.0.0.1:0"] if "--http_listen" in text else []


class Cluster:
    def __init__(self, prefill=2, decode=2, flags=(), prefill_flags=(), decode_flags=(), router_flags=(), inside_router=(), inside_prefill=(), ca=None):
        self.trust = ["--ca", ca] if ca else []  # of the router's public ports, where they have TLS
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-operations-")
        path = pathlib.Path(self.folder.name)
        self.workers = [Server(path, f"{role}-{i}", ["--threads=1", "--kv_memory=64MiB", f"--worker_id={role}-{i}", *flags,
                                                        *(prefill_flags if role == "prefill" else decode_flags)],
                               inside=inside_prefill if role == "prefill" else ())
                        for role, count in (("prefill", prefill), ("decode", decode)) for i in range(count)]
        self.router = None
        try:
            for worker in self.workers:
                worker.await_ready()
            self.router = Server(path, "router", ["--model_name=tiny", *http_flags(), *(f"--workers={w.listen}" for w in self.workers), *router_flags],
                                 inside=inside_router)
            self.router.await_ready()
            eventually(lambda: self.healthy(self.router), what="a router that serves")
        except BaseException:
            self.stop()
            raise

    def stop(self):
        for server in [*self.workers, *([self.router] if self.router else [])]:
            server.stop()
        self.folder.cleanup()

    def http(self):
        return self.router.http()

    def servers(self):
        return [*self.workers, self.router]

    def worker(self, name):
        return next(worker for worker in self.workers if worker.name == name)

    def cli(self, *arguments, timeout=PATIENCE_S, environment=None):
        return subprocess.run([BIN / "penstock", *map(str, arguments)], text=True, capture_output=True, timeout=timeout, check=False,
                              env=os.environ | (environment or {}))

    def generate(self, prompt="Once upon a time", tokens=16, *more):
        """The last JSON line of an answer, or the error's, and the exit code. The same prompt has the same answer."""
        result = self.cli("generate", "--endpoint", self.router.listen, "--json", "--stats", "--max-tokens", tokens, "--seed", 1, *more, prompt)
        lines = result.stdout.strip().splitlines()
        return result.returncode, json.loads(lines[-1]) if lines else {"stderr": result.stderr}

    def generate_many(self, count, tokens=16, at_once=4):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda i: self.generate(f"Once upon a time there were {i}", tokens), range(count)))

    def healthy(self, server, service=""):
        return self.cli("health", "--endpoint", server.listen, "--service", service, "--timeout-ms", 1000,
                        *(self.trust if server is self.router else ())).returncode == 0

    def top(self):
        result = self.cli("top", "--once", "--json", "--workers", ",".join(w.listen for w in self.workers))
        return {row["endpoint"]: row for row in json.loads(result.stdout)}


def scrape(server):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=10) as answer:
        return answer.read().decode()


def samples(text):
    """Sample (name and labels) to value."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def events_of(worker):
    """The address of a worker's KV events: host:port."""
    return re.search(r"^kv_events=(\S+)", worker.ready.read_text(), re.M).group(1)


class StoppedThread:
    """Holds one thread of a process still, as a debugger does; the others go on."""

    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, thread):
        self.thread = thread

    def call(self, request):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.restype = ctypes.c_long
        if libc.ptrace(ctypes.c_long(request), ctypes.c_int(self.thread), None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace (is it allowed here?)")

    def __enter__(self):
        self.call(self.SEIZE)
        self.call(self.INTERRUPT)
        os.waitpid(self.thread, self.WALL)
        return self

    def __exit__(self, *unused):
        self.call(self.DETACH)


def streams_while_it_runs(cluster, connection, body):
    """Whether the cluster still computes a streamed completion when its first token has come here; then leaves, and waits
    until the cluster has noticed. A long answer may have ended before, on a busy machine, so callers ask again."""
    running = lambda: sum(row["running"] for row in cluster.top().values())
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    first = answer.readline()
    assert first.startswith(b"data: "), first
    runs = running() > 0
    connection.sock.shutdown(socket.SHUT_RDWR)
    answer.close()
    connection.close()
    eventually(lambda: running() == 0, what="the end of an answer that nobody waits for")
    return runs
