"""Hosts of a small network: a network namespace each, on one bridge that this machine has a leg in, and a name server
that tells where workers are. Needs root and ip (iproute2)."""

import os
import pathlib
import socket
import struct
import subprocess
import threading

from operations import eventually

NAME_SERVER_PORT = 53
A, AAAA, IN, NXDOMAIN, TTL_S = 1, 28, 1, 3, 0


def run(*arguments):
    done = subprocess.run(arguments, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def refusal():
    """Why there can be no namespaces here; None where there can."""
    name = f"penstock-try-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "del", name)
    except OSError as error:
        return f"network namespaces: {error}"
    return None


class NameServer:
    """Answers A over UDP at `address` with all that a name has now; it is all that DNS is here."""

    def __init__(self, address):
        self.addresses, self.asked = {}, 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, NAME_SERVER_PORT))
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            query, client = self.socket.recvfrom(4096)
            if not query:
                return
            self.asked += 1
            self.socket.sendto(self.answer(query), client)

    def answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12:at + 5]
        kind = struct.unpack("!H", query[at + 1:at + 3])[0]
        found = self.addresses.get(".".join(labels).lower())
        records = [b"\xc0\x0c" + struct.pack("!HHIH", A, IN, TTL_S, 4) + socket.inet_aton(address)
                   for address in found or [] if kind == A]
        flags = 0x8580 | (NXDOMAIN if found is None else 0)
        return query[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0) + question + b"".join(records)

    def stop(self):
        address = self.socket.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", address)
        self.thread.join()
        self.socket.close()


class Network:
    """A /24 of this process's own; its first address is this machine's."""

    def __init__(self):
        self.id = os.getpid() % 60000
        self.bridge = f"pb{self.id}"
        self.prefix = f"10.{200 + self.id % 50}.{self.id // 50 % 250}"
        self.here = f"{self.prefix}.1"
        self.hosts = 0
        self.spaces = []
        run("ip", "link", "add", self.bridge, "type", "bridge")
        try:
            run("ip", "addr", "add", f"{self.here}/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            self.names = NameServer(self.here)
        except BaseException:
            run("ip", "link", "del", self.bridge)
            raise

    def add_host(self):
        """Its address, and the command that runs another there."""
        self.hosts += 1
        space, near, far = f"penstock-{self.id}-{self.hosts}", f"pv{self.id}-{self.hosts}", f"pf{self.id}-{self.hosts}"
        address = f"{self.prefix}.{1 + self.hosts}"
        run("ip", "netns", "add", space)
        self.spaces.append(space)
        resolver = pathlib.Path("/etc/netns") / space / "resolv.conf"  # what ip shows its processes as /etc/resolv.conf
        resolver.parent.mkdir(parents=True)
        resolver.write_text(f"nameserver {self.here}\noptions timeout:1 attempts:2\n")
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        run("ip", "link", "set", near, "master", self.bridge, "up")
        inside = ["ip", "netns", "exec", space]
        run(*inside, "ip", "addr", "add", f"{address}/24", "dev", far)
        run(*inside, "ip", "link", "set", far, "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        # UCX counts what runs when a process starts, and nothing later.
        eventually(lambda: " state UP " in run(*inside, "ip", "-o", "link", "show", "dev", far), what=f"{far} up")
        return address, inside

    def link_of(self, address):
        """This machine's end and the host's own end of its link."""
        number = int(address.rsplit(".", 1)[1]) - 1
        return f"pv{self.id}-{number}", f"pf{self.id}-{number}"

    def stop(self):
        self.names.stop()
        # A namespace takes its links with it some time after its end; the next network has links of the same names.
        for number in range(1, self.hosts + 1):
            subprocess.run(["ip", "link", "del", f"pv{self.id}-{number}"], check=False)
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)
            folder = pathlib.Path("/etc/netns") / space
            (folder / "resolv.conf").unlink(missing_ok=True)
            if folder.exists():
                folder.rmdir()
        try:
            pathlib.Path("/etc/netns").rmdir()
        except OSError:
            pass  # others have theirs there
        subprocess.run(["ip", "link", "del", self.bridge], check=False)
