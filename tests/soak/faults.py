"""What can happen to a cluster, one function each. A fault ends what it began before it returns."""

import contextlib
import dataclasses
import random
import shutil
import signal
import subprocess

from link import Link
from plan import WORKERS

PREFILL, DECODE = WORKERS[:2], WORKERS[2:]
OVER_TCP = ("prefill-1",)  # --wire=tcp
DRAIN_S = 60
TRIES = 20


class Refused(Exception):
    """An operator's command that the cluster did not take, as when the other worker of the role is gone."""


class Misbehaved(Exception):
    """A process that did not do what it should."""


@dataclasses.dataclass
class Kind:
    name: str
    lane: str
    targets: tuple
    run: object
    needs: str | None  # the attribute of Faults that says whether it can happen here


KINDS = {}


def kind(name, lane, targets, needs=None):
    def add(run):
        KINDS[name] = Kind(name, lane, targets, run, needs)
        return run
    return add


class Faults:
    """`hold` waits for a number of seconds, or until the run ends."""

    def __init__(self, cluster, hold):
        self.cluster, self.hold = cluster, hold
        self.own_disk, self.wire = cluster.disk.own, cluster.wire_fault is not None

    def possible(self):
        return {name: kind for name, kind in KINDS.items() if kind.needs is None or getattr(self, kind.needs)}

    def server(self, name):
        return self.cluster.router if name == "router" else self.cluster.worker(name)

    def run(self, event):
        KINDS[event.kind].run(self, event)

    def kill(self, event):
        server = self.server(event.target)
        server.leaving = True
        server.process.kill()
        server.process.wait()
        self.hold(2 * event.strength)
        server.start_again()

    def drain_and_restart(self, event):
        server = self.server(event.target)
        server.leaving = True
        server.process.send_signal(signal.SIGTERM)
        try:
            code = server.process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
            server.start_again()
            raise Misbehaved(f"{event.target} did not end within {DRAIN_S} s of SIGTERM") from None
        server.start_again()
        if code != 0:
            raise Misbehaved(f"{event.target} ended with {code} after SIGTERM")

    def pause(self, event, seconds):
        process = self.server(event.target).process
        process.send_signal(signal.SIGSTOP)
        self.hold(seconds)
        process.send_signal(signal.SIGCONT)

    def admin(self, *arguments):
        if not self.cluster.admin(*arguments):
            raise Refused(" ".join(arguments))

    def insist(self, *arguments):
        """For a command that ends a fault: until the cluster takes it, or its worker must be healed at the end."""
        for _ in range(TRIES):
            if self.cluster.admin(*arguments) or self.hold(1):
                return
        raise Refused(" ".join(arguments))

    def with_link(self, event, mode, seconds, delay_s=0):
        link = self.cluster.links[event.target]
        link.set(mode, delay_s)
        try:
            self.hold(seconds)
        finally:
            link.set(Link.PASS)

    def with_wire(self, event, what):
        file = self.cluster.wire_file(event.target)
        file.write_text(what)
        try:
            self.hold(1 + 2 * event.strength)
        finally:
            file.unlink(missing_ok=True)


@kind("kill prefill worker", "ends", PREFILL)
def kill_prefill(faults, event):
    faults.kill(event)


@kind("kill decode worker", "ends", DECODE)
def kill_decode(faults, event):
    faults.kill(event)


@kind("kill router", "ends", ("router",))
def kill_router(faults, event):
    faults.kill(event)


@kind("drain and restart worker", "ends", WORKERS)
def restart_worker(faults, event):
    faults.drain_and_restart(event)


@kind("drain and restart router", "ends", ("router",))
def restart_router(faults, event):
    faults.drain_and_restart(event)


@kind("pause worker, shorter than its lease", "stops", WORKERS)
def pause_shortly(faults, event):
    faults.pause(event, 0.2 + 1.8 * event.strength)


