"""The answers of a cluster that nothing disturbs, and how others differ from them."""

import concurrent.futures
import pathlib
import tempfile

from answers import COMPLETE, Call
from operations import Server, eventually
from workload import first_turns, second_turns

CLIENTS = 6


class Undisturbed:
    """One worker of each role, with room for everything and nothing below it."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-soak-reference-")
        self.servers = []

    def __enter__(self):
        try:
            for role in ("prefill", "decode"):
                self.start(role, ["--threads=1", "--kv_memory=256MiB", "--dram_memory=0B"])
            self.start("router", ["--model_name=tiny", "--http_listen=127.0.0.1:0", *(f"--workers={worker.listen}" for worker in self.servers)])
            self.http = self.servers[-1].http()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, name, flags):
        server = Server(pathlib.Path(self.folder.name), name, flags, inside=["setsid"])
        self.servers.append(server)
        server.await_ready()

    def __exit__(self, *unused):
        for server in self.servers:
            server.stop()
        self.folder.cleanup()

    def answer(self, request):
        def answered():
            answer = Call(self.http, request, f"reference-{request.number}").run()
            if answer.outcome == COMPLETE:
                return answer
            if not answer.outcome.startswith("503"):  # a router that has just started sees no worker yet
                raise AssertionError(f"undisturbed, request {request.number} got {answer.outcome}: {answer.detail}")
            return None
        return eventually(answered, what="an undisturbed answer")


def references(seed, count, on_progress):
    """Requests and their answers."""
    with Undisturbed() as cluster, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        requests, answers = first_turns(seed, count), []

        def ask(more):
            for answer in pool.map(cluster.answer, more):
                answers.append(answer)
                on_progress(len(answers))
        try:
            ask(requests)
            more = second_turns(seed, requests, answers)
            ask(more)
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise
        return requests + more, answers


def difference(request, expected, answer):
    """The first thing in which an answer is wrong; None for one that is right, as far as it goes."""
    complete = answer.outcome == COMPLETE
    if complete and sorted(answer.choices) != list(range(request.choices)):
        return f"choices {sorted(answer.choices)} of {request.choices}"
    for index, choice in answer.choices.items():
        right = expected.choices.get(index)
        if right is None:
            return f"choice {index} of {request.choices}"
        for name, got, wanted in (("token", choice.tokens, right.tokens), ("character", choice.text, right.text),
                                  ("logprobs", choice.logprobs, right.logprobs if choice.logprobs else [])):
            at = first_difference(got, wanted, complete)
            if at is not None:
                return f"choice {index}, {name} {at}: {got[at:at + 3]!r} instead of {wanted[at:at + 3]!r}"
        if choice.finish is not None and choice.finish != right.finish or complete and choice.finish is None:
            return f"choice {index}: finish {choice.finish} instead of {right.finish}"
    return None


def first_difference(got, wanted, complete):
    for at, (one, other) in enumerate(zip(got, wanted)):
        if one != other:
            return at
    if len(got) > len(wanted) or complete and len(got) < len(wanted):
        return min(len(got), len(wanted))
    return None


def tokens_that_differ(expected, answer):
    """How many tokens of an answer are not the right ones in their places."""
    count = 0
    for index, choice in answer.choices.items():
        right = expected.choices[index].tokens if index in expected.choices else []
        count += sum(got != wanted for got, wanted in zip(choice.tokens, right)) + max(0, len(choice.tokens) - len(right))
    return count
