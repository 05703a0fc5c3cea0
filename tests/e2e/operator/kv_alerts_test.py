"""Alerts of KV and what moves it, of queues and of single tokens: each is made to fire by its real cause, between real
processes, and resolves when that is over."""

import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest

from operations import Cluster, Server, eventually, http_flags, samples, scrape
from prometheus import ALERT_PATIENCE_S, AlertTest, Prometheus
from prompts import Prompts

DAMAGED_LINK = os.environ["PENSTOCK_DAMAGED_LINK"]


class Starved:
    """Processes that get a processor for a moment only, now and then."""

    RUNS_S, STOPS_S = 0.005, 0.15

    def __init__(self, servers):
        self.servers, self.stopping = servers, False
        self.thread = threading.Thread(target=self.run)

    def signal(self, number):
        for server in self.servers:
            server.process.send_signal(number)

    def run(self):
        while not self.stopping:
            self.signal(signal.SIGSTOP)
            time.sleep(self.STOPS_S)
            self.signal(signal.SIGCONT)
            time.sleep(self.RUNS_S)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *unused):
        self.stopping = True
        self.thread.join()


class KvAlerts(AlertTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="penstock-kv-alerts-")
        cls.addClassCleanup(folder.cleanup)
        cls.damage = pathlib.Path(folder.name) / "damage"
        cls.cluster = Cluster(
            prefill=1, decode=2, flags=["--kv_memory=192MiB"], decode_flags=["--local_prefill_max_tokens=0"], prefill_flags=["--wire=tcp"],
            inside_prefill=["env", f"LD_PRELOAD={DAMAGED_LINK}", f"PENSTOCK_DAMAGE={cls.damage}"])
        cls.addClassCleanup(cls.cluster.stop)
        cls.prefill = cls.cluster.worker("prefill-0")
        # A decode worker that one long prompt fills, behind a router of its own.
        cls.small = Server(pathlib.Path(cls.cluster.folder.name), "decode-small", ["--threads=1", "--kv_memory=2560KiB", "--local_prefill_max_tokens=0"])
        cls.addClassCleanup(cls.small.stop)
        cls.small.await_ready()
        cls.narrow = Server(pathlib.Path(cls.cluster.folder.name), "router-narrow",
                            ["--model_name=tiny", *http_flags(), f"--workers={cls.prefill.listen}", f"--workers={cls.small.listen}"])
        cls.addClassCleanup(cls.narrow.stop)
        cls.narrow.await_ready()
        cls.prometheus = Prometheus([server.metrics for server in [*cls.cluster.servers(), cls.small, cls.narrow]], window_s=5)
        cls.addClassCleanup(cls.prometheus.stop)

    def value(self, server, name):
        return sum(value for sample, value in samples(scrape(server)).items() if sample.split("{")[0] == name)

    def decode_workers(self):
        return [self.cluster.worker(f"decode-{i}") for i in range(2)]

    def test_tokens_that_are_slow(self):
        with Prompts(self.cluster.router, 20, max_tokens=1000, n=16) as prompts:
            prompts.add(4)
            eventually(lambda: all(self.value(worker, "penstock_requests_running") > 0 for worker in self.decode_workers()), what="answers")
            with Starved(self.decode_workers()):
                self.fires("PenstockTokenSloBurn")
        self.resolves("PenstockTokenSloBurn")

    def test_a_queue_that_grows(self):
        with Prompts(self.cluster.router, 1900, max_tokens=1) as prompts:
            def grows():
                prompts.add()
                time.sleep(0.2)  # the rate at which clients come
                return "PenstockQueueGrowing" in self.prometheus.firing()
            eventually(grows, 60, "PenstockQueueGrowing firing")
        self.resolves("PenstockQueueGrowing")

    def test_a_pool_that_is_full(self):
        with Prompts(self.narrow, 985, max_tokens=39) as prompts:
            prompts.add(4)
            self.fires("PenstockKvNearlyFull")
        self.resolves("PenstockKvNearlyFull")

    def test_handoffs_that_are_late(self):
        with Prompts(self.cluster.router, 600, max_tokens=2) as prompts:
            prompts.add(8)

            def held_up():
                before = self.value(self.cluster.router, "penstock_inter_token_latency_seconds_count")
                for worker in self.decode_workers():
                    worker.process.send_signal(signal.SIGSTOP)
                try:
                    time.sleep(1.2)  # less than what makes the router call them silent
                finally:
                    for worker in self.decode_workers():
                        worker.process.send_signal(signal.SIGCONT)
                eventually(lambda: self.value(self.cluster.router, "penstock_inter_token_latency_seconds_count") > before, what="a handoff")
                return "PenstockTransferExposedHigh" in self.prometheus.firing()
            eventually(held_up, ALERT_PATIENCE_S, "PenstockTransferExposedHigh firing")
        with Prompts(self.cluster.router, 600, max_tokens=2) as prompts:
            prompts.add(2)
            self.resolves("PenstockTransferExposedHigh")

    def test_kv_that_is_damaged_on_its_way(self):
        with Prompts(self.cluster.router, 600, max_tokens=4) as prompts:
            prompts.add(2)
            self.damage.touch()
            try:
                self.fires("PenstockKvChecksumFailure", "PenstockTransferFailures")
            finally:
                self.damage.unlink()
            said = "".join(worker.log.read_text() for worker in self.decode_workers())
            self.assertRegex(said, r" request=\S+ trace=[0-9a-f]{32} event=slab_damaged handoff=\S+ slab=\d+ error=\"its checksum is ")
            self.resolves("PenstockKvChecksumFailure", "PenstockTransferFailures")

    def test_requests_that_move_from_worker_to_worker(self):
        victim = self.cluster.worker("decode-0")
        with Prompts(self.cluster.router, 20, max_tokens=600) as prompts:
            prompts.add(8)
            def dies():
                eventually(lambda: self.value(victim, "penstock_requests_running") > 0, what="a request at decode-0")
                victim.process.kill()
                victim.process.wait()
                victim.restart()
                victim.await_ready()
                return "PenstockMigrationsHigh" in self.prometheus.firing()
            eventually(dies, ALERT_PATIENCE_S, "PenstockMigrationsHigh firing")
            self.resolves("PenstockMigrationsHigh")


if __name__ == "__main__":
    unittest.main()
