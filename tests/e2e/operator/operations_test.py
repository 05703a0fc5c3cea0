"""Metrics, health and plans against real processes."""

import concurrent.futures
import hashlib
import http.client
import json
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from operations import BIN, MODEL, ROOT, Cluster, Server, StoppedThread, eventually, samples, scrape


# For what may be tried again and again: it bounds a test that fails, not one that is slow.
LEAVE_PATIENCE_S = 300


def documented():
    """Name to what moves it, from docs/operations/metrics.md."""
    rows = re.findall(r"^\| `([a-z0-9_:]+)` \|.*\| ([a-z]+) \|$", (ROOT / "docs/operations/metrics.md").read_text(), re.M)
    assert len(rows) > 30
    return dict(rows)


def family(sample):
    return re.sub(r"(_bucket|_sum|_count)$", "", sample.split("{")[0])


def families(texts):
    return {name for text in texts for name in re.findall(r"^# TYPE (\S+)", text, re.M)}


def moved(name, before, later):
    return any(value != before[server].get(sample) for server, found in later.items()
               for sample, value in found.items() if family(sample) == name)


def call(router, body, key=None):
    """A connection on which a completion was asked for."""
    connection = http.client.HTTPConnection(router.http(), timeout=LEAVE_PATIENCE_S)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection.request("POST", "/v1/completions", json.dumps({"model": "tiny", **body}), headers)
    return connection


def readable(connection):
    """True once an answer has begun, or the connection has ended."""
    return bool(select.select([connection.sock], [], [], 0)[0])


