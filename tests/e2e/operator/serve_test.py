"""`penstock bench serve` against real processes: what it counts is what the router counts."""

import json
import pathlib
import signal
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from operations import BIN, PATIENCE_S, Cluster, eventually, samples, scrape


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill=1, decode=1)
        cls.http = "http://" + eventually(lambda: cls.find_http(), what="the router's HTTP address")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    @classmethod
    def find_http(cls):
        marker = " http="
        line = next((line for line in cls.cluster.router.log.read_text().splitlines() if marker in line), None)
        return line and line.split(marker)[1].split()[0]

    def endpoints(self):
        return {"http": self.http, "grpc": "grpc://" + self.cluster.router.listen}

    def serve(self, endpoint, *arguments):
        """The result of a run that must succeed."""
        result = self.cluster.cli("bench", "serve", "--endpoint", endpoint, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def counters(self):
        """The router's counters since it started."""
        found = samples(scrape(self.cluster.router))
        def total(name, label=""):
            return sum(value for sample, value in found.items() if sample.split("{")[0] == name and label in sample)
        return {"completed": total("penstock_requests_total", 'status="ok"'),
                "ended": total("penstock_requests_total"),
                "input": total("penstock_prompt_tokens_total"),
                "cached": total("penstock_prompt_tokens_cached_total"),
                "output": total("penstock_output_tokens_total"),
                "first_tokens": total("penstock_time_to_first_token_seconds_count"),
                "first_seconds": total("penstock_time_to_first_token_seconds_sum")}

    def moved(self, before, name):
        return self.counters()[name] - before[name]

    def test_counts_are_those_of_the_router(self):
        for number, (protocol, endpoint) in enumerate(self.endpoints().items()):
            with self.subTest(protocol=protocol):
                before = self.counters()
                got = self.serve(endpoint, "--rate", 40, "--requests", 40, "--prompt-tokens", "20:80", "--output-tokens",
                                 "2:12", "--shared-prefix", 48, "--seed", 100 + number, "--slo", "ttft:60000", "--detailed")
                self.assertEqual((got["completed"], got["failed"], got["unfinished"]), (40, 0, 0))
                self.assertEqual((got["count_mismatches"], got["without_usage"], got["short_answers"]), (0, 0, 0))
                eventually(lambda: self.moved(before, "completed") == 40, what="the router to count 40 requests")
                self.assertEqual(self.moved(before, "ended"), 40)
                self.assertEqual(self.moved(before, "first_tokens"), 40)
                self.assertEqual(self.moved(before, "input"), got["total_input_tokens"])
                self.assertEqual(self.moved(before, "cached"), got["total_cached_tokens"])
                self.assertEqual(self.moved(before, "output"), got["total_output_tokens"])
                self.assertEqual(got["counted_output_tokens"], got["total_output_tokens"])
                self.assertGreaterEqual(got["total_cached_tokens"], 48 * 20)  # real sharing
                self.assertEqual(sum(got["output_lens"]), got["total_output_tokens"])
                # A client waits at least as long as the router says it took, and not without end.
                mean_s = self.moved(before, "first_seconds") / 40
                self.assertGreaterEqual(got["mean_ttft_ms"], 1e3 * mean_s * 0.99)
                self.assertGreater(got["mean_e2el_ms"], got["mean_ttft_ms"])
                self.assertAlmostEqual(got["request_goodput"], got["request_throughput"])
                self.assertAlmostEqual(got["request_throughput"] * got["duration"], 40)
                self.assertEqual(len(got["ttfts"]), 40)

    def test_a_chat_counts_as_the_router_does(self):
        for protocol, endpoint in self.endpoints().items():
            with self.subTest(protocol=protocol):
                before = self.counters()
                got = self.serve(endpoint, "--chat", "--concurrency", 3, "--requests", 9, "--prompt-tokens", 20, "--output-tokens", 6)
                self.assertEqual((got["completed"], got["total_output_tokens"], got["count_mismatches"]), (9, 54, 0))
                eventually(lambda: self.moved(before, "completed") == 9, what="the router to count 9 requests")
                self.assertEqual(self.moved(before, "input"), got["total_input_tokens"])
                self.assertLessEqual(got["max_concurrent_requests"], 3)

    def test_a_trace_is_replayed_with_its_sharing(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, plot = pathlib.Path(folder) / "trace.jsonl", pathlib.Path(folder) / "plot.svg"
            output = pathlib.Path(folder) / "result.json"
            # Others come when the first one has ended, whose blocks they find.
            at = [0, *(6000 + 100 * i for i in range(1, 10))]
            rows = [{"timestamp": at[i], "input_length": 64 + 16, "output_length": 4, "hash_ids": [7, 8, 9, 10, 100 + i]} for i in range(10)]
            rows.append({"timestamp": 6900, "input_length": 16 * 200, "output_length": 4, "hash_ids": list(range(1000, 1200))})
            trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
            got = self.serve(self.http, "--trace", trace, "--trace-longest", 1000, "--trace-speed", 2, "--plot", plot, "--output", output)
            self.assertEqual((got["completed"], got["total_input_tokens"], got["total_output_tokens"]), (10, 800, 40))
            self.assertEqual(got["total_cached_tokens"], 9 * 64)  # all but the first have four blocks
            self.assertGreaterEqual(got["duration"], 0.45)
            self.assertEqual(json.loads(output.read_text()), got)
            xml.etree.ElementTree.parse(plot)

    def test_refusals_are_counted_and_named(self):
        for protocol, endpoint in self.endpoints().items():
            with self.subTest(protocol=protocol):
                result = self.cluster.cli("bench", "serve", "--endpoint", endpoint, "--json", "--requests", 4, "--prompt-tokens", 4000)
                self.assertEqual(result.returncode, 1)  # nothing was measured
                got = json.loads(result.stdout)
                self.assertEqual((got["completed"], got["failed"]), (0, 4))
                self.assertEqual(sum(got["error_counts"].values()), 4)
                kind, = got["error_counts"]
                self.assertIn(kind, ("400 context_length_exceeded", "grpc INVALID_ARGUMENT"))
                self.assertIn("2047", got["error_examples"][kind])

    def test_a_signal_ends_it_with_what_was_measured(self):
        for protocol, endpoint in self.endpoints().items():
            with self.subTest(protocol=protocol):
                before = self.counters()
                process = subprocess.Popen(
                    [BIN / "penstock", "bench", "serve", "--endpoint", endpoint, "--json", "--concurrency", "2", "--requests", "1000000",
                     "--output-tokens", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                try:
                    # The client may not have read the last answer of either stream.
                    eventually(lambda: self.moved(before, "completed") >= 6, what="six answers")
                    process.send_signal(signal.SIGINT)
                    output, error = process.communicate(timeout=PATIENCE_S)
                finally:
                    process.kill()
                    process.wait()
                self.assertEqual(process.returncode, 128 + signal.SIGINT, error)
                got = json.loads(output)
                self.assertTrue(got["stopped"])
                self.assertEqual(got["failed"], 0, got["error_counts"])
                self.assertGreaterEqual(got["completed"], 4)
                self.assertLessEqual(got["unfinished"], 2)
                # Those that were given up have ended on the router, too.
                sent = got["completed"] + got["unfinished"]
                eventually(lambda: self.moved(before, "ended") >= sent - 1, what="the router to be done")

    def test_what_cannot_work_is_refused(self):
        for arguments, code, words in ((["--endpoint", "https://a.example"], 65, "no TLS"),
                                       (["--endpoint", "ftp://a"], 65, "http://, grpc:// or grpcs://"),
                                       (["--endpoint", "http://127.0.0.1:1"], 69, "refused"),
                                       (["--endpoint", "grpc://127.0.0.1:1"], 69, "nobody answers"),
                                       (["--prompt-tokens", "9:3"], 65, "--prompt-tokens"),
                                       (["--slo", "itl:1"], 65, "is no limit"),
                                       (["--trace", "/nowhere"], 66, "/nowhere"),
                                       (["--rate", "inf", "--duration", "1"], 65, "--requests"),
                                       (["--rate", "1", "--concurrency", "1"], 64, "--concurrency"),
                                       (["--rat", "1"], 64, "did you mean --rate?")):
            with self.subTest(arguments=arguments):
                result = self.cluster.cli("bench", "serve", *arguments)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
