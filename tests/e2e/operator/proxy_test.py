"""deploy/proxy/haproxy.cfg in front of real processes: clients find the API behind it as it is, and whoever misuses the
public port neither makes the router grow nor keeps others from their answers."""

import csv
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest

import http2
from attacks import AttackTest, flood, resets, send_headers_without_end
from operations import PATIENCE_S, ROOT, Cluster, eventually, free_port, resident_mib, streams_while_it_runs


class Proxy:
    def __init__(self, router, folder, router_ca=None):
        self.address, self.ca = f"127.0.0.1:{free_port()}", folder / "ca.crt"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", folder / "key.pem",
                        "-out", self.ca], check=True, capture_output=True)
        certificate = folder / "edge.pem"
        certificate.write_text(self.ca.read_text() + (folder / "key.pem").read_text())
        (host, grpc_port), http_port = router.listen.rsplit(":", 1), router.http().rsplit(":", 1)[1]
        self.log, self.control = folder / "haproxy.log", folder / "control"
        watched = folder / "watched.cfg"
        watched.write_text(f"global\n  stats socket {self.control} mode 600 level user\n")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["haproxy", "-f", ROOT / "deploy/proxy/haproxy.cfg", "-f", watched], stdout=log, stderr=log,
                env={**os.environ, "PROXY_LISTEN": self.address, "PROXY_CERTIFICATE": str(certificate), "ROUTER_HOST": host,
                     "ROUTER_HTTP_PORT": http_port, "ROUTER_GRPC_PORT": grpc_port, **({"ROUTER_CA": str(router_ca)} if router_ca else {})})
        eventually(self.serves, what="a proxy that serves")

    def serves(self):
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        try:
            return self.ask("GET", "/ready")[0] == 200
        except OSError:
            return False

    def routers(self):
        """Backend to what the proxy thinks of its router: its status, and the last health check."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.control))
            control.sendall(b"show stat\n")
            rows = list(csv.DictReader(control.makefile().read().removeprefix("# ").splitlines()))
        return {row["pxname"]: (row["status"], row["check_status"].removeprefix("* ")) for row in rows if row["svname"] == "router1"}

    def connect(self):
        return http.client.HTTPSConnection(self.address, timeout=PATIENCE_S, context=ssl.create_default_context(cafile=self.ca))

    def ask(self, method, path, body=None, headers=()):
        """Status, headers and body."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Behind(AttackTest):
    """One proxy a test, as its tables remember who asked much."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-proxy-")
        self.addCleanup(folder.cleanup)
        self.proxy = Proxy(self.router, pathlib.Path(folder.name))
        self.addCleanup(self.proxy.stop)

    def completion(self, tokens=8, **more):
        body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}
        return self.proxy.ask("POST", "/v1/completions", json.dumps(body))

    def assert_others_are_served(self):
        status, _, body = self.completion()
        self.assertEqual(status, 200, body)

    def test_both_apis_answer_as_without_it(self):
        status, _, body = self.completion(24, ignore_eos=False)
        self.assertEqual(status, 200, body)
        text = json.loads(body)["choices"][0]["text"]
        for reach in ([self.cluster.router.listen], [f"https://{self.proxy.address}", "--ca", self.proxy.ca]):
            said = self.cluster.cli("generate", "--json", "--max-tokens", 24, "--temperature", 0, "Once upon a time", "--endpoint", *reach)
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertEqual("".join(json.loads(line).get("text", "") for line in said.stdout.splitlines()), text, reach)

    def test_tokens_come_one_by_one_and_who_leaves_is_noticed(self):
        body = {"model": "tiny", "prompt": "Once", "max_tokens": 1900, "ignore_eos": True}
        eventually(lambda: streams_while_it_runs(self.cluster, self.proxy.connect(), body), what="a first token before the whole answer is there")

    def test_nothing_but_the_api_is_behind_it(self):
        for path in ("/", "/cluster", "/page.js", "/metrics"):
            self.assertEqual(self.proxy.ask("GET", path)[0], 404, path)
        self.assertEqual(self.proxy.ask("GET", "/health")[0], 200)
        for service in ("penstock.v1.Admin/Info", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):
            status = self.proxy.ask("POST", "/" + service, headers={"Content-Type": "application/grpc"})[0]
            self.assertEqual(status, 404, service)

    def test_who_asks_too_fast_is_told_when_to_come_back(self):
        connection = self.proxy.connect()
        connection.connect()
        self.addCleanup(connection.close)
        answers = connection.sock.makefile("rb")
        self.addCleanup(answers.close)

        def next_answer():
            status, headers = int(answers.readline().split()[1]), {}
            while line := answers.readline().strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            return status, headers, answers.read(int(headers["content-length"]))

        def refused():  # many at once, as a slow machine would ask too slowly one by one
            connection.sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            for _ in range(100):
                status, headers, body = next_answer()
                if status != 200:
                    return status, headers["retry-after"], json.loads(body)["error"]["code"]
            return None
        self.assertEqual(eventually(refused, what="a refusal"), (429, "1", "rate_limit_exceeded"))

    def test_a_request_that_does_not_end_is_cut_off(self):
        raw = socket.create_connection(self.proxy.address.split(":"))
        tls = ssl.create_default_context(cafile=self.proxy.ca).wrap_socket(raw, server_hostname="localhost")
        tls.settimeout(PATIENCE_S)
        tls.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        self.assertIn(b" 408 ", tls.recv(4096).splitlines()[0] + b" ")
        tls.close()

    def test_streams_that_are_reset_at_once(self):
        before = resident_mib(self.router.process)
        sent, connections = flood(lambda: http2.Connection(self.proxy.address, self.proxy.ca), lambda attacker: resets(attacker, 100), seconds=5)
        opened = (sent + connections) * 100  # The last batch of a connection is cut off.
        grown = resident_mib(self.router.process) - before
        print(f"{opened} streams opened and reset over {connections} connections: the router grew by {grown:.1f} MiB", file=sys.stderr)
        self.assertGreater(opened, 1000)
        self.assertLess(grown, 32)
        self.assertLess(resident_mib(self.proxy.process), 256)
        code, answer = self.cluster.generate()
        self.assertEqual(code, 0, answer)

    def test_headers_without_end(self):
        before = resident_mib(self.router.process)
        going, sent = send_headers_without_end(http2.Connection(self.proxy.address, self.proxy.ca))
        self.assertFalse(going, f"{sent} bytes of headers were taken")
        self.assertLess(resident_mib(self.router.process) - before, 8)
        self.assert_others_are_served()


UP = {"routers_http": ("UP", "L7OK"), "routers_grpc": ("UP", "L7OK")}


class WithKeys(unittest.TestCase):
    """Health checks have no key, and requests have one."""

    def check(self, *router_flags, ca=None):
        folder = tempfile.TemporaryDirectory(prefix="penstock-proxy-keys-")
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name)
        keys = path / "keys.json"
        keys.write_text(json.dumps({"tenants": [{"name": "t"}], "keys": [
            {"id": "k", "tenant": "t", "sha256": hashlib.sha256(b"good").hexdigest()}]}))
        cluster = Cluster(prefill=1, decode=1, router_flags=[f"--keys_file={keys}", *router_flags], ca=ca)
        self.addCleanup(cluster.stop)
        proxy = Proxy(cluster.router, path, ca)
        self.addCleanup(proxy.stop)
        eventually(lambda: proxy.routers() == UP, what="both routers to be up")
        request = json.dumps({"prompt": "Once", "max_tokens": 2})
        self.assertEqual(proxy.ask("POST", "/v1/completions", request)[0], 401)
        status, _, body = proxy.ask("POST", "/v1/completions", request, {"Authorization": "Bearer good"})
        self.assertEqual(status, 200, body)
        said = cluster.cli("generate", "--max-tokens=2", "Once", "--endpoint", f"https://{proxy.address}", "--ca", proxy.ca, "--api-key=good")
        self.assertEqual(said.returncode, 0, said.stderr)
        cluster.worker("decode-0").process.kill()
        eventually(lambda: {row[0] for row in proxy.routers().values()} == {"DOWN"}, what="routers without workers to be down")

    def test_routers_are_up(self):
        self.check()

    def test_routers_with_certificates_are_up(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-proxy-tls-")
        self.addCleanup(folder.cleanup)
        ca, key = pathlib.Path(folder.name) / "ca.crt", pathlib.Path(folder.name) / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", ca],
                       check=True, capture_output=True)
        self.check(f"--tls_cert={ca}", f"--tls_key={key}", "--http_tls=true", ca=str(ca))


if __name__ == "__main__":
    if shutil.which("haproxy") is None:
        print("no haproxy here: scripts/setup installs it", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