def ask(router, body, key=None):
    """Status and body of a completion."""
    connection = call(router, body, key)
    try:
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send_raw(router, text):
    """The status that whatever was sent is answered with."""
    host, port = router.http().split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(text.encode())
        return int(connection.makefile("rb").readline().split()[1])


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill_flags=["--wire_codec=lxr"])

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def read(self):
        return {server.name: samples(scrape(server)) for server in self.cluster.servers() if server.process.poll() is None}

    def test_every_documented_metric_is_there_from_the_start_and_moves(self):
        cluster = self.cluster
        texts = [scrape(server) for server in cluster.servers()]
        before = self.read()
        wanted = documented()
        self.assertEqual(set(wanted) - families(texts), set(), "documented and not exported")

        for code, answer in cluster.generate_many(24, tokens=24):
            self.assertEqual(code, 0, answer)
        self.assertNotEqual(cluster.generate("word " * 4000)[0], 0)  # longer than the context
        for _ in range(4):  # what is long enough for the cache
            self.assertEqual(ask(cluster.router, {"prompt": "Once upon a time " * 10, "max_tokens": 4})[0], 200)
        after_requests = self.read()
        def sent(name):  # by both prefill workers, over every lane
            return sum(value for found in after_requests.values() for sample, value in found.items() if family(sample) == name)
        pages, wire = sent("penstock_kv_transfer_bytes_total"), sent("penstock_kv_transfer_wire_bytes_total")
        self.assertLess(wire, 0.9 * pages, "--wire_codec encodes slabs")
        self.assertGreater(wire, 0.5 * pages)
        # One decode worker dies under load: its requests move.
        victim = cluster.worker("decode-0")
        failovers = [name for name, by in wanted.items() if by == "failover"]

        def dies():  # on a busy machine perhaps when all answers have just ended
            if victim.process.poll() is not None:
                victim.restart()
                victim.await_ready()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answers = pool.submit(cluster.generate_many, 8, 800, 8)
                eventually(lambda: samples(scrape(victim)).get("penstock_requests_running", 0) > 0 or answers.done(), what="a request at decode-0")
                victim.process.kill()
                victim.process.wait()
                for code, answer in answers.result():
                    self.assertEqual(code, 0, answer)
            after = self.read()
            return after if all(moved(name, before, after) for name in failovers) else None
        after_all = eventually(dies, what=f"requests that move, with each of {failovers}")

        for name, by in wanted.items():
            with self.subTest(metric=name, by=by):
                if by in ("requests", "http"):
                    self.assertTrue(moved(name, before, after_requests))
                elif by == "failover":
                    self.assertTrue(moved(name, before, after_all))
                elif by == "constant":
                    values = [v for found in before.values() for s, v in found.items() if family(s) == name]
                    self.assertTrue(any(value > 0 for value in values))
                elif by != "pressure":  # see Tiers
                    self.assertIn(by, ["load", "trouble"])  # a level that is back where it was, or faults

        # Bounded labels: what requests do adds no series.
        for server, found in after_all.items():
            self.assertEqual(set(found), set(before[server]), server)
        victim.restart()
        victim.await_ready()

    def assert_scrapes_are_quick(self):
        def scrape_s(server):
            start = time.monotonic()
            scrape(server)
            return time.monotonic() - start

        for server in self.cluster.servers():  # the shortest of several: others may be longer where the machine is busy
            eventually(lambda server=server: scrape_s(server) < 0.05, 30, f"a scrape of {server.name} within 50 ms")

    def test_ten_thousand_requests_add_no_series_and_scrapes_stay_quick(self):
        self.assert_scrapes_are_quick()
        before = self.read()
        result = self.cluster.cli("bench", "serve", "--endpoint", f"http://{self.cluster.http()}", "--json", "--requests", 10_000,
                                  "--concurrency", 64, "--prompt-tokens", "1:40", "--output-tokens", "1:3", timeout=500)
        self.assertEqual(result.returncode, 0, result.stderr)

        def ended(found):
            return sum(v for s, v in found["router"].items() if family(s) == "penstock_requests_total")

        eventually(lambda: ended(self.read()) - ended(before) >= 10_000, what="the router to count them")
        after = self.read()
        for server, found in after.items():
            self.assertEqual(set(found), set(before[server]), server)
        self.assert_scrapes_are_quick()

    def test_dashboards_and_alerts_name_only_what_is_there(self):
        exported = families([scrape(server) for server in self.cluster.servers()])
        texts = [path.read_text() for path in (ROOT / "deploy/grafana").glob("*.json")]
        texts.append((ROOT / "deploy/prometheus/rules.yaml").read_text())
        named = {name for text in texts for name in re.findall(r"\b(?:penstock_|process_|vllm:)[a-z0-9_]+\b(?=[{\[ )])", text)}
        self.assertGreater(len(named), 25)
        self.assertEqual({name for name in named if family(name) not in exported}, set())

    def test_schedulers_of_the_gateway_api_find_vllms_names(self):
        found = samples(scrape(self.cluster.worker("decode-1")))
        labels = '{engine="0",model_name="penstock-tiny"}'
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            self.assertIn(name + labels, found)
        info = next(sample for sample in found if sample.startswith("vllm:cache_config_info"))
        self.assertIn('block_size="16"', info)
        self.assertRegex(info, r'num_gpu_blocks="[1-9][0-9]+"')
        self.assertTrue(any(sample.startswith("vllm:lora_requests_info") for sample in found))

    def test_dashboards_made_for_vllm_see_each_request(self):
        def read(name):
            return samples(scrape(self.cluster.router))[f'vllm:{name}{{engine="0",model_name="tiny"}}']

        names = [f"request_{name}_{end}" for end in ("sum", "count")
                 for name in ("queue_time_seconds", "prefill_time_seconds", "decode_time_seconds", "prompt_tokens", "generation_tokens")]
        before = {name: read(name) for name in names}
        status, answer = ask(self.cluster.router, {"prompt": "Once upon a time, far away,", "max_tokens": 64, "ignore_eos": True})
        self.assertEqual(status, 200, answer)
        usage = json.loads(answer)["usage"]
        counts = [name for name in names if name.endswith("count")]
        eventually(lambda: all(read(name) > before[name] for name in counts), what="the request in each histogram")
        added = {name: read(name) - before[name] for name in names}
        for name in counts:
            self.assertEqual(added[name], 1, name)
        self.assertGreaterEqual(added["request_queue_time_seconds_sum"], 0)  # 0 when a worker was idle
        for name in ("prefill", "decode"):
            self.assertGreater(added[f"request_{name}_time_seconds_sum"], 0, name)
        self.assertEqual(added["request_prompt_tokens_sum"], usage["prompt_tokens"])
        self.assertEqual(added["request_generation_tokens_sum"], usage["completion_tokens"])

    def test_openmetrics_has_the_same_series(self):
        for server in self.cluster.servers():
            plain = samples(scrape(server))
            request = urllib.request.Request(f"http://{server.metrics}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read().decode()
            self.assertTrue(text.endswith("\n# EOF\n"))
            types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
            self.assertEqual(len(types), len({name for name, _ in types}), "a name has one family")
            self.assertEqual({kind for _, kind in types} - {"counter", "gauge", "histogram"}, set())
            for name in (name for name, kind in types if kind == "counter"):
                self.assertRegex(text, rf"(?m)^{name}_total[ {{]")
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            self.assertEqual(len(lines), len(plain), server.name)

    def test_a_plan_has_the_blocks_that_workers_report(self):
        rows = self.cluster.top()
        result = self.cluster.cli("plan", "--model", ROOT / "models/penstock-tiny", "--hardware", "h200", "--kv-memory", "64MiB", "--json")
        plan = json.loads(result.stdout)
        for row in rows.values():
            self.assertEqual(row["kv_blocks_total"], plan["blocks"])
        found = samples(scrape(self.cluster.worker("prefill-0")))
        self.assertEqual(found['penstock_kv_capacity_bytes{tier="device"}'], plan["blocks"] * plan["block_bytes"])

    def test_a_request_has_one_line_and_a_timeline(self):
        def ended():
            return re.findall(r" request=(\S+) trace=[0-9a-f]{32} event=request_finished status=OK .* first_token_ms=\d", self.cluster.router.log.read_text())
        before = ended()
        self.assertEqual(self.cluster.generate()[0], 0)
        eventually(lambda: len(ended()) == len(before) + 1, what="one line")
        self.assertEqual(len(set(ended())), len(ended()))
        stages, last = ("router", "queue", "prefill", "transfer", "decode"), {}

        def has_all_stages():  # the first drawn token may end an answer, which is not handed over then
            last["text"] = self.cluster.cli("trace", "--endpoint", self.cluster.router.listen, "--max-tokens", "8", "Once")
            self.assertEqual(last["text"].returncode, 0, last["text"].stderr)
            return all(re.search(rf"(?m)^{stage} +\|.*\| +[0-9.]+ ms", last["text"].stdout) for stage in stages)
        eventually(has_all_stages, what="a timeline with all stages")

        def has_all_tokens():  # a drawn token may end an answer before
            trace = self.cluster.cli("trace", "--endpoint", self.cluster.router.listen, "--max-tokens", "8", "--json", "Once")
            last.update(json.loads(trace.stdout))
            return last["usage"]["completion_tokens"] == 8
        eventually(has_all_tokens, what="an answer of 8 tokens")
        self.assertIn("trace_id", last["timing"])
        explain = self.cluster.cli("explain", "--endpoint", self.cluster.router.listen, "--max-tokens", "8", "Once")
        self.assertRegex(explain.stdout, r"(?m)^Answer of [1-8] tokens; 0 of 0 guesses of speculation were right\.$")
        self.assertRegex(explain.stdout, r"(?m)^Placed on \S+ with \S+, where \d+ of \d+ prompt tokens are cached; .*\.$")


class Clients(unittest.TestCase):
    """A router that asks for keys, has targets that nothing meets and takes few connections."""

    CONNECTIONS = 8

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill=1, decode=1)
        cls.addClassCleanup(cls.cluster.stop)
        folder = pathlib.Path(cls.cluster.folder.name)
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"tenants": [{"name": "acme"}], "keys": [
            {"id": name, "tenant": "acme", "sha256": hashlib.sha256(name.encode()).hexdigest(), **more}
            for name, more in (("good", {}), ("old", {"expires": "2020-01-01"}))]}))
        cls.router = Server(folder, "router-strict", [
            "--model_name=tiny", "--http_listen=127.0.0.1:0", f"--keys_file={keys}", "--ttft_target_ms=1", "--tpot_target_ms=1",
            f"--http_connections={cls.CONNECTIONS}", *(f"--workers={worker.listen}" for worker in cls.cluster.workers)])
        cls.addClassCleanup(cls.router.stop)
        cls.router.await_ready()
        eventually(lambda: ask(cls.router, {"prompt": "Once", "max_tokens": 2}, "good")[0] == 200, what="a router that serves")

    def value(self, name, **labels):
        """The sum of the samples that have these labels."""
        return sum(value for sample, value in samples(scrape(self.router)).items()
                   if family(sample) == name and all(f'{key}="{wanted}"' in sample for key, wanted in labels.items()))

    def grows(self, do, name, **labels):
        before = self.value(name, **labels)
        do()
        eventually(lambda: self.value(name, **labels) > before, what=f"{name} {labels}")

    def until_idle(self):
        eventually(lambda: self.value("penstock_requests_running") == 0, LEAVE_PATIENCE_S, "the end of every request")

    def test_requests_by_endpoint_and_end(self):
        def counted(endpoint, **labels):
            return self.value("penstock_requests_total", endpoint=endpoint, **labels)
        self.until_idle()
        before = {endpoint: counted(endpoint) for endpoint in ("chat", "completions", "generate")}
        self.grows(lambda: ask(self.router, {"prompt": "Once", "max_tokens": 2, "ignore_eos": True}, "good"), "penstock_requests_total",
                   endpoint="completions", status="ok", finish_reason="length")
        self.grows(lambda: ask(self.router, {"prompt": 1.5}, "good"), "penstock_requests_total",  # cannot even be read
                   endpoint="completions", status="client_error")
        self.assertEqual(counted("completions"), before["completions"] + 2)
        self.assertEqual(counted("chat"), before["chat"])
        self.assertEqual(counted("generate"), before["generate"])

    def test_tenants_and_what_they_use(self):
        def used():
            return {kind: self.value("penstock_tenant_tokens_total", tenant="acme", kind=kind) for kind in ("prompt", "cached", "output")}

        self.until_idle()
        before = used()
        status, answer = ask(self.router, {"prompt": "Once upon a time", "max_tokens": 3, "n": 2, "ignore_eos": True}, "good")
        self.assertEqual(status, 200, answer)
        usage = json.loads(answer)["usage"]
        eventually(lambda: used()["output"] > before["output"], what="the tenant's tokens")
        after = used()
        self.assertEqual(after["prompt"] - before["prompt"], usage["prompt_tokens"])
        self.assertEqual(after["output"] - before["output"], 6)
        self.assertEqual(after["cached"] - before["cached"], usage["prompt_tokens_details"]["cached_tokens"])
        self.assertGreater(self.value("penstock_tenant_requests_total", tenant="acme", status="ok"), 0)
        self.assertEqual(self.value("penstock_tenant_tokens_total", tenant=""), 0)

    def test_keys_that_are_not_good(self):
        for key, reason in ((None, "missing"), ("wrong", "unknown"), ("old", "expired")):
            self.grows(lambda k=key: self.assertEqual(ask(self.router, {"prompt": "Once"}, k)[0], 401),
                       "penstock_auth_failures_total", reason=reason)
        basic = "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Z29vZA==\r\n\r\n"
        self.grows(lambda: self.assertEqual(send_raw(self.router, basic), 401), "penstock_auth_failures_total", reason="malformed")

    def test_commands_send_a_key(self):
        router = ("--endpoint", self.router.listen)
        for command in (("generate", "--max-tokens", "2"), ("trace", "--max-tokens", "2"), ("explain",)):
            with self.subTest(command[0]):
                refused = self.cluster.cli(*command, *router, "Once")
                self.assertEqual(refused.returncode, 77)
                self.assertIn("give a key with --api-key or PENSTOCK_API_KEY", refused.stderr)
                self.assertEqual(self.cluster.cli(*command, *router, "--api-key=wrong", "Once").returncode, 77)
                answered = self.cluster.cli(*command, *router, "--api-key=good", "Once")
                self.assertEqual(answered.returncode, 0, answered.stderr)
                answered = self.cluster.cli(*command, *router, "Once", environment={"PENSTOCK_API_KEY": "good"})
                self.assertEqual(answered.returncode, 0, answered.stderr)
        broken = self.cluster.cli("generate", *router, "--api-key=two words", "Once")
        self.assertIn("--api-key may contain only printable ASCII characters", broken.stderr)

    def test_requests_that_are_slower_than_their_targets(self):
        before = self.value("penstock_goodput_requests_total")
        many = {"prompt": "Once upon a time", "max_tokens": 40, "n": 16, "ignore_eos": True}  # 64 sequences in a step
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for metric in ("penstock_slo_violations_total", "penstock_late_tokens_total"):
                self.grows(lambda: ask(self.router, many, "good"), metric, slo="ttft")
                self.grows(lambda: list(pool.map(lambda _: ask(self.router, many, "good"), range(4))), metric, slo="tpot")
        self.assertEqual(self.value("penstock_goodput_requests_total"), before)

    def test_clients_that_leave(self):
        endless = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}

        def left(phase):
            return self.value("penstock_client_disconnects_total", phase=phase)

        # On a busy machine an answer may end before its client leaves, and a request without a worker ends by
        # itself after some seconds: such a client did not leave, and another one tries.
        def leave_while_answered():
            before = left("answering")
            connection = call(self.router, endless, "good")
            self.assertTrue(connection.getresponse().readline().startswith(b"data:"))
            connection.close()
            self.until_idle()
            return left("answering") > before
        eventually(leave_while_answered, LEAVE_PATIENCE_S, "a client that left while it was answered")

        worker = self.cluster.worker("prefill-0")

        def leave_before_that():
            before = left("waiting")
            connection = call(self.router, endless, "good")
            eventually(lambda: self.value("penstock_requests_running") > 0 or readable(connection), what="the request")
            connection.close()
            self.until_idle()
            return left("waiting") > before
        worker.process.send_signal(signal.SIGSTOP)
        try:
            eventually(leave_before_that, LEAVE_PATIENCE_S, "a client that left before its answer")
        finally:
            worker.process.send_signal(signal.SIGCONT)
        eventually(lambda: ask(self.router, {"prompt": "Once", "max_tokens": 2}, "good")[0] == 200, LEAVE_PATIENCE_S, "an answer again")

    def test_limits_of_the_http_port(self):
        for limit, status, text in (
                ("malformed", 400, "GET /\r\n\r\n"),
                ("head", 431, f"GET /health HTTP/1.1\r\nHost: a\r\nX: {'x' * 20000}\r\n\r\n"),
                ("body", 413, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\n"
                              f"Content-Type: application/json\r\nContent-Length: {1 << 30}\r\n\r\n")):
            self.grows(lambda t=text, s=status: self.assertEqual(send_raw(self.router, t), s), "penstock_edge_limit_hits_total", limit=limit)
            eventually(lambda s=status: self.value("penstock_edge_responses_total", code=s) > 0, what=f"responses with {status}")
        host, port = self.router.http().split(":")
        held = [socket.create_connection((host, int(port))) for _ in range(self.CONNECTIONS)]
        try:
            eventually(lambda: self.value("penstock_edge_connections") >= self.CONNECTIONS, what="connections that are counted")
            health = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"  # makes room for itself
            self.grows(lambda: self.assertEqual(send_raw(self.router, health), 200), "penstock_edge_limit_hits_total", limit="connections")
        finally:
            for connection in held:
                connection.close()
        eventually(lambda: self.value("penstock_edge_connections") == 0, what="connections that are gone")


