"""Every process on a host of its own, as pods are: workers are found by DNS, KV goes over the network, and one that is
replaced under load, at another address, costs no request and no token."""

import json
import pathlib
import re
import signal
import sys
import tempfile
import unittest
import urllib.request

from load import Load, prompts
from network import Network, refusal
from operations import Server, eventually

PORT = 8091
NAMES = {"prefill": "prefill.penstock.test", "decode": "decode.penstock.test"}
REFUSED = refusal()


class Hosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-network-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.network = Network()
        self.addCleanup(self.network.stop)
        self.network.names.addresses = {name: [] for name in NAMES.values()}
        self.workers = {name: self.start_worker(name) for name in ("prefill-0", "prefill-1", "decode-0", "decode-1")}
        address, inside = self.network.add_host()
        self.router = self.start("router", ["--model_name=tiny", f"--http_listen={address}:8000", "--metrics_listen=",
                                            *(f"--workers_dns={name}:{PORT}" for name in NAMES.values())], address, inside)
        eventually(lambda: self.states() == dict.fromkeys(self.workers, "ready"), what="workers found by name")

    def start(self, name, flags, address, inside):
        server = Server(self.folder, name, ["--insecure", *flags], f"{address}:{PORT}", inside)
        self.addCleanup(server.stop)
        eventually(lambda: server.ready.exists() or server.process.poll() is not None, what=f"{name} to be ready")
        self.assertIsNone(server.process.poll(), server.log.read_text())
        return server

    def start_worker(self, name):
        """On a new host, which its role's name has from then on."""
        address, inside = self.network.add_host()
        flags = ["--threads=1", "--kv_memory=64MiB", "--wire=tcp", f"--worker_id={name}"]
        if name.startswith("decode"):
            flags.append("--local_prefill_max_tokens=0")  # ends of prompts that come again are prefill workers' work here
        server = self.start(name, flags, address, inside)
        self.addresses(name).append(address)
        return server

    def addresses(self, name):
        return self.network.names.addresses[NAMES[name.split("-")[0]]]

    def http(self):
        return re.search(r"^http=(\S+)", self.router.ready.read_text(), re.M).group(1)

    def report(self):
        with urllib.request.urlopen(f"http://{self.http()}/cluster", timeout=10) as answer:
            return json.load(answer)

    def states(self):
        return {worker["name"]: worker["state"] for worker in self.report()["workers"]}

    def work(self, name):
        """Prompts handed over from or to the worker, by all that had this name."""
        return sum(link["done"] for link in self.report()["links"] if link["kind"] == "handoff" and name in (link["from"], link["to"]))

    def await_work(self, name, load):
        before = self.work(name)
        eventually(lambda: self.work(name) > before or load.failed, what=f"work for {name}")
        self.assertEqual(load.failed, [])

    def replace(self, name):
        """As a rollout does: the name loses the address, the process is told to end, another starts elsewhere."""
        leaving = self.workers[name]
        self.addresses(name).remove(leaving.listen.split(":")[0])
        leaving.process.send_signal(signal.SIGTERM)
        self.assertEqual(leaving.process.wait(60), 0, leaving.log.read_text())
        self.workers[name] = self.start_worker(name)
        eventually(lambda: self.states() == dict.fromkeys(self.workers, "ready"), what=f"{name} at its new address")

    def test_a_worker_that_comes_back_elsewhere_costs_nothing(self):
        load = Load([self.http()], prompts(16, seed=3), clients=4)
        try:
            for name in ("decode-0", "prefill-0"):
                self.await_work(name, load)
                self.replace(name)
                self.await_work(name, load)
        finally:
            load.stop()
        self.assertEqual(load.failed, [])
        self.assertGreater(self.network.names.asked, 0)
        links = [link for link in self.report()["links"] if link["kind"] == "handoff" and link["done"] > 0]
        self.assertGreater(sum(link["bytes"] for link in links), 0)
        self.assertEqual({link["transport"] for link in links}, {"tcp"})


if __name__ == "__main__":
    if REFUSED:
        print(f"not tested here: {REFUSED}")
        sys.exit(77)  # which CTest calls skipped
    unittest.main()
