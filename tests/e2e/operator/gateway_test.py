"""The endpoint picker: asked by a client with Envoy's own messages, and by a real Envoy that sends requests where it says."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from operations import BIN, PATIENCE_S, ROOT, Cluster, Server, eventually, free_port, samples, scrape, streams_while_it_runs

VENV = BIN.parent / "openai-venv"


def run_with_clients():
    """Runs this file again with a Python that has Envoy and its messages."""
    made = subprocess.run([ROOT / "tests/e2e/python/venv", VENV], text=True, capture_output=True, check=False)
    if made.returncode != 0:
        print(f"the clients cannot be installed here: {made.stderr}", file=sys.stderr)
        sys.exit(77)
    os.execv(VENV / "bin/python", [VENV / "bin/python", "-B", *sys.argv])


if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    run_with_clients()

import grpc  # noqa: E402
from envoy.config.core.v3 import base_pb2  # noqa: E402
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402

Mode = processing_mode_pb2.ProcessingMode
DESTINATION = "x-gateway-destination-endpoint"
COMPLETION = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
MESSAGE = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"model": "tiny", "input": "Hello", "max_output_tokens": 8, "temperature": 0}
BODIES = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/v1/responses": RESPONSE, "/v1/messages": MESSAGE}


def picker_of(router):
    return next(line.split("=")[1] for line in router.ready.read_text().splitlines() if line.startswith("picker="))


def picks(router):
    """The router's counters of picks, by outcome."""
    found = samples(scrape(router))
    return {name.split('"')[1]: value for name, value in found.items() if name.startswith("penstock_picker_requests_total{")}


def head(path, headers=(), subset=None, mode=Mode.FULL_DUPLEX_STREAMED, end=False):
    fields = {":method": "POST", ":path": path, ":authority": "llm.example.com", ":scheme": "https", "content-type": "application/json",
              **dict(headers)}
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(end_of_stream=end, headers=base_pb2.HeaderMap(
            headers=[base_pb2.HeaderValue(key=name, raw_value=value.encode()) for name, value in fields.items()])),
        protocol_config=ext_proc.ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode))
    if subset is not None:
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({f"{DESTINATION}-subset": subset})
    return message


def body(data, end=True):
    return ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=data, end_of_stream=end))


def named(answer):
    """The endpoint of an answer, which must say the same in the header and in the metadata."""
    common = answer.request_headers.response if answer.HasField("request_headers") else answer.request_body.response
    set_headers = {option.header.key: option.header.raw_value.decode() for option in common.header_mutation.set_headers}
    assert set_headers[DESTINATION] == answer.dynamic_metadata["envoy.lb"][DESTINATION], answer
    return set_headers[DESTINATION]


