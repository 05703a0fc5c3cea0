"""A real Prometheus watches real processes, with the rules of deploy/prometheus in seconds instead of
minutes: alerts fire when something is done to the cluster, and resolve when it is undone."""

import concurrent.futures
import json
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from operations import ROOT, Cluster, Server, StoppedThread, eventually, http_flags, samples, scrape

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

    def __init__(self, cluster, tokens, at_once=1):
        self.cluster, self.tokens, self.stopping = cluster, tokens, False
        self.threads = [threading.Thread(target=self.run) for _ in range(at_once)]

    def run(self):
        while not self.stopping:
            self.ask()

    def ask(self):
        self.cluster.generate(tokens=self.tokens)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *unused):
        self.stopping = True
        for thread in self.threads:
            thread.join()


class HttpTraffic(Traffic):
    """The same over HTTP, at one router."""

    def __init__(self, router, tokens, at_once):
        super().__init__(None, tokens, at_once)
        self.refusals = set()
        self.url = f"http://{router.http()}/v1/completions"

    def ask(self):
        body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": self.tokens}).encode()
        try:
            urllib.request.urlopen(urllib.request.Request(self.url, body, {"Content-Type": "application/json"}), timeout=60).read()
        except urllib.error.HTTPError as error:
            self.refusals.add(error.code)


def write_certificate(folder, days):
    """A pair that ends then, in the place of the one before."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days),
                    "-subj", "/CN=localhost", "-keyout", folder / "new.key", "-out", folder / "new.crt"], check=True, capture_output=True)
    for name in ("crt", "key"):
        (folder / f"new.{name}").rename(folder / f"tls.{name}")


class Alerts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill=1, decode=2, flags=["--stall_ms=1000"])
        cls.addClassCleanup(cls.cluster.stop)
        # A second router, with a certificate, that takes one request at a time.
        cls.folder = pathlib.Path(cls.cluster.folder.name)
        write_certificate(cls.folder, 90)
        cls.narrow = Server(cls.folder, "router-narrow", ["--model_name=tiny", *http_flags(), "--max_requests=1",
                                                          f"--tls_cert={cls.folder}/tls.crt", f"--tls_key={cls.folder}/tls.key",
                                                          *(f"--workers={w.listen}" for w in cls.cluster.workers)])
        cls.addClassCleanup(cls.narrow.stop)
        cls.narrow.await_ready()
        cls.prometheus = Prometheus([server.metrics for server in cls.servers()])
        cls.addClassCleanup(cls.prometheus.stop)

    @classmethod
    def servers(cls):
        return [*cls.cluster.servers(), cls.narrow]

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

    def test_nothing_that_answers(self):
        try:
            for server in self.servers():
                server.process.send_signal(signal.SIGSTOP)
            self.fires("PenstockMetricsAbsent", "PenstockDown")
        finally:
            for server in self.servers():
                server.process.send_signal(signal.SIGCONT)
        self.resolves("PenstockMetricsAbsent", "PenstockDown")

    def test_first_tokens_that_are_late(self):
        worker = self.cluster.worker("prefill-0")
        names = {"PenstockFirstTokenSloBurnFast", "PenstockFirstTokenSloBurnSlow"}

        def all_are_late():
            worker.process.send_signal(signal.SIGSTOP)
            try:
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    answers = pool.submit(self.cluster.generate_many, 4, 2)
                    time.sleep(2)  # shorter than what makes the router call it silent
                    worker.process.send_signal(signal.SIGCONT)
                    answers.result()
            finally:
                worker.process.send_signal(signal.SIGCONT)
            return names <= self.prometheus.firing()
        eventually(all_are_late, 60, f"{names} firing")
        with Traffic(self.cluster, tokens=2):
            self.resolves(*names)

    def test_one_role_that_works_more(self):
        with Traffic(self.cluster, tokens=900, at_once=6):
            self.fires("PenstockPrefillDecodeImbalance")
        self.resolves("PenstockPrefillDecodeImbalance")

    def test_requests_that_are_refused(self):
        with HttpTraffic(self.narrow, tokens=200, at_once=3) as traffic:
            self.fires("PenstockRejectionsHigh")
        self.assertIn(503, traffic.refusals)
        self.resolves("PenstockRejectionsHigh")  # nobody asks any more

    def test_descriptors_that_run_out(self):
        process = self.narrow.process.pid
        limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
        used = int(samples(scrape(self.narrow))["process_open_fds"])
        resource.prlimit(process, resource.RLIMIT_NOFILE, (used + 3, limits[1]))
        try:
            self.fires("PenstockFdsHigh")
        finally:
            resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        self.resolves("PenstockFdsHigh")

    def test_a_certificate_that_ends(self):
        write_certificate(self.folder, 3)
        self.fires("PenstockCertificateExpires")
        write_certificate(self.folder, 90)
        self.resolves("PenstockCertificateExpires")


if __name__ == "__main__":
    unittest.main()
