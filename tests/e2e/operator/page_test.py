"""The router's page in a headless Chromium, over real processes."""

import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
import signal
import threading
import unittest
import urllib.error
import urllib.request

import accessibility
from browser import MISSING, Browser
from operations import Cluster, Server, eventually

PICTURES = os.environ.get("PENSTOCK_PAGE_PICTURES")  # a folder that screenshots are left in
WIDTHS, SCHEMES = {"desk": (1280, 900), "phone": (390, 844)}, ("light", "dark")
GAPS = """
const asked = performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/cluster')).map((e) => e.startTime);
return asked.slice(1).map((at, i) => at - asked[i]);
"""


def get(url, key=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if MISSING:
            raise AssertionError(MISSING)
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.stop)
        cls.url = f"http://{cls.cluster.http()}"
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.stop)

    def setUp(self):
        self.browser.resize(*WIDTHS["desk"])
        self.browser.prefer(color_scheme="light")
        self.open(self.url)
        self.await_state("ready")

    def tearDown(self):
        self.assertEqual(self.said + self.browser.console(), [], "the console is empty")

    said = []

    def open(self, url):
        self.browser.open(url + "/")
        self.said = self.browser.console()

    def await_state(self, text):
        eventually(lambda: self.browser.text("#state") == text, what=f"the page to say {text}")
        self.said += self.browser.console()

    def answer(self, which=-1):
        return self.browser.run("const e = [...document.querySelectorAll('.said:not(.mine)')].at(arguments[0]);"
                                "return e ? [e.querySelector('.text').textContent, e.querySelector('.more').textContent] : null", which)

    def status(self, worker):
        return self.browser.run("const e = document.querySelector(`.worker[data-key='${arguments[0]}'] .status`); return e && e.textContent", worker)

    def test_it_asks_nobody_else(self):
        for path in ("/", "/page/main.js", "/cluster"):
            self.assertTrue(get(self.url + path), path)
        asked = self.browser.run("return performance.getEntriesByType('resource').map((e) => e.name)")
        self.assertGreater(len(asked), 5)
        self.assertEqual([name for name in asked if not name.startswith(self.url + "/")], [])

    def test_it_updates_at_least_once_a_second(self):
        # The shortest of several gaps: others may be longer where the machine is busy.
        eventually(lambda: (gaps := self.browser.run(GAPS))[5:] and min(gaps) < 1000, what="two updates within a second")

    def test_it_shows_what_runs_while_it_runs(self):
        shown = threading.Event()

        def has_link():
            links = self.browser.run("return [...document.querySelectorAll('#links li')].map((e) => e.textContent)")
            return any("prefill-0 → decode-" in link and "B, " in link and "handoff" in link for link in links)

        def load():
            codes = set()
            with concurrent.futures.ThreadPoolExecutor(6) as askers:
                for number in itertools.takewhile(lambda _: not shown.is_set(), itertools.count()):
                    prompts = [f"In story {number} there were {i} who went away" for i in range(6)]
                    codes |= {code for code, _ in askers.map(lambda prompt: self.cluster.generate(prompt, 400), prompts)}
            return codes

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            codes = pool.submit(load)
            try:
                eventually(lambda: int(self.browser.text("#f-open") or 0) > 0, what="open requests")
                eventually(lambda: self.browser.run("return document.querySelectorAll('#decode .beads i').length") > 0, what="a running request")
                eventually(lambda: float((self.browser.text("#f-tokens") or "0").replace(",", "")) > 0, what="tokens a second")
                eventually(lambda: self.browser.run("return document.querySelectorAll('#wires path.busy').length") > 0, what="a line in use")
                eventually(has_link, what="a handoff from prefill-0 in the list of links")
            finally:
                shown.set()
            self.assertEqual(codes.result(), {0})
        eventually(lambda: self.browser.text("#f-open") == "0", what="no open request")
        self.assertIn("B cached of 64 MiB", self.browser.run("return document.querySelector('#decode .bar').getAttribute('aria-valuetext')"))
        self.assertTrue(has_link())

    def test_it_shows_prefixes_that_come_again(self):
        prompt = "The river runs down from the hill to the sea, and the old trees stand beside it. " * 3

        def shown():
            self.assertEqual(self.cluster.generate(prompt, 4)[0], 0)
            return self.browser.text("#prefixes li")

        self.assertIn("tokens", eventually(shown, what="a prefix that was found again"))

    def test_it_says_whether_targets_are_met(self):
        self.assertTrue(all(code == 0 for code, _ in self.cluster.generate_many(4)))
        eventually(lambda: self.browser.text("#slo-state").endswith("in time, objective 95 %"), what="requests of the last minute")
        slo = json.loads(get(self.url + "/cluster"))["slo"]
        self.assertEqual((slo["ttft_target_s"], slo["tpot_target_s"]), (2, 0.1))
        self.assertLessEqual(slo["in_time"] + max(slo["ttft_missed"], slo["tpot_missed"]), slo["succeeded"])
        self.assertGreaterEqual(slo["in_time"] + slo["ttft_missed"] + slo["tpot_missed"], slo["succeeded"])

        def state_is_right():  # requests leave the last minute between two looks
            now = json.loads(get(self.url + "/cluster"))["slo"]
            state = "ready" if now["in_time"] >= 0.95 * now["succeeded"] else "down"
            return self.browser.run("return document.getElementById('slo-state').dataset.state") == state

        eventually(state_is_right, what="the state that the last minute has")
        self.assertEqual(self.browser.text("#slo-ttft-name"), "TTFT p99, target 2 s")
        self.assertEqual(self.browser.text("#slo-itl-name"), "ITL p99, target 100 ms")
        before = int(self.browser.text("#slo-refused").split(":")[0])
        refused = urllib.request.Request(self.url + "/v1/completions", method="POST", headers={"Content-Type": "application/json"},
                                         data=json.dumps({"model": "tiny", "prompt": [5] * 100_000}).encode())
        with self.assertRaises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(refused, timeout=60)
        error.exception.close()
        eventually(lambda: (text := self.browser.text("#slo-refused")).startswith(f"{before + 1}:") and "context_length" in text, what="the refusal")

    def test_a_click_shows_the_stages_of_a_request(self):
        body = json.dumps({"model": "tiny", "prompt": "A river runs down from the hill.", "max_tokens": 8, "ignore_eos": True}).encode()
        request = urllib.request.Request(self.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 8)
        latest = eventually(lambda: next((ended for ended in json.loads(get(self.url + "/cluster"))["finished"]
                                          if (ended["status"], ended["output_tokens"]) == ("ok", 8)), None), what="the request that ended")
        self.assertLess(latest["first_token_ms"], latest["total_ms"])
        names = [stage["name"] for stage in latest["stages"]]
        for name in ("tokenize", "route", "queue", "prefill", "decode"):
            self.assertIn(name, names)
        row = f"#finished > li[data-key='{latest['number']}']"
        eventually(lambda: self.browser.run("return Boolean(document.querySelector(arguments[0]))", row), what="the request")
        self.browser.run("document.querySelector(arguments[0] + ' summary').click()", row)
        bars = self.browser.run("return [...document.querySelectorAll(arguments[0] + ' .stages li')].map((e) => [e.children[0].textContent, e.querySelector('.track div').getBoundingClientRect().width, e.children[2].textContent])", row)
        self.assertEqual(len(bars), len(names))
        self.assertTrue(all(width > 0 for _, width, _ in bars), bars)
        self.assertTrue(any(name == "prefill" and "· prefill-" in text for name, _, text in bars), bars)
        # The next reports leave it open.
        polls = "return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/cluster')).length"
        seen = self.browser.run(polls)
        eventually(lambda: self.browser.run(polls) > seen + 1, what="two more reports")
        self.assertTrue(self.browser.run("return document.querySelector(arguments[0] + ' details').open", row))

    def test_a_chat_by_keyboard_alone(self):
        self.browser.type("Tab", "Enter")  # the link that skips to the chat
        said = lambda: self.browser.run("return document.querySelectorAll('.said').length")

        def answered():
            if said():
                self.browser.run("document.getElementById('new-chat').click()")
            before = said()
            self.browser.type(*"What is a river?", "Enter")
            return eventually(lambda: said() == before + 2 and "tokens" in (found := self.answer())[1] and found, what="an answer")
        # The first token that is drawn may be the end of an answer.
        text, more = eventually(lambda: (found := answered())[0].strip() and found, what="an answer with text")
        turns = said()
        self.assertTrue(text.strip())
        self.assertRegex(more, r"TTFT [0-9.]+ m?s · \d+ tokens.* · \d+ of \d+ prompt tokens cached")
        self.browser.type(*"And a", ("Shift", "Enter"), *"lake?", "Enter")
        eventually(lambda: said() == turns + 2, what="a second turn")
        asked = self.browser.run("return [...document.querySelectorAll('.said.mine .text')].at(-1).textContent")
        self.assertEqual(asked, "And a\nlake?")
        eventually(lambda: "tokens" in self.answer()[1], what="a second answer")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "message")

    def test_an_answer_can_be_stopped(self):
        decode = [worker for worker in self.cluster.workers if worker.name.startswith("decode")]
        said = lambda: self.browser.run("return document.querySelectorAll('.said').length")
        self.browser.type("Tab", "Enter")

        def stopped():
            if said():
                self.browser.run("document.getElementById('new-chat').click()")
            before = said()
            ended = lambda: said() == before + 2 and self.answer()[1]
            for worker in decode:
                worker.process.send_signal(signal.SIGSTOP)  # nothing comes behind the first token
            try:
                self.browser.type(*"Tell me a story", "Enter")
                eventually(lambda: ended() or not self.browser.run("return document.getElementById('stop').disabled"), what="the button")
                busy = self.browser.run("return document.getElementById('log').getAttribute('aria-busy')")
                self.browser.type("Escape")
                if busy == "true" and eventually(ended, what="the end").startswith("stopped"):
                    return True
            finally:
                for worker in decode:
                    worker.process.send_signal(signal.SIGCONT)
            # Its first token was its end, or workers were silent for too long before somebody could stop it.
            eventually(ended, what="the end")
            eventually(lambda: self.browser.text("#state") == "ready", what="a cluster that is ready")
            self.browser.console()
            return False
        eventually(stopped, what="an answer that is stopped")
        eventually(lambda: self.browser.run("return document.getElementById('stop').disabled"), what="a button that is disabled")
        eventually(lambda: json.loads(get(self.url + "/cluster"))["requests"]["open"] == 0, what="no open request")
        self.await_state("ready")

    def test_a_worker_that_is_silent_is_shown_and_said(self):
        worker = self.cluster.worker("decode-1")
        worker.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: self.status("decode-1") == "silent", what="a silent worker")
            eventually(lambda: "decode-1 was ready and is silent" in self.browser.text("#news"), what="the news of it")
        finally:
            worker.process.send_signal(signal.SIGCONT)
        eventually(lambda: self.status("decode-1") == "ready", what="the worker")

    def test_it_is_accessible(self):
        for code, _ in self.cluster.generate_many(4):
            self.assertEqual(code, 0)
        self.browser.type("Tab", "Enter", *"Hello", "Enter")
        eventually(lambda: (found := self.answer()) and "tokens" in found[1], what="an answer")
        latest = json.loads(get(self.url + "/cluster"))["finished"][0]["number"]
        eventually(lambda: self.browser.run("return document.querySelector('#finished > li').dataset.key") == str(latest), what="the last request")
        self.browser.run("document.querySelectorAll('#chat details, #finished > li:first-child details').forEach((e) => { e.open = true })")
        for width, size in {**WIDTHS, "narrow": (320, 640)}.items():
            self.browser.resize(*size)
            for scheme in SCHEMES:
                self.browser.prefer(color_scheme=scheme)
                with self.subTest(width=width, scheme=scheme):
                    self.assertEqual(accessibility.problems(self.browser), [])
                    if PICTURES:
                        self.browser.screenshot(pathlib.Path(PICTURES) / f"page-{width}-{scheme}.png")
        self.browser.prefer(reduced_motion="reduce")
        self.assertEqual(self.browser.run("return document.getAnimations().length"), 0)

    def test_the_checks_find_faults(self):
        faults = {
            "contrast": "document.getElementById('about').style.color = '#aaa'",
            "without a name": "document.querySelector('label[for=message]').remove()",
            "behind one of level": "document.getElementById('cluster-title').outerHTML = '<h5>x</h5>'",
            "of main": "document.querySelector('main').outerHTML = '<div></div>'",
            "has no lang": "document.documentElement.lang = ''",
            "do not fit": "document.body.style.width = '5000px'",
            "focus does not show": "document.getElementById('new-chat').style.outline = 'none'",
            "Tab does not reach": "document.getElementById('new-chat').tabIndex = -1; document.getElementById('new-chat').setAttribute('tabindex', '0'); document.getElementById('chat').inert = false; document.addEventListener('keydown', (e) => { if (e.key === 'Tab' && document.activeElement.id === 'log') e.preventDefault(); }, true)",
        }
        for sentence, fault in faults.items():
            with self.subTest(fault=sentence):
                self.open(self.url)
                self.await_state("ready")
                # Trusted Types, which the page asks for, forbid to write markup: by a policy of the test's own.
                self.browser.run("try { trustedTypes.createPolicy('default', {createHTML: (text) => text}) } catch {}; " + fault)
                self.assertTrue(any(sentence in problem for problem in accessibility.problems(self.browser)), sentence)
        self.browser.console()  # of the faults
        self.said = []


