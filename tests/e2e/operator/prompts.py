"""Traffic of prompts as token ids."""

import itertools
import json
import random
import threading
import urllib.error
import urllib.request

VOCABULARY = 2048


def tokens(seed, count):
    pick = random.Random(seed)
    return [pick.randrange(10, VOCABULARY) for _ in range(count)]


class Prompts:
    """Clients of one router whose prompts, of `length` tokens, nobody has seen; `shared` of them begin one of a few
    texts, which others replace after some time. Errors are expected."""

    TEXTS, PROMPTS_OF_A_TEXT = 3, 20

    def __init__(self, router, length, shared=0, **request):
        self.url = f"http://{router.http()}/v1/completions"
        self.length, self.shared, self.request = length, shared, request
        self.numbers, self.stopping, self.threads = itertools.count(), False, []

    def add(self, count=1):
        for _ in range(count):
            self.threads.append(threading.Thread(target=self.run))
            self.threads[-1].start()

    def run(self):
        while not self.stopping:
            self.ask()

    def ask(self):
        number = next(self.numbers)
        text = number % self.TEXTS, number // (self.TEXTS * self.PROMPTS_OF_A_TEXT)
        prompt = tokens(f"text {text}", self.shared) + tokens(f"prompt {number}", self.length - self.shared)
        body = json.dumps({"model": "tiny", "prompt": prompt, "ignore_eos": True, **self.request}).encode()
        try:
            urllib.request.urlopen(urllib.request.Request(self.url, body, {"Content-Type": "application/json"}), timeout=60).read()
        except (urllib.error.HTTPError, ConnectionError):
            pass

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stopping = True
        for thread in self.threads:
            thread.join()
