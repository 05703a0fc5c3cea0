"""Clients in a pod: `clients` threads ask one request after the other until SIGTERM, try again as docs/api.md says, and compare every
answer with the undisturbed one. Prints a JSON line for each request, and "baseline" when the undisturbed answers are there.

    client.py PLAN.json    with url, key, ca, clients, seed, requests, stall_s (limit between two tokens), connect_s, pause_s (after a
                           request), salted (no request finds KV of an earlier one)"""

import http.client
import itertools
import json
import signal
import ssl
import sys
import threading
import time
import urllib.parse

from load import Lost, prompts, read_answer

TRIES = 400
stopping = threading.Event()
saying = threading.Lock()


class Refused(Exception):
    """No answer has begun; the client may try again after the pause."""

    def __init__(self, why, pause_s=0.1):
        super().__init__(why)
        self.pause_s = pause_s


class Client:
    def __init__(self, plan):
        self.plan, self.url = plan, urllib.parse.urlsplit(plan["url"])
        self.tls = ssl.create_default_context(cafile=plan["ca"]) if self.url.scheme == "https" else None
        self.headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {plan['key']}"} if plan.get("key") else {})}

    def connect(self):
        kind, more = (http.client.HTTPSConnection, {"context": self.tls}) if self.tls else (http.client.HTTPConnection, {})
        connection = kind(self.url.hostname, self.url.port, timeout=self.plan["connect_s"], **more)
        try:
            connection.connect()
        except OSError as error:
            raise Refused(repr(error)) from error
        connection.sock.settimeout(self.plan["stall_s"])
        return connection

    def try_once(self, request):
        """The tokens; Refused before the head of an answer, Lost behind it."""
        connection = self.connect()
        try:
            try:
                connection.request("POST", "/v1/completions", json.dumps(request), self.headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise Refused(repr(error)) from error
            if response.status == 200:
                try:
                    return read_answer(response)
                except (OSError, http.client.HTTPException) as error:
                    raise Lost(f"the connection broke in the middle of an answer: {error!r}") from error
            text = response.read().decode()
            if response.getheader("x-should-retry") != "true":
                raise Lost(f"{response.status} {text}")
            raise Refused(f"{response.status} {text}", min(1, int(response.getheader("retry-after-ms")) / 1000))
        finally:
            connection.close()

    def ask(self, request):
        """The tokens, and what each try before met."""
        met = []
        for _ in range(TRIES):
            try:
                return self.try_once(request), met
            except Refused as error:
                met.append(str(error))
                time.sleep(error.pause_s)
        raise Lost(f"{TRIES} tries, the last: {met[-1]}")


def say(**what):
    with saying:  # print writes a line and its end one after the other
        print(json.dumps(what), flush=True)


def work(client, number, requests, expected):
    for turn in itertools.count(number):
        if stopping.is_set():
            return
        which, begun, fault, met = turn * 7 % len(requests), time.time(), None, []
        salt = {"cache_salt": f"{number} {turn}"} if client.plan["salted"] else {}
        try:
            tokens, met = client.ask({**requests[which], **salt})
            fault = None if tokens == expected[which] else "other tokens than undisturbed"
        except Exception as error:  # whatever it is, it is a request that did not work
            fault = f"{error}" if isinstance(error, Lost) else repr(error)
        say(request=which, begun=begun, ended=time.time(), fault=fault, met=met)
        stopping.wait(client.plan["pause_s"])


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    plan = json.loads(open(sys.argv[1], encoding="utf-8").read())
    client = Client(plan)
    requests = prompts(plan["requests"], plan["seed"])
    for request in requests:
        request.update(plan.get("request", {}))
    expected = [client.ask(request)[0] for request in requests]
    say(baseline=len(expected), tokens=sum(len(tokens) for choices in expected for tokens in choices))
    threads = [threading.Thread(target=work, args=(client, number, requests, expected)) for number in range(plan["clients"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
