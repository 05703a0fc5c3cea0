"""`penstock top` and the page show the same picture: a tenant its own prefixes there, an operator all of them here."""

import hashlib
import json
import pathlib
import re
import subprocess
import tempfile
import unittest
import urllib.request

from operations import BIN, Cluster, eventually

TENANTS = ("acme", "zeta")
WORDS = {"acme": "anvils ", "zeta": "zebras "}


def write_keys(path):
    path.write_text(json.dumps({
        "tenants": [{"name": tenant} for tenant in TENANTS],
        "keys": [{"id": f"{tenant}-key", "tenant": tenant, "sha256": hashlib.sha256(f"key-of-{tenant}".encode()).hexdigest()}
                 for tenant in TENANTS]}))


class Top(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="penstock-top-")
        cls.addClassCleanup(cls.folder.cleanup)
        keys = pathlib.Path(cls.folder.name) / "keys.json"
        write_keys(keys)
        cls.cluster = Cluster(1, 1, router_flags=["--admin_listen=127.0.0.1:0", f"--keys_file={keys}"])
        cls.addClassCleanup(cls.cluster.stop)
        cls.admin = re.search(r"^admin=(\S+)", cls.cluster.router.ready.read_text(), re.M).group(1)
        eventually(cls.finds_prefixes, what="both tenants' prefixes")

    @classmethod
    def finds_prefixes(cls):
        """One request computes a prefix, and one that comes when that has ended finds it."""
        for tenant in TENANTS:
            cls.ask(tenant, "/v1/completions", {"model": "tiny", "prompt": WORDS[tenant] * 40, "max_tokens": 2})
        return len(cls.picture()["prefixes"]) == len(TENANTS)

    @classmethod
    def ask(cls, tenant, path, body=None):
        request = urllib.request.Request(f"http://{cls.cluster.http()}{path}", json.dumps(body).encode() if body else None,
                                         {"Content-Type": "application/json", "Authorization": f"Bearer key-of-{tenant}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    @classmethod
    def top(cls, *arguments):
        result = cls.cluster.cli("top", "--endpoint", cls.admin, "--once", *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    @classmethod
    def picture(cls):
        return json.loads(cls.top("--json"))

    def test_a_tenant_sees_its_own_prefixes_and_an_operator_all(self):
        of_operator = self.picture()
        self.assertEqual({prefix["tenant"] for prefix in of_operator["prefixes"]}, set(TENANTS))
        for tenant in TENANTS:
            seen = self.ask(tenant, "/cluster")
            own = [prefix for prefix in of_operator["prefixes"] if prefix["tenant"] == tenant]
            self.assertEqual([prefix["tokens"] for prefix in seen["prefixes"]], [prefix["tokens"] for prefix in own])
            text = json.dumps(seen)
            for other in TENANTS:
                self.assertNotIn(other, text)
        for text in (json.dumps(of_operator), self.top()):
            for word in WORDS.values():
                self.assertNotIn(word.strip(), text)

    def test_it_is_the_same_report(self):
        of_page, of_operator = self.ask("acme", "/cluster"), self.picture()
        self.assertEqual(set(of_page), set(of_operator))
        self.assertEqual([worker["name"] for worker in of_page["workers"]], [worker["name"] for worker in of_operator["workers"]])
        for part in ("workers", "links"):
            self.assertEqual(set(of_page[part][0]), set(of_operator[part][0]), part)

    def test_its_text_has_all_parts(self):
        text = self.top()
        self.assertRegex(text, r"^tiny ready, 2 workers")
        for worker, role in (("prefill-0", "prefill"), ("decode-0", "decode")):
            self.assertRegex(text, rf"(?m)^{worker} +{role} +ready .*device \[.{{16}}\] +\d+% of .*dram \[")
        self.assertRegex(text, r"(?m)^prefill-0 -> decode-0 +handoff +shared memory")
        for tenant in TENANTS:
            self.assertRegex(text, rf"(?m)^ +\d+ tokens +\d+ +[0-9.]+  {tenant} .*(prefill|decode)-0:device")

    def test_it_goes_on_with_rates_until_it_is_stopped(self):
        process = subprocess.Popen([BIN / "penstock", "top", "--endpoint", self.admin, "--every-ms", "100"], text=True, stdout=subprocess.PIPE)
        seen = []
        for line in process.stdout:
            seen.append(line)
            if sum(" tokens/s; " in shown for shown in seen) == 3:
                break
        process.terminate()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + 15)
        rates = [line for line in seen if " tokens/s; " in line]
        self.assertIn("; - tokens/s", rates[0])
        self.assertRegex(rates[2], r"; \d+\.\d tokens/s")

    def test_where_there_is_no_admin_it_says_so(self):
        result = self.cluster.cli("top", "--endpoint", self.cluster.router.listen, "--once")
        self.assertEqual(result.returncode, 78, result.stderr)
        self.assertIn("is no router's admin_listen: name one with --endpoint", result.stderr)


if __name__ == "__main__":
    unittest.main()
