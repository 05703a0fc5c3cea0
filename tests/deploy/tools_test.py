"""The chart's own programs against servers of the same interfaces: download.py against a hub that redirects, breaks off and
changes bytes; rollout.py against an API server whose Deployments go on at each look."""

import contextlib
import hashlib
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy/helm/penstock/files"
WEIGHTS = bytes(range(256)) * 4096
SHARED = {"config.json": b"{}", "tokenizer.json": b'{"t": 1}', "nested/more.json": b"[]", ".gitattributes": b"x"}
MODEL = {**SHARED, "model.safetensors": WEIGHTS, "pytorch_model.bin": WEIGHTS, "original/consolidated.00.pth": WEIGHTS}
COMMIT = "c0ffee"


class Server:
    """An HTTP server whose answers are the test's function of the request: (status, headers, body)."""

    def __init__(self, answer):
        asked = self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked.append((self.command, self.path, dict(self.headers)))
                status, headers, data = answer(self.command, self.path, self.headers, body)
                self.send_response(status)
                length = headers.pop("Content-Length", str(len(data)))
                for name, value in {**headers, "Content-Length": length}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                if int(length) != len(data):
                    self.close_connection = True

            do_PATCH = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Hub:
    """Hugging Face's API, with weights on a storage of another host."""

    def __init__(self, test):
        self.storage = Server(self.store)
        self.hub = Server(self.answer)
        test.addCleanup(self.storage.stop)
        test.addCleanup(self.hub.stop)
        self.breaks = self.spoils = 0  # how many of the next answers break off, or have a changed byte
        self.files, self.digest = MODEL, hashlib.sha256(WEIGHTS).hexdigest()

    def answer(self, _, path, headers, __):
        if headers.get("Authorization") != "Bearer right":
            return 401, {}, b"no"
        if path == "/api/models/org/name/revision/main":
            return 200, {}, json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}).encode()
        prefix = f"/org/name/resolve/{COMMIT}/"
        name = path.removeprefix(prefix)
        if not path.startswith(prefix) or name not in self.files:
            return 404, {}, b"none"
        if self.files[name] is WEIGHTS:
            return 302, {"Location": f"{self.storage.url}/blob?signature=1", "X-Linked-Etag": f'"{self.digest}"'}, b""
        return 200, {}, self.files[name]

    def store(self, _, __, headers, ___):
        start = int((headers.get("Range") or "bytes=0-")[6:-1])
        data = WEIGHTS[start:]
        if self.spoils:
            self.spoils -= 1
            data = b"!" + data[1:]
        whole = str(len(data))
        if self.breaks:
            self.breaks -= 1
            data = data[:len(data) // 2]
        return (206 if start else 200), {"Content-Length": whole}, data


def run(program, *arguments, **environment):
    return subprocess.run([sys.executable, FILES / program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60,
                          env={"PATH": os.environ["PATH"], **environment})


class Download(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-models-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"
        self.hub = Hub(self)

    def fetch(self, *more, uri="hf://org/name@main", token="right"):
        return run("download.py", f"--uri={uri}", f"--to={self.model}", f"--endpoint={self.hub.hub.url}", "--pause-s=0", *more, MODEL_TOKEN=token)

    def made(self):
        return {str(path.relative_to(self.model)): path.read_bytes() for path in self.model.rglob("*") if path.is_file()}

    def test_a_repository_is_fetched_whole(self):
        result = self.fetch()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.made(), {name: MODEL[name] for name in ("config.json", "tokenizer.json", "nested/more.json", "model.safetensors")})
        self.assertEqual([path.name for path in self.folder.iterdir()], ["model"], "nothing unfinished is left")

    def test_the_token_is_for_the_hub_alone(self):
        self.assertEqual(self.fetch().returncode, 0)
        self.assertTrue(self.hub.hub.asked and self.hub.storage.asked)
        self.assertEqual({headers.get("Authorization") for _, _, headers in self.hub.hub.asked}, {"Bearer right"})
        self.assertEqual({headers.get("Authorization") for _, _, headers in self.hub.storage.asked}, {None})

    def test_what_is_there_is_not_fetched_again(self):
        self.assertEqual(self.fetch().returncode, 0)
        before = len(self.hub.hub.asked)
        result = self.fetch()
        self.assertEqual((result.returncode, len(self.hub.hub.asked)), (0, before), result.stdout)

    def test_a_file_that_breaks_off_goes_on_where_it_was(self):
        self.hub.breaks = 2
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual(self.made()["model.safetensors"], WEIGHTS)
        ranges = [headers.get("Range") for _, _, headers in self.hub.storage.asked]
        self.assertEqual(ranges, [None, f"bytes={len(WEIGHTS) // 2}-", f"bytes={len(WEIGHTS) * 3 // 4}-"])

    def test_changed_bytes_are_seen(self):
        self.hub.spoils = 1
        result = self.fetch()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("SHA-256", result.stdout)
        self.assertEqual(self.made()["model.safetensors"], WEIGHTS)

    def test_a_server_that_only_breaks_off_leaves_no_model_and_the_next_run_goes_on(self):
        self.hub.breaks = 8
        result = self.fetch()
        self.assertEqual(result.returncode, 1)
        self.assertIn("broke off", result.stderr)
        self.assertFalse(self.model.exists())
        before = len(self.hub.hub.asked)
        self.assertEqual(self.fetch().returncode, 0)
        self.assertNotIn(f"/org/name/resolve/{COMMIT}/config.json", [path for _, path, _ in self.hub.hub.asked[before:]])
        self.assertEqual(self.made()["model.safetensors"], WEIGHTS)

    def test_a_wrong_token_and_a_missing_model_are_said_at_once(self):
        for more, message in (({"token": "wrong"}, "tokenSecret"), ({"uri": "hf://org/other@main"}, "not found")):
            result = self.fetch(**more)
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)
        self.assertEqual(len(self.hub.hub.asked), 2, "no second try")
        self.assertNotIn("wrong", result.stdout + result.stderr)

    def test_a_router_gets_no_weights(self):
        self.assertEqual(self.fetch("--without-weights").returncode, 0)
        self.assertEqual(set(self.made()), {"config.json", "tokenizer.json", "nested/more.json"})
        self.assertEqual(self.hub.storage.asked, [])

    def test_names_that_leave_the_directory_are_refused(self):
        self.hub.files = {**SHARED, "../outside": b"x"}
        result = self.fetch()
        self.assertEqual(result.returncode, 1)
        self.assertIn("leaves the directory", result.stderr)
        self.assertFalse(self.model.exists())

    def test_a_folder_of_named_files(self):
        web = Server(lambda _, path, *__: (200, {}, MODEL[path.removeprefix("/tiny/")]) if path.removeprefix("/tiny/") in MODEL else (404, {}, b""))
        self.addCleanup(web.stop)
        result = self.fetch("--file=config.json", "--file=nested/more.json", uri=f"{web.url}/tiny/")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(set(self.made()), {"config.json", "nested/more.json"})

    def archive(self, members):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as tar:
            for name, content, kind in members:
                member = tarfile.TarInfo(name)
                member.type, member.size, member.linkname = kind, len(content), "/etc/passwd" if kind == tarfile.SYMTYPE else ""
                tar.addfile(member, io.BytesIO(content))
        web = Server(lambda *_: (200, {}, data.getvalue()))
        self.addCleanup(web.stop)
        return self.fetch(uri=f"{web.url}/model.tar.gz")

    def test_an_archive(self):
        result = self.archive([("tiny/config.json", b"{}", tarfile.REGTYPE), ("tiny/a/b.json", b"[]", tarfile.REGTYPE)])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.made(), {"config.json": b"{}", "a/b.json": b"[]"})
        self.assertEqual([path.name for path in self.folder.iterdir()], ["model"])

    def test_an_archive_that_reaches_outside_is_refused(self):
        for members, message in (([("config.json", b"", tarfile.SYMTYPE)], "something else"), ([("../config.json", b"{}", tarfile.REGTYPE)], "leaves"),
                                 ([("readme", b"", tarfile.REGTYPE)], "config.json")):
            result = self.archive(members)
            self.assertEqual(result.returncode, 1, message)
            self.assertIn(message, result.stderr)
            self.assertFalse(self.model.exists())


