"""Every process on a host of its own, as pods are: workers are found by DNS and KV goes over the network. A worker that is
replaced under load, at another address, costs no request and no token; nor do routes and links that fail."""

import contextlib
import json
import pathlib
import re
import signal
import sys
import tempfile
import unittest
import urllib.request

from load import Load, prompts
from network import Network, refusal, run
from operations import Server, eventually, samples, scrape

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
        flags = ["--threads=1", "--kv_memory=64MiB", "--wire=tcp", f"--worker_id={name}", f"--metrics_listen={address}:0"]
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

    def address(self, name):
        return self.workers[name].listen.rsplit(":", 1)[0]

    @contextlib.contextmanager
    def dropped(self, *ways):
        """No packet passes from the first to the second worker of each."""
        routes = [[*self.workers[source].inside, "ip", "route", "%s", "blackhole", f"{self.address(target)}/32"] for source, target in ways]
        for route in routes:
            run(*(word.replace("%s", "add") for word in route))
        try:
            yield
        finally:
            for route in routes:
                run(*(word.replace("%s", "del") for word in route))

    def await_answers(self, load, count=20):
        """Answers go on, and all are right."""
        before = load.done
        eventually(lambda: load.done >= before + count or load.failed, what="answers")
        self.assertEqual(load.failed, [])

    def test_two_workers_that_do_not_reach_each_other(self):
        # With salts nothing is cached, so that every pair is chosen now and then.
        load = Load([self.http()], prompts(16, seed=4), clients=4, salted=True)
        try:
            for ways in ([("prefill-0", "decode-0"), ("decode-0", "prefill-0")], [("prefill-0", "decode-0")], [("decode-0", "prefill-0")]):
                with self.subTest(ways), self.dropped(*ways):
                    self.await_answers(load)
                    self.assertEqual(self.states(), dict.fromkeys(self.workers, "ready"))
                    eventually(lambda: "event=request_replanned" in self.router.log.read_text(), what="a request that is placed on the pair")
            for name in self.workers:
                self.await_work(name, load)
        finally:
            load.stop()
        self.assertEqual(load.failed, [])

    def test_a_link_that_is_down_closes_no_connection_and_costs_nothing(self):
        load = Load([self.http()], prompts(16, seed=5), clients=4)
        near, _ = self.network.link_of(self.address("decode-0"))
        try:
            self.await_work("decode-0", load)
            run("ip", "link", "set", near, "down")
            eventually(lambda: self.states()["decode-0"] == "silent", what="silence")
            self.await_answers(load)
            run("ip", "link", "set", near, "up")
            eventually(lambda: self.states()["decode-0"] == "ready", what="the worker that is back")
            self.await_work("decode-0", load)
        finally:
            load.stop()
        self.assertEqual(load.failed, [])

    def encoded(self, name):
        """Slabs that the worker has sent in fewer bytes."""
        return sum(value for sample, value in samples(scrape(self.workers[name])).items()
                   if sample.startswith("penstock_kv_codec_slabs_total{") and '"raw"' not in sample)

    def test_a_slow_link_is_used_with_fewer_bytes_and_holds_up_no_other(self):
        for server in self.workers.values():
            server.await_ready()  # which finds the metrics' port
        _, far = self.network.link_of(self.address("prefill-0"))
        run(*self.workers["prefill-0"].inside, "tc", "qdisc", "add", "dev", far, "root", "tbf", "rate", "10mbit", "burst", "32k", "latency", "200ms")
        load = Load([self.http()], prompts(16, seed=6), clients=4)
        try:
            eventually(lambda: self.encoded("prefill-0") > 0 or load.failed, what="slabs in fewer bytes")
            self.await_answers(load)
            self.await_work("prefill-1", load)
        finally:
            load.stop()
        self.assertEqual(load.failed, [])


if __name__ == "__main__":
    if REFUSED:
        print(f"not tested here: {REFUSED}")
        sys.exit(77)  # which CTest calls skipped
    unittest.main()