@kind("pause worker, longer than its lease", "stops", WORKERS)
def pause_long(faults, event):
    faults.pause(event, 4 + 4 * event.strength)


@kind("pause router", "stops", ("router",))
def pause_router(faults, event):
    faults.pause(event, 0.2 + 3 * event.strength)


@kind("change role and back", "stops", WORKERS)
def change_role(faults, event):
    own = event.target.split("-")[0]
    faults.admin("role", event.target, "decode" if own == "prefill" else "prefill", "--within=10")
    faults.hold(3 * event.strength)
    faults.insist("role", event.target, own, "--within=10")


@kind("move answers away, and resume", "stops", DECODE)
def move_answers(faults, event):
    """A decode worker that an operator drains hands its running answers over to the other one."""
    try:
        faults.admin("drain", event.target)
        faults.hold(2 * event.strength)
    finally:  # A drain that takes too long goes on.
        faults.insist("resume", event.target)


@kind("cut control link", "links", WORKERS)
def cut_link(faults, event):
    faults.cluster.links[event.target].cut()


@kind("refuse control link", "links", WORKERS)
def refuse_link(faults, event):
    link = faults.cluster.links[event.target]
    link.set(Link.REFUSE)
    link.cut()
    faults.with_link(event, Link.REFUSE, 3 * event.strength)


@kind("silence on control link", "links", WORKERS)
def silent_link(faults, event):
    faults.with_link(event, Link.SILENT, 1 + 6 * event.strength)


@kind("delay on control link", "links", WORKERS)
def slow_link(faults, event):
    faults.with_link(event, Link.DELAY, 2 + 2 * event.strength, 0.01 + 0.2 * event.strength)


@kind("damage on control link", "links", WORKERS)
def damaged_link(faults, event):
    faults.with_link(event, Link.DAMAGE, 0.5 + event.strength)


@kind("cut wire", "links", OVER_TCP, needs="wire")
def cut_wire(faults, event):
    faults.with_wire(event, "cut")


@kind("delay on wire", "links", OVER_TCP, needs="wire")
def slow_wire(faults, event):
    faults.with_wire(event, "slow")


@kind("damage on wire", "links", OVER_TCP, needs="wire")
def damaged_wire(faults, event):
    faults.with_wire(event, "damage")


@kind("flush cache", "stores", WORKERS)
def flush(faults, event):
    faults.admin("flush", event.target)


@kind("full disk", "stores", ("disk",), needs="own_disk")
def full_disk(faults, event):
    faults.cluster.disk.fill()
    try:
        faults.hold(1 + 2 * event.strength)
    finally:
        faults.cluster.disk.free()


@kind("removed directory of the store", "stores", ("disk",))
def removed_directory(faults, _):
    shutil.rmtree(faults.cluster.disk.kv, ignore_errors=True)


@kind("flipped bits in the store", "stores", ("disk",))
def flipped_bits(faults, event):
    pick = random.Random(event.strength)
    segments = faults.cluster.disk.segments()
    if not segments:
        raise Refused("there is no segment yet")
    for path in segments:
        with contextlib.suppress(FileNotFoundError), open(path, "r+b", buffering=0) as file:  # its worker may drop it
            size = file.seek(0, 2)
            for _ in range(32):
                file.seek(pick.randrange(size))
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1 << pick.randrange(8)]))


@kind("change log level", "stores", WORKERS)
def log_level(faults, event):
    faults.admin("log-level", "debug", event.target)
    faults.hold(event.strength)
    faults.insist("log-level", "info", event.target)


@kind("list of workers without one", "stores", WORKERS)
def unlisted(faults, event):
    faults.cluster.list_workers(without=event.target)
    try:
        faults.hold(1 + 2 * event.strength)
    finally:
        faults.cluster.list_workers()


@kind("new certificates", "stores", ("cluster",))
def new_certificates(faults, _):
    faults.cluster.authority.sign("member")
