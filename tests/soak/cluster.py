"""The cluster that is disturbed: every process, every way between them, and the disk below the workers."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e/operator"))
from certificates import Authority  # noqa: E402
from link import Link  # noqa: E402
from operations import BIN, Server, eventually, samples, scrape  # noqa: E402

DISK_BYTES = 320 << 20
START_S, QUIET_S = 60, 60
UNKNOWN = "penstock_requests_running, unknown because it does not answer"
# glibc keeps freed memory for each thread and each arena, which fills for an hour: up to 230 KiB a thread. Without these caches, and
# with large buffers mapped by themselves, resident memory follows what a process has allocated.
MALLOC = "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072"
OWN_SESSION = ["setsid", "env", MALLOC]  # Ctrl-C is for this program, which then ends the others.
ROLES = ("prefill", "decode")

# Small enough that every tier is full, and evicts, after a few seconds of load.
MEMORY = ["--kv_memory=8MiB", "--dram_memory=5MiB", "--nvme_size=48MiB"]


class Process(Server):
    """Keeps the logs of its earlier lives. `leaving` while a fault has ended it."""

    def __init__(self, *arguments, **more):
        self.lives, self.leaving = 0, False
        super().__init__(*arguments, **more)

    def start(self):
        self.lives += 1
        if self.log.exists():
            self.log.rename(self.log.with_suffix(f".{self.lives - 1}.log"))
        super().start()

    def start_again(self):
        """At the same addresses, one of which another process may have for its own end of a connection for a while."""
        def started():
            self.start()
            eventually(lambda: self.ready.exists() or self.process.poll() is not None, START_S, f"{self.name} to start")
            return self.process.poll() is None
        eventually(started, START_S, f"{self.name} to start again")
        self.await_ready(START_S)
        self.leaving = False

    def memory_kib(self):
        """Resident memory, and how much of it is pages of files, which the kernel reads and drops when it wants to."""
        found = dict(re.findall(r"^(VmRSS|RssFile):\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text(), re.M))
        return int(found["VmRSS"]), int(found["RssFile"])

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Disk:
    """What the NVMe tiers share: a file system of its own where this user may mount one, so that it can be full."""

    def __init__(self, folder):
        self.folder = folder / "disk"
        self.folder.mkdir()
        self.filler, self.kv = self.folder / "filler", self.folder / "kv"
        self.own = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "soak", self.folder],
                                  capture_output=True, check=False).returncode == 0

    def fill(self):
        with open(self.filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def free(self):
        self.filler.unlink(missing_ok=True)

    def segments(self):
        return sorted(path for path in self.kv.rglob("*") if path.is_file() and path.stat().st_size > 1 << 16) if self.kv.exists() else []

    def close(self):
        if self.own:
            subprocess.run(["umount", "-l", self.folder], check=False)


class Cluster:
    def __init__(self, folder, wire_fault=None):
        self.folder, self.wire_fault = folder, wire_fault
        self.workers, self.links, self.router = [], {}, None
        self.authority = Authority(folder)
        for name in ("member", "operator"):
            self.authority.sign(name)
        self.disk = Disk(folder)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self):
        common = ["--threads=1", *MEMORY, f"--nvme_dir={self.disk.kv}", *self.authority.flags("member")]
        own = {"prefill-1": ["--wire=tcp"], "decode-1": ["--local_prefill_max_tokens=0"]}
        for name in (f"{role}-{i}" for role in ROLES for i in range(2)):
            self.workers.append(Process(self.folder, name, [f"--worker_id={name}", *common, *own.get(name, [])], inside=self.inside(name)))
        for worker in self.workers:
            worker.await_ready(START_S)
            self.links[worker.name] = Link(worker.listen)
        self.workers_file = self.folder / "workers"
        self.list_workers()
        self.router = Process(self.folder, "router", [
            "--model_name=tiny", "--http_listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--drain_s=5", f"--workers_file={self.workers_file}",
            *self.authority.flags("member")], inside=OWN_SESSION)
        self.router.await_ready(START_S)
        self.http, self.admin_address = self.router.http(), re.search(r"^admin=(\S+)", self.router.ready.read_text(), re.M).group(1)
        self.router.flags += [f"--http_listen={self.http}", f"--admin_listen={self.admin_address}"]  # a restart keeps the ports
        self.router.flags = [flag for flag in self.router.flags if not flag.endswith("127.0.0.1:0")]
        self.await_ready()

    def inside(self, name):
        if self.wire_fault is None:
            return OWN_SESSION
        return [*OWN_SESSION, f"LD_PRELOAD={self.wire_fault}", f"PENSTOCK_DAMAGE={self.wire_file(name)}"]

    def wire_file(self, name):
        """While it exists, what it says happens to large buffers that this worker sends (damaged_link.cc)."""
        return self.folder / f"wire-{name}"

    def list_workers(self, without=None):
        new = self.folder / "workers.new"
        new.write_text("".join(f"{link.address}\n" for name, link in self.links.items() if name != without))
        new.rename(self.workers_file)

    def servers(self):
        return [*self.workers, *([self.router] if self.router else [])]

    def worker(self, name):
        return next(worker for worker in self.workers if worker.name == name)

    def admin(self, *arguments, timeout_s=40):
        """Whether the operator's command did what it says."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run([BIN / "penstock", "admin", *arguments, f"--endpoint={self.admin_address}",
                                   *self.authority.client_flags("operator")], capture_output=True, timeout=timeout_s, check=False).returncode == 0
        return False

    def seen(self):
        """Worker to its role and state, as the router sees it."""
        with urllib.request.urlopen(f"http://{self.http}/cluster", timeout=10) as answer:
            return {worker["name"]: (worker["role"], worker["state"]) for worker in json.load(answer)["workers"]}

    def await_ready(self):
        wanted = {worker.name: (worker.name.split("-")[0], "ready") for worker in self.workers}

        def ready():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.seen() == wanted
            return False
        eventually(ready, START_S, f"a router that sees {wanted}")

    def heal(self):
        """Ends what faults may have left behind: links, the disk, the list, roles, workers out of service."""
        for link in self.links.values():
            link.set(Link.PASS)
        self.disk.free()
        self.list_workers()
        for worker in self.workers:
            self.wire_file(worker.name).unlink(missing_ok=True)
        for server in self.servers():
            if server.process.poll() is not None:
                server.start_again()
        for worker in self.workers:
            role = worker.name.split("-")[0]

            def serves(name=worker.name, role=role):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    found = self.seen().get(name)
                    if found == (role, "ready"):
                        return True
                    if found == (role, "draining"):
                        self.admin("resume", name)
                    elif found is not None and found[1] in ("ready", "draining"):
                        self.admin("role", name, role, "--force")
                return False
            eventually(serves, START_S, f"{worker.name} to serve as {role}")

    def held(self):
        """Process to what it holds for requests; empty where it holds nothing."""
        found = {}
        for server in self.servers():
            try:
                values = samples(scrape(server))
            except (OSError, http.client.HTTPException):
                values = {UNKNOWN: 1}
            held = {sample: value for sample, value in values.items() if value != 0 and is_held(sample)}
            if held:
                found[server.name] = held
        return found

    def await_quiet(self):
        """What is still held after a while; empty as it should be."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.held(), QUIET_S, "nothing held")
        return self.held()

    def events(self):
        """Event to its number of lines, in the logs of all lives of all processes; warnings and errors, and what requests suffered."""
        counts = {}
        for path in self.folder.glob("*.log"):
            with open(path, errors="replace") as log:
                for line in log:
                    event = re.search(r"\bevent=(\w+)", line)
                    if event and (re.search(r"\blevel=(warning|error)\b", line) or event.group(1) in ("request_replanned", "choice_moved")):
                        counts[event.group(1)] = counts.get(event.group(1), 0) + 1
        return counts

    def stop(self):
        for server in self.servers():
            server.stop()
        for link in self.links.values():
            link.close()
        self.disk.close()


def is_held(sample):
    """Blocks that a sequence or a handoff has, and requests; not what is cached or free."""
    name = re.split("[{,]", sample)[0]
    if name == "penstock_kv_blocks":
        return any(f'state="{state}"' in sample for state in ("reserved", "swapped")) or 'state="used"' in sample and 'tier="device"' in sample
    return name in ("penstock_kv_blocks_held", "penstock_kv_blocks_quarantined", "penstock_kv_transfers_inflight",
                    "penstock_requests_running", "penstock_requests_waiting")