class Direct(unittest.TestCase):
    """A gateway that we are ourselves."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(1, 1, router_flags=["--endpoint_picker_listen=127.0.0.1:0"])
        cls.addClassCleanup(cls.cluster.stop)
        cls.picker = picker_of(cls.cluster.router)
        cls.channel = grpc.insecure_channel(cls.picker)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = external_processor_pb2_grpc.ExternalProcessorStub(cls.channel)

    def process(self, *messages):
        """All answers to a whole stream."""
        return list(self.stub.Process(iter(messages), timeout=PATIENCE_S))

    def refusal(self, *messages):
        answer = self.process(*messages)[0]
        self.assertTrue(answer.HasField("immediate_response"), answer)
        return answer.immediate_response.status.code, json.loads(answer.immediate_response.body)

    def counts(self, outcome):
        """Checks that the block counts one request of this outcome and no other."""
        @contextlib.contextmanager
        def block():
            before = picks(self.cluster.router)
            yield
            moved = {name: value - before[name] for name, value in picks(self.cluster.router).items() if value != before[name]}
            self.assertEqual(moved, {outcome: 1})
        return block()

    def test_every_api_is_given_this_router_and_its_body_back(self):
        for path, request in BODIES.items():
            with self.subTest(path), self.counts("picked"):
                sent = json.dumps(request).encode()
                first, second = self.process(head(path), body(sent))
                self.assertEqual(named(first), self.cluster.http())
                piece = second.request_body.response.body_mutation.streamed_response
                self.assertEqual((piece.body, piece.end_of_stream), (sent, True))
        self.assertGreaterEqual(samples(scrape(self.cluster.router))["penstock_picker_decision_seconds_count"], len(BODIES))
        self.assertGreaterEqual(samples(scrape(self.cluster.router))["penstock_picker_predicted_ttft_seconds_count"], len(BODIES))

    def test_a_body_in_pieces_is_one_body(self):
        sent = json.dumps({**COMPLETION, "prompt": "word " * 30_000}).encode()
        pieces = [sent[i:i + 7_000] for i in range(0, len(sent), 7_000)]
        status, error = self.refusal(head("/v1/completions"), *(body(piece, end=piece is pieces[-1]) for piece in pieces))
        self.assertEqual((status, error["error"]["code"]), (400, "context_length_exceeded"), "the whole prompt was read")
        sent = json.dumps(CHAT).encode()
        first, second = self.process(head("/v1/chat/completions"), *(body(sent[i:i + 1], end=i + 1 == len(sent)) for i in range(len(sent))))
        self.assertEqual(named(first), self.cluster.http())
        self.assertEqual(second.request_body.response.body_mutation.streamed_response.body, sent)

    def test_a_buffered_body_gets_the_endpoint_with_its_answer(self):
        first, second = self.process(head("/v1/completions", mode=Mode.BUFFERED), body(json.dumps(COMPLETION).encode()))
        self.assertTrue(first.HasField("request_headers"))
        self.assertEqual(named(second), self.cluster.http())

    def test_a_request_without_a_body_is_answered_at_its_head(self):
        answer, = self.process(head("/v1/models", {":method": "GET"}, end=True))
        self.assertEqual(named(answer), self.cluster.http())

    def test_a_body_above_the_limit(self):
        with self.counts("too_large"):
            status, error = self.refusal(head("/v1/completions"), *(body(b"a" * (1 << 20), end=False) for _ in range(5)))
        self.assertEqual((status, error["error"]["type"]), (413, "request_too_large"))

    def test_garbage(self):
        for path, status, shown in (("/v1/completions", 400, "invalid_request_error"), ("/v1/messages", 400, "invalid_request_error")):
            for sent in (b"", b"\x00\xff" * 50, b'{"model":', b"[]", b'{"model":"tiny"}'):
                with self.subTest(path=path, sent=sent), self.counts("bad_request"):
                    got, error = self.refusal(head(path), body(sent))
                    self.assertEqual((got, error["error"]["type"]), (status, shown))
        self.assertEqual(self.refusal(head("/v2/nothing"))[0], 404)
        self.assertEqual(self.refusal(head("/v1/completions", {"content-type": "text/plain"}))[0], 415)
        self.assertEqual(self.refusal(head("/v1/completions"), body(json.dumps({**COMPLETION, "model": "gpt-4o"}).encode()))[0], 404)

    def test_bytes_that_are_no_message_end_the_stream_alone(self):
        raw = self.channel.stream_stream(f"/{ext_proc.DESCRIPTOR.package}.ExternalProcessor/Process", lambda sent: sent, lambda got: got)
        with self.assertRaises(grpc.RpcError):
            list(raw(iter([b"\xff" * 100]), timeout=PATIENCE_S))
        self.test_a_request_without_a_body_is_answered_at_its_head()

    def test_the_subset_of_the_gateway(self):
        own = self.cluster.http()
        sent = body(json.dumps(COMPLETION).encode())
        self.assertEqual(named(self.process(head("/v1/completions", subset=["10.1.1.1:8000", own]), sent)[0]), own)
        for subset in (["10.1.1.1:8000"], [], [own.replace("127.0.0.1", "127.0.0.2")]):
            with self.subTest(subset), self.counts("excluded"):
                status, error = self.refusal(head("/v1/completions", subset=subset), sent)
                self.assertEqual((status, error["error"]["code"]), (503, "endpoint_excluded"))

    def test_an_slo_that_cannot_be_met_is_refused_and_others_are_not(self):
        for number in range(12):  # before that, the router refuses nothing on a prediction
            self.assertEqual(self.cluster.generate(f"{number} once upon a time there was a small river", 2)[0], 0)
        sent = body(json.dumps({**COMPLETION, "prompt": "of a hill and a river " * 60}).encode())
        self.assertEqual(named(self.process(head("/v1/completions", {"x-slo-ttft-ms": "60000"}), sent)[0]), self.cluster.http())
        with self.counts("late"):
            status, error = self.refusal(head("/v1/completions", {"x-slo-ttft-ms": "0.01"}), sent)
        self.assertEqual((status, error["error"]["code"]), (429, "too_slow"))
        self.assertEqual(self.refusal(head("/v1/completions", {"x-slo-ttft-ms": "fast"}), sent)[0], 400)

    def test_a_prediction_books_nothing(self):
        before = samples(scrape(self.cluster.router))
        for _ in range(20):
            self.process(head("/v1/completions"), body(json.dumps(COMPLETION).encode()))
        after = samples(scrape(self.cluster.router))
        for name in ("penstock_requests_running", "penstock_requests_waiting"):
            self.assertEqual(after[name], 0, name)
        for name in before:
            if name.startswith(("penstock_requests_total", "penstock_prompt_tokens_total")):
                self.assertEqual(after[name], before[name], name)
        self.assertTrue(all(row["running"] == 0 and row["waiting"] == 0 for row in self.cluster.top().values()))


class NotReady(unittest.TestCase):
    def test_no_ready_worker(self):
        cluster = Cluster(1, 1, router_flags=["--endpoint_picker_listen=127.0.0.1:0"])
        self.addCleanup(cluster.stop)
        channel = grpc.insecure_channel(picker_of(cluster.router))
        self.addCleanup(channel.close)
        health = health_pb2_grpc.HealthStub(channel)
        services = ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
        state = lambda: [health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S).status for name in services]
        self.assertEqual(eventually(lambda: state() == [1, 1, 1] and state()), [1, 1, 1])
        cluster.worker("decode-0").stop()
        eventually(lambda: state() == [1, 2, 2], what="a picker that is not ready")
        stub = external_processor_pb2_grpc.ExternalProcessorStub(channel)
        for path, request in BODIES.items():
            answer, = stub.Process(iter([head(path), body(json.dumps(request).encode())]), timeout=PATIENCE_S)
            self.assertEqual(answer.immediate_response.status.code, 503, path)
        self.assertEqual(picks(cluster.router)["not_ready"], len(BODIES))


class Trust(unittest.TestCase):
    def refuses(self, *flags):
        result = subprocess.run([BIN / "penstock-router", f"--model={ROOT}/models/penstock-tiny", "--workers=127.0.0.1:1", "--listen=127.0.0.1:0",
                                 "--http_listen=127.0.0.1:0", *flags], text=True, capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertNotEqual(result.returncode, 0)
        return result.stderr

    def test_the_port_follows_the_rules_of_other_ports(self):
        self.assertIn("endpoint_picker_listen", self.refuses("--endpoint_picker_listen=0.0.0.0:0"))
        self.assertIn("endpoint_picker_names", self.refuses("--endpoint_picker_listen=127.0.0.1:0", "--endpoint_picker_names=[::]:80"))
        self.assertIn("endpoint_picker_names", self.refuses("--endpoint_picker_listen=127.0.0.1:0", "--http_listen=0.0.0.0:0", "--insecure"))
        self.assertIn("needs http_listen", self.refuses("--endpoint_picker_listen=127.0.0.1:0", "--http_listen="))


class Certificates(unittest.TestCase):
    """The picker's port of a router that has no workers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-gateway-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("inside", "outside"):  # each is its own CA
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                            "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                            "-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.crt"], check=True, capture_output=True)

    def bytes_of(self, name):
        return (self.folder / name).read_bytes()

    def start(self, *flags):
        at = self.folder
        router = Server(at, "router", ["--workers=127.0.0.1:1", "--http_listen=127.0.0.1:0", "--endpoint_picker_listen=127.0.0.1:0",
                                       f"--tls_cert={at}/outside.crt", f"--tls_key={at}/outside.key", f"--cluster_ca={at}/inside.crt",
                                       f"--cluster_cert={at}/inside.crt", f"--cluster_key={at}/inside.key", *flags])
        self.addCleanup(router.stop)
        router.await_ready()
        return picker_of(router)

    def status(self, picker, credentials):
        """The picker's answer, or gRPC's code if there is no connection."""
        channel = grpc.secure_channel(picker, credentials) if credentials else grpc.insecure_channel(picker)
        try:
            stub = external_processor_pb2_grpc.ExternalProcessorStub(channel)
            answer, = stub.Process(iter([head("/v1/completions"), body(b"{}")]), timeout=PATIENCE_S)
            return answer.immediate_response.status.code
        except grpc.RpcError as error:
            return error.code()
        finally:
            channel.close()

    def test_the_clusters_certificates_ask_the_gateway_for_one(self):
        picker = self.start()
        ca = self.bytes_of("inside.crt")
        member = grpc.ssl_channel_credentials(ca, self.bytes_of("inside.key"), ca)
        stranger = grpc.ssl_channel_credentials(ca, self.bytes_of("outside.key"), self.bytes_of("outside.crt"))
        self.assertEqual(self.status(picker, member), 503)
        for other in (None, grpc.ssl_channel_credentials(ca), stranger):
            self.assertEqual(self.status(picker, other), grpc.StatusCode.UNAVAILABLE)

    def test_the_public_certificate_asks_for_none(self):
        picker = self.start("--endpoint_picker_tls=public")
        self.assertEqual(self.status(picker, grpc.ssl_channel_credentials(self.bytes_of("outside.crt"))), 503)
        for other in (None, grpc.ssl_channel_credentials(self.bytes_of("inside.crt"))):
            self.assertEqual(self.status(picker, other), grpc.StatusCode.UNAVAILABLE)

    def test_api_keys_hold_at_the_picker(self):
        keys = self.folder / "keys.json"
        keys.write_text(json.dumps({"tenants": [{"name": "acme"}], "keys": [
            {"id": "one", "tenant": "acme", "sha256": hashlib.sha256(b"good").hexdigest()}]}))
        picker = self.start("--endpoint_picker_tls=public", f"--keys_file={keys}")
        with grpc.secure_channel(picker, grpc.ssl_channel_credentials(self.bytes_of("outside.crt"))) as channel:
            stub = external_processor_pb2_grpc.ExternalProcessorStub(channel)
            def ask(path, headers):
                answer, = stub.Process(iter([head(path, headers), body(b"{}")]), timeout=PATIENCE_S)
                return answer.immediate_response.status.code
            for path in BODIES:
                self.assertEqual(ask(path, {}), 401)
                self.assertEqual(ask(path, {"authorization": "Bearer bad"}), 401)
                self.assertEqual(ask(path, {"authorization": "Bearer good"}), 503, "the caller is known, and no worker is ready")
            self.assertEqual(ask("/v1/messages", {"x-api-key": "good"}), 503)


