"""Logs of real processes: one line an event, ids first, and nothing that a client sends breaks a line."""

import json
import re
import unittest
import urllib.request

from operations import ROOT, Cluster, eventually, samples, scrape
from prompts import Prompts

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALL = re.compile(r"\bLog(?:Debug|Info|Warning|Error|Request)?\([^;\"]*\"([^\"]*)\"")


def documented():
    """Event to levels, from docs/operations/logs.md."""
    found = {}
    for events, level in re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|[^|]*\| ([a-z;, ]+)[^|]*\|", (ROOT / "docs/operations/logs.md").read_text(), re.M):
        for event in re.findall(r"`([a-z_]+)`", events):
            assert event not in found, event
            found[event] = set(re.findall(r"debug|info|warning|error", level))
    return found


def emitted():
    """The events that the sources name: the first literal of every call that writes a line."""
    events = set()
    for path in ROOT.glob("*/**/*.[ch]*"):
        folder = path.relative_to(ROOT).parts[0]
        if folder in ("tests", "build", "docs", "examples") or path.name in ("log.h", "log.cc") or path.suffix not in (".cc", ".h"):
            continue
        text = path.read_text()
        events.update(CALL.findall(text))
    return events | {"log_dropped"}  # base/log/log.cc says it itself


def lines_of(server):
    """The lines that are whole now."""
    return server.log.read_bytes().rpartition(b"\n")[0].decode().splitlines()


def parse_text(line):
    """A line of logfmt, as any reader of it does."""
    fields, at = {}, 0
    pattern = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "=\\]*)(?: |$)')
    while at < len(line):
        match = pattern.match(line, at)
        assert match, line[at:]
        value = match.group(2)
        if value.startswith('"'):
            value = re.sub(r'\\(x..|u....|.)', lambda m: {"n": "\n"}.get(m.group(1)) or (
                chr(int(m.group(1)[1:], 16)) if len(m.group(1)) > 1 else m.group(1)), value[1:-1])
        assert match.group(1) not in fields, line
        fields[match.group(1)] = value
        at = match.end()
    return fields


class Documentation(unittest.TestCase):
    def test_the_page_lists_the_events_that_there_are(self):
        found = emitted()
        self.assertGreater(len(found), 50)
        self.assertEqual(set(documented()), found)