class Cluster:
    """The part of the API server that rollout.py asks: each look at a Deployment that is not paused replaces one pod."""

    def __init__(self, test, names, replicas=3):
        self.names, self.order = names, []
        self.items = {name: {"metadata": {"generation": 2}, "spec": {"replicas": replicas, **({"paused": True} if index else {})},
                             "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": 0, "availableReplicas": replicas}}
                      for index, name in enumerate(names)}
        self.stuck, self.fail_next, self.denied = set(), 0, False
        self.server = Server(self.answer)
        test.addCleanup(self.server.stop)

    def answer(self, method, path, headers, body):
        name = path.removeprefix("/apis/apps/v1/namespaces/space/deployments/")
        if headers.get("Authorization") != "Bearer token" or self.denied:
            return 403, {}, b"{}"
        if self.fail_next:
            self.fail_next -= 1
            return 503, {}, b"{}"
        item = self.items[name]
        if method == "PATCH":
            assert headers["Content-Type"] == "application/merge-patch+json"
            assert json.loads(body) == {"spec": {"paused": False}}
            item["spec"]["paused"] = False
            item["metadata"]["generation"] += 1
            self.order.append(name)
        else:
            self.go_on(name, item)
        return 200, {}, json.dumps(item).encode()

    def go_on(self, name, item):
        status = item["status"]
        if item["spec"].get("paused"):
            return
        if status["observedGeneration"] < item["metadata"]["generation"]:
            status["observedGeneration"] = item["metadata"]["generation"]
        elif name in self.stuck:
            status["conditions"] = [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "it has timed out"}]
        elif status["updatedReplicas"] < item["spec"]["replicas"]:
            status["updatedReplicas"] += 1

    def upgraded(self):
        return [name for name in self.names if self.items[name]["status"]["updatedReplicas"] == self.items[name]["spec"]["replicas"]]


