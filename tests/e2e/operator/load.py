"""Clients that keep asking routers over HTTP and try again as docs/api.md says, and what came of it."""

import http.client
import itertools
import json
import random
import threading
import time

TRIES = 60


class Lost(Exception):
    """A request that a client would count as failed."""


def prompts(count, seed):
    """Requests that differ in length, sampling and number of choices; seeds make each answer the only right one."""
    pick = random.Random(seed)
    words = "the river runs down from a hill where old trees stand and birds sing of rain".split()
    made = []
    for number in range(count):
        text = " ".join(pick.choice(words) for _ in range(pick.choice((4, 30, 120, 250))))
        made.append({"model": "tiny", "prompt": f"{number}: {text}", "max_tokens": pick.choice((40, 200, 700)), "ignore_eos": True,
                     "seed": number, "temperature": pick.choice((0, 0.8, 1.2)), "n": pick.choice((1, 1, 2)),
                     "stream": number % 3 != 0, "return_token_ids": True})
    return made


def long_prompts(count, seed):
    """Requests that are nearly all work of prefill workers."""
    return [{**request, "prompt": f"{seed}: " + request["prompt"] * (2500 // len(request["prompt"])), "max_tokens": 4, "n": 1}
            for request in prompts(count, seed)]


def read_answer(response):
    """Token ids of every choice, from an answer that ends as it should."""
    if response.getheader("content-type") == "application/json":
        return [choice["token_ids"] for choice in json.load(response)["choices"]]
    tokens = {}
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return [tokens[choice] for choice in sorted(tokens)]
        event = json.loads(line[6:])
        if "error" in event:
            raise Lost(f"an error in the middle of an answer: {event['error']}")
        for choice in event["choices"]:
            tokens.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
    raise Lost(f"the answer broke off after {sum(map(len, tokens.values()))} tokens")


def connect(endpoint, tls):
    if tls is None:
        return http.client.HTTPConnection(endpoint, timeout=60)
    return http.client.HTTPSConnection(endpoint, timeout=60, context=tls)


def ask(endpoints, request, tls=None):
    """One request: before the head of an answer a client may try again, and behind it no more."""
    last = None
    for endpoint in itertools.islice(itertools.cycle(endpoints), TRIES):
        connection = connect(endpoint, tls)
        pause_s = 0.1
        try:
            try:
                connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                last = repr(error)
            else:
                if response.status == 200:
                    try:
                        return read_answer(response)
                    except (OSError, http.client.HTTPException) as error:
                        raise Lost(f"the connection broke in the middle of an answer: {error!r}") from error
                last = response.read().decode()
                if response.getheader("x-should-retry") != "true":
                    raise Lost(f"{response.status} {last}")
                pause_s = min(1, int(response.getheader("retry-after-ms")) / 1000)
        finally:
            connection.close()
        time.sleep(pause_s)
    raise Lost(f"{TRIES} tries, the last: {last}")


class Load:
    """`clients` threads, each with one request after the other, until stop. With `tls` over that. With `salted` no request
    finds KV of an earlier one."""

    def __init__(self, endpoints, requests, clients, tls=None, salted=False):
        self.requests, self.tls, self.salted = requests, tls, salted
        self.expected = [ask(endpoints, request, tls) for request in requests]  # undisturbed
        self.lock = threading.Lock()
        self.done, self.failed, self.stopping = 0, [], False
        self.threads = [threading.Thread(target=self.run, args=(endpoints[client % len(endpoints):] + endpoints[:client % len(endpoints)], client))
                        for client in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, endpoints, client):
        for turn in itertools.count(client):
            if self.stopping:
                return
            which = turn * 7 % len(self.requests)
            salt = {"cache_salt": f"{client} {turn}"} if self.salted else {}
            try:
                tokens = ask(endpoints, {**self.requests[which], **salt}, self.tls)
                fault = None if tokens == self.expected[which] else f"request {which}: other tokens than undisturbed"
            except Exception as error:  # whatever it is, it is a request that did not work
                fault = f"request {which}: {error!r}"
            with self.lock:
                self.done += 1
                if fault:
                    self.failed.append(fault)

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()
