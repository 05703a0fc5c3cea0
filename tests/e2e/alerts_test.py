"""A real Prometheus watches real processes, with the rules of deploy/prometheus in seconds instead of
minutes: alerts fire when something is done to the cluster, and resolve when it is undone."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.request

from operations import ROOT, Cluster, StoppedThread, eventually

WINDOW_S = 8


def rules_in_seconds():
    text = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    text = re.sub(r"\[\d+[mh]\]", f"[{WINDOW_S}s]", text)
    return re.sub(r"for: \S+", "for: 1s", text)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    def __init__(self, targets):
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-prometheus-")
        path = pathlib.Path(self.folder.name)
        (path / "rules.yaml").write_text(rules_in_seconds())
        (path / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": targets}]}]}))
        self.address = f"127.0.0.1:{free_port()}"
        self.log = open(path / "log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}/prometheus.yaml", f"--storage.tsdb.path={path}/data",
             f"--web.listen-address={self.address}"], stdout=self.log, stderr=self.log)
        eventually(self.ready, what="Prometheus")

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def ready(self):
        try:
            return any(t["health"] == "up" for t in self.get("/api/v1/targets")["data"]["activeTargets"])
        except OSError:
            return False

    def firing(self):
        return {a["labels"]["alertname"] for a in self.get("/api/v1/alerts")["data"]["alerts"] if a["state"] == "firing"}


class Traffic:
    """Requests until told to stop, of a number of answer tokens that may change; errors are expected."""

    def __init__(self, cluster, tokens):
        self.cluster, self.tokens, self.stopping = cluster, tokens, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopping:
            self.cluster.generate(tokens=self.tokens)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.stopping = True
        self.thread.join()


class Alerts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill=1, decode=2, flags=["--stall_ms=1000"])
        cls.prometheus = Prometheus([server.metrics for server in cls.cluster.servers()])

    @classmethod
    def tearDownClass(cls):
        cls.prometheus.stop()
        cls.cluster.stop()

    def fires(self, *names):
        eventually(lambda: set(names) <= self.prometheus.firing(), 60, f"{names} firing")

    def resolves(self, *names):
        eventually(lambda: not set(names) & self.prometheus.firing(), 60, f"{names} resolving")

    def test_disaggregation_that_is_not_happening(self):
        # An answer of one token is whole after prefill: nothing is handed over.
        with Traffic(self.cluster, tokens=1) as traffic:
            self.fires("PenstockDisaggregationInactive")
            traffic.tokens = 4
            self.resolves("PenstockDisaggregationInactive")

    def test_no_forward_progress(self):
        with StoppedThread(self.cluster.worker("decode-0").engine_thread()):
            self.fires("PenstockSchedulerStalled", "PenstockWorkerUnhealthy")
        self.resolves("PenstockSchedulerStalled", "PenstockWorkerUnhealthy")

    def test_a_process_that_is_gone(self):
        worker = self.cluster.worker("prefill-0")
        worker.process.kill()
        worker.process.wait()
        try:
            with Traffic(self.cluster, tokens=2):
                self.fires("PenstockDown", "PenstockNoReadyPrefill", "PenstockErrorRatioHigh", "PenstockErrorRatioCritical")
        finally:
            worker.restart()
            worker.await_ready()
        with Traffic(self.cluster, tokens=2):
            self.resolves("PenstockDown", "PenstockNoReadyPrefill", "PenstockErrorRatioHigh", "PenstockErrorRatioCritical")

    def test_decode_workers_that_are_stopped(self):
        workers = [self.cluster.worker(f"decode-{i}") for i in range(2)]
        try:
            for worker in workers:
                worker.process.send_signal(signal.SIGSTOP)
            self.fires("PenstockNoReadyDecode", "PenstockWorkerUnhealthy", "PenstockDown")
        finally:
            for worker in workers:
                worker.process.send_signal(signal.SIGCONT)
        self.resolves("PenstockNoReadyDecode", "PenstockWorkerUnhealthy", "PenstockDown")


if __name__ == "__main__":
    unittest.main()
