"""One request over HTTP and what came of it, in the client's own words: complete, cancelled, refused, broken."""

import dataclasses
import http.client
import json
import time

# A request that has not ended after so long, with nothing from the server for all of it, is stuck: longer than any fault
# lasts, and every patience of the product's.
STUCK_S = 90

COMPLETE, CANCELLED, DEADLINE, STUCK, LOST, UNREACHED, UNREADABLE = (
    "complete", "cancelled by the client", "deadline passed", "stuck", "connection lost", "no connection", "unreadable answer")


@dataclasses.dataclass
class Choice:
    tokens: list = dataclasses.field(default_factory=list)
    text: str = ""
    finish: str | None = None
    logprobs: list = dataclasses.field(default_factory=list)

    def add(self, found, text):
        self.tokens += found.get("token_ids") or []
        self.text += text or ""
        self.finish = found.get("finish_reason") or self.finish
        self.logprobs += logprobs_of(found.get("logprobs"))


@dataclasses.dataclass
class Answer:
    outcome: str
    choices: dict  # index to Choice; what there was before the end
    detail: str = ""
    retry_s: float = 0

    @property
    def tokens(self):
        return sum(len(choice.tokens) for choice in self.choices.values())


def logprobs_of(found):
    """A list with an entry for each token, from either endpoint's form."""
    if not found:
        return []
    if "content" in found:
        return [[entry["token"], entry["logprob"], [[top["token"], top["logprob"]] for top in entry["top_logprobs"]]]
                for entry in found["content"] or []]
    return [list(entry) for entry in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"])]


def text_of(found):
    part = found.get("message") or found.get("delta") or {}
    return found["text"] if "text" in found else part.get("content")


class Call:
    """`on_event` is told of each part of a stream; it returns false to leave, as a client does that hangs up."""

    def __init__(self, address, request, number, body=None, stream=False, on_event=lambda count: True):
        self.address, self.request, self.on_event = address, request, on_event
        self.body = {**request.body, **(body or {}), "stream": stream}
        self.headers = {"Content-Type": "application/json", "X-Request-Id": number}
        self.choices = {}

    def ended(self, outcome, detail="", retry_s=0):
        return Answer(outcome, self.choices, detail, retry_s)

    def run(self):
        self.connection = http.client.HTTPConnection(self.address, timeout=STUCK_S)
        try:
            try:
                self.connection.connect()
            except OSError as error:
                return self.ended(UNREACHED, repr(error), 1)
            return self.exchange()
        except TimeoutError:
            return self.ended(STUCK, f"no byte for {STUCK_S} s")
        except (OSError, http.client.HTTPException) as error:
            return self.ended(LOST, repr(error), 0.2)
        finally:
            self.connection.close()

    def exchange(self):
        self.connection.request("POST", self.request.path, json.dumps(self.body), self.headers)
        if not self.on_event(0):
            return self.ended(CANCELLED)
        response = self.connection.getresponse()
        if response.status != 200:
            return self.refused(response)
        if not self.body["stream"]:
            for found in json.load(response)["choices"]:
                self.choices.setdefault(found["index"], Choice()).add(found, text_of(found))
            return self.ended(COMPLETE)
        return self.read(response)

    def refused(self, response):
        text = response.read().decode(errors="replace")
        try:
            code = json.loads(text)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            code = "without a JSON error"
        return self.ended(f"{response.status} {code}", text[:500], int(response.getheader("retry-after-ms") or 200) / 1000)

    def read(self, response):
        count, end = 0, time.monotonic() + 2 * STUCK_S
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return self.ended(COMPLETE)
            event = json.loads(line[6:])
            if "error" in event:
                return self.ended(f"error within the answer: {event['error'].get('code')}", event["error"].get("message", ""))
            for found in event["choices"]:
                self.choices.setdefault(found["index"], Choice()).add(found, text_of(found))
            count += 1
            if not self.on_event(count):
                return self.ended(CANCELLED)
            if time.monotonic() > end:
                return self.ended(STUCK, f"an answer that goes on after {2 * STUCK_S} s")
        return self.ended(LOST, "the body ended without [DONE]")