class Keys(unittest.TestCase):
    def test_a_key_is_asked_for_kept_in_the_tab_and_forgotten(self):
        cluster, browser = Cluster(prefill=1, decode=1), None
        self.addCleanup(cluster.stop)
        folder = pathlib.Path(cluster.folder.name)
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"tenants": [{"name": "acme"}, {"name": "other"}], "keys": [
            {"id": tenant, "tenant": tenant, "sha256": hashlib.sha256(f"{tenant}-key".encode()).hexdigest()} for tenant in ("acme", "other")]}))
        router = Server(folder, "router-keys", ["--model_name=tiny", "--http_listen=127.0.0.1:0", f"--keys_file={keys}",
                                                *(f"--workers={worker.listen}" for worker in cluster.workers)])
        self.addCleanup(router.stop)
        router.await_ready()
        url = f"http://{router.http()}"
        for key in (None, "wrong"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                get(url + "/cluster", key)
            self.assertEqual(refused.exception.code, 401)
            refused.exception.close()
        self.assertIn("workers", json.loads(get(url + "/cluster", "acme-key")))

        browser = Browser()
        self.addCleanup(browser.stop)
        browser.resize(*WIDTHS["desk"])
        browser.open(url + "/")
        eventually(lambda: browser.run("return document.activeElement.id") == "key", what="the question for a key")
        self.assertEqual(browser.run("return document.querySelectorAll('.worker').length"), 0)
        self.assertEqual(accessibility.problems(browser), [])
        browser.run("document.getElementById('key').focus()")
        browser.type(*"wrong", "Enter")
        eventually(lambda: browser.text("#key-error"), what="a refusal")
        browser.type(*"acme-key", "Enter")
        eventually(lambda: browser.text("#state") == "ready", what="the cluster")
        eventually(lambda: browser.run("return document.querySelectorAll('.worker').length") == 2, what="workers")
        self.assertEqual(browser.run("return [Object.values(sessionStorage), localStorage.length, document.cookie]"), [["acme-key"], 0, ""])
        browser.run("document.getElementById('message').focus()")
        browser.type(*"Hello", "Enter")
        eventually(lambda: "tokens" in (browser.text(".said:not(.mine) .more") or ""), what="an answer")
        finished = lambda key: len(json.loads(get(url + "/cluster", key))["finished"])
        eventually(lambda: finished("acme-key") == 1, what="the request that ended")
        self.assertEqual(finished("other-key"), 0)
        # The browser reports each 401; nothing else is said.
        self.assertEqual([entry for entry in browser.console() if "401" not in entry[1]], [])
        browser.run("document.getElementById('forget').click()")
        eventually(lambda: browser.run("return document.activeElement.id") == "key", what="the question again")
        self.assertEqual(browser.run("return sessionStorage.length"), 0)
        self.assertEqual(browser.run("return document.querySelectorAll('.worker').length"), 0)


if __name__ == "__main__":
    unittest.main()
