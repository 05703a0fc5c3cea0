"""A real Prometheus that watches real processes, with the rules of deploy/prometheus in seconds instead of minutes, and
the traffic it sees. For the tests of alerts."""

import json
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from operations import ROOT, eventually, free_port

ALERT_PATIENCE_S = 150


def rules_in_seconds(window_s):
    text = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    text = re.sub(r"\[\d+[mh]\]", f"[{window_s}s]", text)
    return re.sub(r"for: \S+", "for: 1s", text)


class Prometheus:
    def __init__(self, targets, window_s=8):
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-prometheus-")
        path = pathlib.Path(self.folder.name)
        (path / "rules.yaml").write_text(rules_in_seconds(window_s))
        (path / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": targets}]}]}))
        self.address = f"127.0.0.1:{free_port()}"
        self.log = open(path / "log", "w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}/prometheus.yaml", f"--storage.tsdb.path={path}/data",
             f"--web.listen-address={self.address}", "--enable-feature=exemplar-storage"], stdout=self.log, stderr=self.log)
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


class AlertTest(unittest.TestCase):
    """With a `prometheus` of the class."""

    def fires(self, *names):
        eventually(lambda: set(names) <= self.prometheus.firing(), ALERT_PATIENCE_S, f"{names} firing")

    def resolves(self, *names):
        eventually(lambda: not set(names) & self.prometheus.firing(), ALERT_PATIENCE_S, f"{names} resolving")