class Rollout(unittest.TestCase):
    NAMES = ["p-decode", "p-prefill", "p-router"]

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-account-")
        self.addCleanup(folder.cleanup)
        self.account = pathlib.Path(folder.name)
        (self.account / "token").write_text("token\n")
        (self.account / "ca.crt").write_text("")
        self.cluster = Cluster(self, self.NAMES)

    def roll(self):
        return run("rollout.py", "--namespace=space", f"--server={self.cluster.server.url}", f"--account={self.account}", "--pause-s=0", *self.NAMES)

    def test_each_waits_for_the_one_before(self):
        result = self.roll()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(self.cluster.upgraded(), self.NAMES)
        self.assertEqual(self.cluster.order, self.NAMES[1:])
        paths = [path.rsplit("/", 1)[1] for _, path, _ in self.cluster.server.asked]
        self.assertEqual(paths, sorted(paths), "a Deployment was touched before those in front of it had ended")

    def test_those_behind_a_failure_keep_their_version(self):
        self.cluster.stuck = {"p-prefill"}
        result = self.roll()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(self.cluster.upgraded(), ["p-decode"])
        self.assertTrue(self.cluster.items["p-router"]["spec"]["paused"])
        self.assertIn("it has timed out", result.stdout)

    def test_old_pods_must_have_gone(self):
        self.cluster.items["p-decode"]["status"]["replicas"] = 4
        self.cluster.stuck = {"p-decode"}
        self.cluster.items["p-decode"]["status"]["updatedReplicas"] = 3
        self.assertEqual(self.roll().returncode, 1)
        self.assertEqual(self.cluster.order, [])

    def test_an_api_server_that_restarts_is_asked_again(self):
        self.cluster.fail_next = 5
        self.assertEqual(self.roll().returncode, 0)
        self.assertEqual(self.cluster.upgraded(), self.NAMES)

    def test_missing_rights_are_said(self):
        self.cluster.denied = True
        result = self.roll()
        self.assertEqual(result.returncode, 1)
        self.assertIn("403", result.stdout)

    def test_a_role_without_pods_is_done(self):
        for item in self.cluster.items.values():
            item["spec"]["replicas"] = 0
            item["status"] = {"observedGeneration": 1}
        self.assertEqual(self.roll().returncode, 0)
        self.assertEqual(self.cluster.order, self.NAMES[1:])


if __name__ == "__main__":
    unittest.main()