class ModelOptions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(prefill=1, decode=1)
        cls.addClassCleanup(cls.cluster.stop)

    def router(self, name, *flags):
        router = Server(pathlib.Path(self.cluster.folder.name), name, [
            "--model_name=tiny", "--http_listen=127.0.0.1:0", *(f"--workers={worker.listen}" for worker in self.cluster.workers), *flags])
        self.addCleanup(router.stop)
        return router

    def test_a_model_has_aliases_and_a_shorter_context(self):
        router = self.router("router-short", "--model_alias=gpt-4o,default", "--max_model_len=100")
        router.await_ready()
        url = f"http://{router.http()}/v1/"
        with urllib.request.urlopen(url + "models", timeout=60) as answer:
            models = json.load(answer)["data"]
        self.assertEqual([(model["id"], model["max_model_len"]) for model in models], [("tiny", 100), ("gpt-4o", 100), ("default", 100)])

        def complete(model, prompt_tokens):
            body = json.dumps({"model": model, "prompt": [5] * prompt_tokens, "max_tokens": 50, "ignore_eos": True}).encode()
            request = urllib.request.Request(url + "completions", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        eventually(lambda: complete("tiny", 4)[0] == 200, what="an answer")
        status, answer = complete("default", 60)
        self.assertEqual((status, answer["model"], answer["usage"]["completion_tokens"]), (200, "tiny", 40))
        status, answer = complete("tiny", 100)
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
        status, answer = complete("gpt-9", 4)
        self.assertEqual((status, answer["error"]["message"]), (404, 'model "gpt-9" not found; available: tiny, gpt-4o, default'))

    def test_options_that_cannot_be_are_refused(self):
        for flag, why in (("--max_model_len=1000000", "max_model_len is 1000000"), ("--model_alias=tiny", "the name 'tiny' is given twice")):
            with self.subTest(flag):
                refused = subprocess.run([str(BIN / "penstock-router"), f"--model={MODEL}", "--model_name=tiny", "--listen=127.0.0.1:0", "--workers=127.0.0.1:1", flag],
                                         capture_output=True, text=True, timeout=30)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(why, refused.stderr)


class Liveness(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(flags=["--stall_ms=2000"])

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def test_health_of_an_address_in_brackets(self):
        """As the chart's probes ask: they do not know the family of a pod's address."""
        for server in self.cluster.servers():
            host, port = server.listen.rsplit(":", 1)
            result = self.cluster.cli("health", "--endpoint", f"[{host}]:{port}")
            self.assertEqual(result.returncode, 0, result.stderr)

    def assert_served_by_others(self, victim):
        for code, answer in self.cluster.generate_many(6):
            self.assertEqual(code, 0, answer)
            self.assertNotIn(victim.name, json.dumps(answer))

    def assert_back(self, victim):
        eventually(lambda: self.cluster.healthy(victim, "live") and self.cluster.healthy(victim), what="health")
        eventually(lambda: any(victim.name in json.dumps(answer) for _, answer in self.cluster.generate_many(6)),
                   what="a request at the worker that is back")

    def says_unhealthy(self, victim):
        try:
            eventually(lambda: samples(scrape(victim))["penstock_worker_healthy"] == 0, 10, "the gauge")
            eventually(lambda: self.cluster.top()[victim.listen]["state"] == "unhealthy", 10, "the worker in top")
        except (AssertionError, OSError):
            return False
        return True

    def stall(self, name):
        # A thread that is stopped by force may hold a lock, and then whoever asks the worker hangs with
        # it; one that hangs in a kernel holds none. So it may take another try to stop it well.
        self.assertTrue(any(self.stalls_and_recovers(name) for _ in range(4)), "always stopped inside a lock")

    def stalls_and_recovers(self, name):
        cluster, victim = self.cluster, self.cluster.worker(name)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # Some of these are at the victim when it stops: they move, and nobody sees an error.
            if name.startswith("decode"):
                answers = pool.submit(cluster.generate_many, 8, 400, 8)
                eventually(lambda: samples(scrape(victim)).get("penstock_requests_running", 0) > 0, what="a request at the worker")
            with StoppedThread(victim.engine_thread()):
                if name.startswith("prefill"):  # it is too quick to be met at work: its work waits for it
                    answers = pool.submit(cluster.generate_many, 8, 16, 8)
                eventually(lambda: not cluster.healthy(victim, "live"), 10, "red health")
                said = self.says_unhealthy(victim)
                name = f"thread=engine-{victim.name.split('-')[0]}"
                eventually(lambda: f"event=engine_stack {name}" in victim.log.read_text(), what="a line about its stack")
                for code, answer in answers.result():
                    self.assertEqual(code, 0, answer)
                role = victim.name.split("-")[0]
                eventually(lambda: samples(scrape(cluster.router))[f'penstock_workers{{role="{role}",state="ready"}}'] == 1, what="a router that has heard of it")
                self.assert_served_by_others(victim)
                eventually(lambda: cluster.healthy(cluster.router), what="a healthy router")
        self.assert_back(victim)
        eventually(lambda: samples(scrape(victim))["penstock_worker_healthy"] == 1, what="the gauge")
        return said

    def test_a_stuck_decode_engine_is_unhealthy_until_it_moves(self):
        self.stall("decode-0")

    def test_a_stuck_prefill_engine_is_unhealthy_until_it_moves(self):
        self.stall("prefill-0")

    def test_a_stopped_process_is_avoided_until_it_goes_on(self):
        victim = self.cluster.worker("decode-1")
        victim.process.send_signal(signal.SIGSTOP)
        try:
            self.assertFalse(self.cluster.healthy(victim, "live"))
            router = self.cluster.router
            eventually(lambda: samples(scrape(router))['penstock_workers{role="decode",state="silent"}'] == 1, what="silence")
            self.assert_served_by_others(victim)
        finally:
            victim.process.send_signal(signal.SIGCONT)
        self.assert_back(victim)


class Tiers(unittest.TestCase):
    def test_their_metrics_move_when_pools_are_small(self):
        with tempfile.TemporaryDirectory(prefix="penstock-tiers-") as folder:
            cluster = Cluster(1, 1, ["--kv_memory=600KiB", "--dram_memory=4MiB", f"--nvme_dir={folder}/kv",
                                     "--nvme_size=64MiB", "--nvme_min_uses=1"])
            self.addCleanup(cluster.stop)
            before = {worker.name: {} for worker in cluster.workers}
            wanted = [name for name, by in documented().items() if by == "pressure"]
            self.assertGreater(len(wanted), 10)

            def still():
                read = {worker.name: {s: v for s, v in samples(scrape(worker)).items() if v != 0} for worker in cluster.workers}
                return [name for name in wanted if not moved(name, before, read)]

            def all_move():
                with concurrent.futures.ThreadPoolExecutor(6) as pool:
                    for code, answer in pool.map(lambda i: cluster.generate(f"{i} " * 30, 90), range(20)):
                        self.assertEqual(code, 0, answer)
                return not still()
            try:
                eventually(all_move, what="every metric of the tiers")
            except AssertionError:
                self.fail(f"these did not move: {still()}")
            cluster.stop()


if __name__ == "__main__":
    unittest.main()