class Envoy:
    """A gateway with a pool of two routers, of which it asks one router's picker."""

    def __init__(self, folder, picker, routers, mode, fail_open=False, subset=None):
        self.address, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        config, self.log = folder / "envoy.json", folder / "envoy.log"
        config.write_text(json.dumps(self.config(picker, routers, mode, fail_open, subset)))
        binary = next((VENV / "lib").glob("python3*/site-packages/envoy/_bin/envoy"))
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([binary, "--config-path", config, "--use-dynamic-base-id", "--concurrency", "1"], stdout=log, stderr=log)
        try:
            eventually(self.ready, what="an Envoy that serves")
        except BaseException:
            self.stop()
            raise

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        try:
            return self.ask("GET", "/ready", address=self.admin)[0] == 200
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()

    @staticmethod
    def address_of(endpoint):
        host, port = endpoint.rsplit(":", 1)
        return {"socket_address": {"address": host, "port_value": int(port)}}

    def cluster(self, name, endpoints, **more):
        return {"name": name, "connect_timeout": "5s", "type": "STATIC", **more, "load_assignment": {"cluster_name": name, "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": self.address_of(endpoint)}} for endpoint in endpoints]}]}}

    def config(self, picker, routers, mode, fail_open, subset):
        kind = "type.googleapis.com/envoy.extensions."
        both = {f"{part}_{what}_mode": value for part in ("request", "response")
                for what, value in (("header", "SEND"), ("body", mode), ("trailer", "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP"))}
        if mode == "BUFFERED":
            both["response_body_mode"] = "STREAMED"
        filters = [
            {"name": "picker", "typed_config": {
                "@type": kind + "filters.http.ext_proc.v3.ExternalProcessor", "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
                "message_timeout": "30s", "processing_mode": both, "failure_mode_allow": fail_open,
                "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}, "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]}}}},
            {"name": "router", "typed_config": {"@type": kind + "filters.http.router.v3.Router"}}]
        if subset is not None:
            filters.insert(0, {"name": "subset", "typed_config": {"@type": kind + "filters.http.set_metadata.v3.Config", "metadata": [
                {"metadata_namespace": "envoy.lb.subset_hint", "value": {f"{DESTINATION}-subset": subset}}]}})
        manager = {"@type": kind + "filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "http", "http_filters": filters,
                   "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                       {"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "60s"}}]}]}}
        round_robin = {"policies": [{"typed_extension_config": {"name": "fallback", "typed_config": {
            "@type": kind + "load_balancing_policies.round_robin.v3.RoundRobin"}}}]}
        override = {"@type": kind + "load_balancing_policies.override_host.v3.OverrideHost", "fallback_policy": round_robin,
                    "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}]}
        http2 = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": kind + "upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}
        return {
            "admin": {"address": self.address_of(self.admin)},
            "static_resources": {
                "listeners": [{"name": "http", "address": self.address_of(self.address), "filter_chains": [{"filters": [
                    {"name": "http", "typed_config": manager}]}]}],
                "clusters": [
                    self.cluster("picker", [picker], typed_extension_protocol_options=http2),
                    self.cluster("pool", routers, load_balancing_policy={"policies": [
                        {"typed_extension_config": {"name": "picked", "typed_config": override}}]})]}}

    def ask(self, method, path, request=None, address=None, headers=()):
        """Status and body."""
        connection = http.client.HTTPConnection(address or self.address, timeout=PATIENCE_S)
        try:
            connection.request(method, path, request if isinstance(request, (bytes, type(None))) else json.dumps(request),
                               {"Content-Type": "application/json", **dict(headers)})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class ThroughEnvoy(unittest.TestCase):
    """Both ways of sending bodies, each with an Envoy of its own, over the same routers."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(1, 1, router_flags=["--endpoint_picker_listen=127.0.0.1:0"])
        cls.addClassCleanup(cls.cluster.stop)
        folder = pathlib.Path(cls.cluster.folder.name)
        cls.other = Server(folder, "router-1", ["--model_name=tiny", "--http_listen=127.0.0.1:0",
                                                *(f"--workers={worker.listen}" for worker in cls.cluster.workers)])
        cls.addClassCleanup(lambda: cls.other.stop())
        cls.other.await_ready()
        cls.envoys = {}
        for mode in ("FULL_DUPLEX_STREAMED", "BUFFERED"):
            (folder / mode).mkdir()
            cls.envoys[mode] = Envoy(folder / mode, picker_of(cls.cluster.router), [cls.other.http(), cls.cluster.http()], mode)
            cls.addClassCleanup(cls.envoys[mode].stop)

    def each(self):
        for mode, envoy in self.envoys.items():
            with self.subTest(mode):
                yield envoy

    def completed(self, router):
        return sum(value for name, value in samples(scrape(router)).items() if name.startswith("penstock_requests_total{") and 'status="ok"' in name)

    def test_requests_go_to_the_router_that_was_named(self):
        for envoy in self.each():
            before = self.completed(self.cluster.router), self.completed(self.other)
            for path, request in BODIES.items():
                for _ in range(3):
                    status, answer = envoy.ask("POST", path, request)
                    self.assertEqual(status, 200, answer)
                    json.loads(answer)
            eventually(lambda: self.completed(self.cluster.router) == before[0] + 3 * len(BODIES), what="every request at the router")
            self.assertEqual(self.completed(self.other), before[1], "a request went to a router that was not named")
            self.assertEqual(envoy.ask("GET", "/v1/models")[0], 200)

    def test_the_answer_is_the_one_without_a_gateway(self):
        direct = http.client.HTTPConnection(self.cluster.http(), timeout=PATIENCE_S)
        self.addCleanup(direct.close)
        request = {**COMPLETION, "max_tokens": 64, "prompt": "word " * 300}
        direct.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        text = json.loads(direct.getresponse().read())["choices"][0]["text"]
        for envoy in self.each():
            status, answer = envoy.ask("POST", "/v1/completions", request)
            self.assertEqual((status, json.loads(answer)["choices"][0]["text"]), (200, text))
            status, answer = envoy.ask("POST", "/v1/completions", {**request, "stream": True})
            events = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: ")]
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual("".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]), text)

    def test_tokens_come_one_by_one(self):
        def comes_while_it_runs(envoy):
            connection = http.client.HTTPConnection(envoy.address, timeout=PATIENCE_S)
            return streams_while_it_runs(self.cluster, connection, {**COMPLETION, "max_tokens": 1900})

        for envoy in self.each():
            eventually(lambda envoy=envoy: comes_while_it_runs(envoy), what="a first token before the whole answer is there")
            eventually(lambda: samples(scrape(self.cluster.router))["penstock_picker_streams"] == 0, what="the end of its stream at the picker")

    def test_refusals_reach_the_client_as_the_api_has_them(self):
        for envoy in self.each():
            status, answer = envoy.ask("POST", "/v1/completions", b"{")
            self.assertEqual((status, json.loads(answer)["error"]["type"]), (400, "invalid_request_error"))
            status, answer = envoy.ask("POST", "/v1/messages", b"{")
            self.assertEqual((status, json.loads(answer)["type"]), (400, "error"))
            self.assertEqual(envoy.ask("POST", "/v2/nothing", COMPLETION)[0], 404)


class Subset(unittest.TestCase):
    def test_the_gateways_subset_holds(self):
        cluster = Cluster(1, 1, router_flags=["--endpoint_picker_listen=127.0.0.1:0"])
        self.addCleanup(cluster.stop)
        for name, subset, status in (("own", ["127.0.0.1:1", cluster.http()], 200), ("others", ["127.0.0.1:1"], 503)):
            folder = pathlib.Path(cluster.folder.name) / name
            folder.mkdir()
            envoy = Envoy(folder, picker_of(cluster.router), [cluster.http()], "FULL_DUPLEX_STREAMED", subset=subset)
            self.addCleanup(envoy.stop)
            got, answer = envoy.ask("POST", "/v1/completions", COMPLETION)
            self.assertEqual(got, status, answer)
        self.assertEqual(json.loads(answer)["error"]["code"], "endpoint_excluded")


class FailOpen(unittest.TestCase):
    def test_without_a_picker_any_router_serves(self):
        """The chart's failure mode. Routers are equal, so a request that none was named for is served as well."""
        cluster = Cluster(1, 1, router_flags=["--endpoint_picker_listen=127.0.0.1:0"])
        self.addCleanup(cluster.stop)
        folder = pathlib.Path(cluster.folder.name)
        other = Server(folder, "router-1", ["--model_name=tiny", "--http_listen=127.0.0.1:0", *(f"--workers={w.listen}" for w in cluster.workers)])
        self.addCleanup(other.stop)
        other.await_ready()
        envoy = Envoy(folder, picker_of(cluster.router), [other.http(), cluster.http()], "FULL_DUPLEX_STREAMED", fail_open=True)
        self.addCleanup(envoy.stop)
        self.assertEqual(envoy.ask("POST", "/v1/completions", COMPLETION)[0], 200)
        self.assertEqual(picks(cluster.router)["picked"], 1)
        cluster.router.stop()
        # The pool still has the router that is gone, so every second request meets it.
        eventually(lambda: envoy.ask("POST", "/v1/completions", COMPLETION)[0] == 200, what="a request that the other router serves")


if __name__ == "__main__":
    unittest.main()
