"""Requests, each of which has one right answer: they have seeds, and whoever answers them, in whatever batch, must give
the same tokens."""

import dataclasses
import random

WORDS = "the river runs down from a hill where old trees stand and birds sing of rain over stone while small boats wait".split()
SHARED_TEXTS = 4


@dataclasses.dataclass
class Request:
    number: int
    path: str  # of HTTP
    body: dict

    @property
    def chat(self):
        return self.path.endswith("chat/completions")

    @property
    def choices(self):
        return self.body["n"]


def sampling(pick, number):
    """Every kind of sampling, stop and output that an answer can have."""
    found = {"model": "tiny", "seed": number, "return_token_ids": True, "n": pick.choice((1, 1, 1, 2)),
             "max_tokens": pick.choice((1, 8, 40, 150, 400, 700)), "temperature": pick.choice((0, 0.7, 1.1)), "ignore_eos": pick.random() < 0.7}
    if pick.random() < 0.3:
        found.update(top_p=pick.choice((0.5, 0.9)), top_k=pick.choice((5, 50)))
    if pick.random() < 0.4:
        found.update(frequency_penalty=0.5, presence_penalty=pick.choice((-0.5, 0.3)), repetition_penalty=pick.choice((1.1, 1.3)))
    if pick.random() < 0.3:
        found.update(stop=pick.sample([" the", ".", " and", "ing", "\n"], 2))
    return found


def texts(seed):
    """What several prompts begin with, from less than a block to many."""
    pick = random.Random(f"{seed} texts")
    return [" ".join(pick.choice(WORDS) for _ in range(count)) for count in (6, 60, 150, 300)][:SHARED_TEXTS]


def first_turns(seed, count):
    pick, shared = random.Random(f"{seed} requests"), texts(seed)
    made = []
    for number in range(count):
        body = sampling(pick, number)
        own = " ".join(pick.choice(WORDS) for _ in range(pick.choice((1, 10, 60, 200))))
        text = f"{pick.choice(shared)} {own}" if pick.random() < 0.7 else f"{number}: {own}"
        wants_logprobs = pick.random() < 0.3
        if pick.random() < 0.3:
            if wants_logprobs:
                body.update(logprobs=True, top_logprobs=2)
            made.append(Request(number, "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}))
        else:
            if wants_logprobs:
                body.update(logprobs=2)
            made.append(Request(number, "/v1/completions", {**body, "prompt": text}))
    return made


def second_turns(seed, first, answers):
    """Goes on with every chat: its answer, which workers may have cached, and a new question."""
    pick = random.Random(f"{seed} second")
    made = []
    for request, answer in zip(first, answers):
        if not request.chat:
            continue
        messages = [*request.body["messages"], {"role": "assistant", "content": answer.choices[0].text},
                    {"role": "user", "content": " ".join(pick.choice(WORDS) for _ in range(12))}]
        body = {**sampling(pick, len(first) + len(made)), "messages": messages}
        made.append(Request(len(first) + len(made), request.path, body))
    return made
