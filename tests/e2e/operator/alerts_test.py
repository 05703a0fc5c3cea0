"""Alerts of whole processes, of requests and of the router: they fire when something is done to the cluster, and resolve
when it is undone."""

import concurrent.futures
import json
import pathlib
import resource
import signal
import subprocess
import time
import unittest
import urllib.parse
import urllib.request

from operations import Cluster, Server, StoppedThread, eventually, http_flags, samples, scrape
from prometheus import ALERT_PATIENCE_S, AlertTest, HttpTraffic, Prometheus, Traffic


def write_certificate(folder, days):
    """A pair that ends then, in the place of the one before."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days),
                    "-subj", "/CN=localhost", "-keyout", folder / "new.key", "-out", folder / "new.crt"], check=True, capture_output=True)
    for name in ("crt", "key"):
        (folder / f"new.{name}").rename(folder / f"tls.{name}")


class Alerts(AlertTest):
    @classmethod
    def setUpClass(cls):
        # Decode workers do not serve alone, so requests fail without the prefill worker.
        cls.cluster = Cluster(prefill=1, decode=2, flags=["--stall_ms=1000"], router_flags=["--ttft_target_ms=1000"], decode_flags=["--local_prefill_max_tokens=0"])
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

    def test_exemplars_lead_to_the_trace_of_a_request(self):
        trace = "0af7651916cd43dd8448eb211c80319c"
        names = [f"penstock_{name}_seconds" for name in ("time_to_first_token", "inter_token_latency", "request_duration")]
        request = urllib.request.Request(f"http://{self.cluster.http()}/v1/completions", json.dumps({"prompt": "A river", "max_tokens": 4, "ignore_eos": True}).encode(),
                                         {"Content-Type": "application/json", "traceparent": f"00-{trace}-b7ad6b7169203331-01"})

        def ask():
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.assertEqual(json.loads(answer.read())["usage"]["completion_tokens"], 4)

        def found(name):
            query = urllib.parse.urlencode({"query": f"{name}_bucket", "start": time.time() - 600, "end": time.time() + 600})
            series = self.prometheus.get(f"/api/v1/query_exemplars?{query}")["data"]
            return any(exemplar["labels"] == {"trace_id": trace} for one in series for exemplar in one["exemplars"])

        # A bucket has its newest exemplar only, and Prometheus takes it once a second.
        eventually(lambda: ask() or all(found(name) for name in names), what="the trace in Prometheus")

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
        eventually(all_are_late, ALERT_PATIENCE_S, f"{names} firing")
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