class Lines(unittest.TestCase):
    """One cluster that logs as JSON, at debug; see Levels for the default."""

    FLAGS = ["--log_level=debug", "--log_format=json"]

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(1, 1, cls.FLAGS, router_flags=cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def lines(self, server):
        return [json.loads(line) for line in lines_of(server)]

    def of_request(self, server, request):
        return [line for line in self.lines(server) if line.get("request") == request]

    def post(self, request_id, headers=(), **fields):
        body = {"model": "tiny", "prompt": f"{request_id} " * 60, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
        request = urllib.request.Request(f"http://{self.cluster.http()}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "X-Request-Id": request_id, **dict(headers)})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def events_of(self, request):
        def complete():
            router = [line["event"] for line in self.of_request(self.cluster.router, request)]
            prefill, decode = ([line["event"] for line in self.of_request(worker, request)] for worker in self.cluster.workers)
            ended = router[-1:] == ["request_finished"] and "prefill_ended" in prefill and "decode_ended" in decode
            return (router, prefill, decode) if ended else None
        return eventually(complete, what=f"all lines of {request}")

    def test_every_line_has_its_keys_and_a_documented_event(self):
        self.post("keys")
        self.events_of("keys")
        for server in self.cluster.servers():
            component = "router" if server is self.cluster.router else server.name
            for line in self.lines(server):
                keys = list(line)
                self.assertEqual(keys[:3], ["time", "level", "component"], line)
                self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d$")
                self.assertEqual(line["component"], component)
                if "request" in line:
                    self.assertEqual(keys[3:6], ["request", "trace", "event"], line)
                    self.assertRegex(line["trace"], "^[0-9a-f]{32}$")
                elif "trace" in line:  # of another worker's request
                    self.assertEqual(keys[3:5], ["trace", "event"], line)
                else:
                    self.assertEqual(keys[3], "event", line)
                self.assertIn(line["level"], documented()[line["event"]], line)

    def test_a_request_has_one_line_for_each_event(self):
        # A prompt that is not cached and too long for the decode worker goes the whole way.
        self.post("life", max_tokens=64)  # the prefill worker's part is over before the answer
        router, prefill, decode = self.events_of("life")
        self.assertEqual(router, ["request_accepted", "request_placed", "first_token", "request_finished"])
        self.assertEqual(prefill, ["prefill_taken", "prefill_computed", "handed_off", "prefill_ended"])
        self.assertEqual(decode, ["decode_admitted", "kv_committed", "decode_first_step", "decode_ended"])

    def test_a_callers_trace_is_in_every_process(self):
        self.post("traced", {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "a=1"})
        self.events_of("traced")
        for server in self.cluster.servers():
            self.assertEqual({line["trace"] for line in self.of_request(server, "traced")}, {TRACE}, server.name)
        # The prefill worker's own stream to the decode worker says it, too.
        self.assertEqual(len([line for line in self.lines(self.cluster.worker("decode-0"))
                              if line["event"] == "handoff_opened" and line["trace"] == TRACE]), 1)

    def test_a_malformed_trace_is_replaced(self):
        for number, parent in enumerate(["00-" + "0" * 32 + "-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7", "ff" * 20]):
            self.post(f"bad-{number}", {"traceparent": parent})
            self.events_of(f"bad-{number}")
            found = {line["trace"] for server in self.cluster.servers() for line in self.of_request(server, f"bad-{number}")}
            self.assertEqual(len(found), 1)
            self.assertRegex(found.pop(), "^(?!0{32})(?!4bf92f)[0-9a-f]{32}$")

    def test_a_timeline_names_the_trace_of_its_lines(self):
        shown = self.cluster.cli("trace", "--endpoint", self.cluster.router.listen, "--max-tokens", "4", "Where is it?")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        request, trace = re.search(r"request (\S+):.*\n.*trace ([0-9a-f]{32})", shown.stdout).groups()
        line = eventually(lambda: [line for line in self.of_request(self.cluster.router, request) if line["event"] == "request_finished"])
        self.assertEqual([line["trace"] for line in line], [trace])

    def test_nothing_that_a_client_sends_breaks_a_line(self):
        forged = 'x" event=stopped level=error, {"event":"stopped"}\\'
        self.post(forged)
        self.events_of(forged)  # parsed strictly, and found by its whole id
        self.assertNotIn("stopped", [line["event"] for line in self.lines(self.cluster.router)])


class PeerReads(unittest.TestCase):
    def test_the_trace_of_a_prompt_goes_to_the_worker_that_has_its_prefix(self):
        cluster = Cluster(2, 1, Lines.FLAGS)
        self.addCleanup(cluster.stop)

        def traces(event, **fields):
            return {line["trace"] for worker in cluster.workers for line in map(json.loads, lines_of(worker))
                    if line["event"] == event and all(line[name] == value for name, value in fields.items())}
        with Prompts(cluster.router, 1200, shared=1100, max_tokens=2) as prompts:
            prompts.add(12)
            eventually(lambda: traces("prefix_sent", result="sent"), what="a prefix that is read")
        self.assertLessEqual(traces("prefix_sent", result="sent"), traces("prefill_taken"))


class Levels(unittest.TestCase):
    def test_the_default_has_one_line_a_request_and_a_limit(self):
        cluster = Cluster(1, 1)
        self.addCleanup(cluster.stop)

        def finished():
            lines = [parse_text(line) for line in lines_of(cluster.router)]
            return [line["request"] for line in lines if line["event"] == "request_finished"]

        def of_requests(server):
            return [line for line in lines_of(server) if " request=" in line]

        self.assertEqual(cluster.generate()[0], 0)
        eventually(lambda: len(finished()) == 1, what="the line")
        self.assertEqual(len(of_requests(cluster.router)), 1)
        for worker in cluster.workers:
            self.assertEqual(of_requests(worker), [])
        result = cluster.cli("bench", "serve", "--endpoint", f"http://{cluster.http()}", "--json", "--requests", 1200, "--concurrency", 64,
                             "--prompt-tokens", 8, "--output-tokens", 1)
        self.assertEqual(result.returncode, 0, result.stderr)

        def accounted():
            found = samples(scrape(cluster.router))

            def total(name):
                return sum(value for sample, value in found.items() if sample.startswith(name + "{"))
            wanted = total("penstock_requests_total") + total("penstock_migrations_total")
            return total("penstock_requests_total") > 1200 and len(of_requests(cluster.router)) + found["penstock_log_dropped_total"] == wanted
        eventually(accounted, what="every request, written or counted")

        def said():  # by a router that nobody asks any more
            dropped = samples(scrape(cluster.router))["penstock_log_dropped_total"]
            return dropped == sum(int(parse_text(line)["lines"]) for line in lines_of(cluster.router)
                                  if " event=log_dropped " in line)
        eventually(said, what="how many lines are missing")


if __name__ == "__main__":
    unittest.main()
