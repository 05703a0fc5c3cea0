"""Clients with one request after the other, each in one of the ways in which people and programs use a router."""

import random
import threading

from answers import STUCK_S, UNREADABLE, Answer, Call
from grpc_call import GrpcCall

# How often: out of the sum.
WAYS = {"patient": 8, "streaming": 10, "slow reader": 2, "cancels": 3, "cancels at once": 1, "gRPC": 2, "deadline": 2}
SLOW_EVENTS, SLOW_S = 60, 0.03  # parts of a stream that a slow reader takes its time for
OVER_GRPC = ("gRPC", "deadline")
NO_DEADLINE_S = 4 * STUCK_S
CLIENT_FAULTS = {"slow reader": "client reads slowly", "cancels": "client cancels midway", "cancels at once": "client cancels at once",
                 "deadline": "client's deadline"}


class Clients:
    """`stop` ends the asking; requests that are open end as they would."""

    def __init__(self, cluster, requests, expected, tally, seed, count):
        self.cluster, self.requests, self.expected, self.tally, self.seed = cluster, requests, expected, tally, seed
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(client,), daemon=True) for client in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, client):
        pick, turn = random.Random(f"{self.seed} client {client}"), 0
        while not self.stopping.is_set():
            way = pick.choices(list(WAYS), WAYS.values())[0]
            request = pick.choice([request for request in self.requests if way not in OVER_GRPC or fits_grpc(request)])
            # A salt is a partition of the cache of its own: the same answer, computed again.
            salt = f"{client}-{turn}" if pick.random() < 0.3 else ""
            name, turn = f"soak-{client}-{turn}", turn + 1
            answer = ask(self.cluster, request, way, name, salt, pick, self.stopping)
            self.tally.add(name, way, request, self.expected[request.number], answer)
            self.stopping.wait(min(1, answer.retry_s))

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def fits_grpc(request):
    return not request.chat and "logprobs" not in request.body


def ask(*arguments):
    try:
        return ask_in_way(*arguments)
    except Exception as error:  # whatever it is, no client could read this answer
        return Answer(UNREADABLE, {}, repr(error))


def ask_in_way(cluster, request, way, name, salt, pick, stopping):
    if way in OVER_GRPC and fits_grpc(request):
        timeout_s = pick.uniform(0.01, 0.6) if way == "deadline" else NO_DEADLINE_S
        return GrpcCall(cluster.router.listen, request, name, salt, timeout_s).run()
    leave_at = {"cancels": pick.randrange(1, 15), "cancels at once": 0}.get(way)

    def on_event(count):
        if way == "slow reader" and 0 < count < SLOW_EVENTS:
            stopping.wait(SLOW_S)
        return leave_at is None or count < leave_at
    return Call(cluster.http, request, name, {"cache_salt": salt} if salt else {}, way not in ("patient", *OVER_GRPC), on_event).run()
