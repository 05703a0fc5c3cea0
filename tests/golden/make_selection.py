#!/usr/bin/env python3
"""Regenerates tests/golden/selection.json: the pages that a query selects (Quest, Tang et al., arXiv 2406.10774), and its
attention to them.

    python3 tests/golden/make_selection.py

Runs itself in the environment of make_logits.py. Queries, keys and values are the numbers of draw(), which the test makes
too; they are multiples of 1/64, so that they are exact in every format. Written from the paper, with numpy in double: no
code of the engine takes part. Cases in which two pages have nearly the same score at the edge are left out.
"""

import json
import pathlib

from make_logits import enter_venv

HEADS, KV_HEADS, DIM = 6, 2, 16
OUT = pathlib.Path(__file__).with_name("selection.json")


def draw(seed, count):
    """`count` multiples of 1/64 in [-1, 1): the upper bits of a linear congruential generator (Knuth's MMIX)."""
    state, numbers = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append(((state >> 57) - 64) / 64)
    return numbers


def choose(numpy, query, keys, page, keep):
    """The pages of one KV head. query: [group, DIM], keys: [tokens, DIM]. None: rounding could decide."""
    pages = -(-len(keys) // page)
    scores = []
    for first in range(page, (pages - 2) * page, page):
        least, greatest = keys[first : first + page].min(axis=0), keys[first : first + page].max(axis=0)
        scores.append(numpy.maximum(query * least, query * greatest).sum())
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if scores[order[keep - 4]] - scores[order[keep - 3]] < 0.05:
        return None
    return sorted([0, pages - 2, pages - 1] + [1 + i for i in order[: keep - 3]])


def attend(numpy, query, keys, values, page, chosen):
    tokens = [t for t in range(len(keys)) if t // page in chosen]
    scores = query @ keys[tokens].T / DIM**0.5
    weights = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ values[tokens]


def main():
    import numpy

    cases = []
    seed = 0
    while len(cases) < 12:
        seed += 1
        page = [8, 16, 32][seed % 3]
        tokens = page * (9 + seed % 5) + 1 + seed % page
        keep = 4 + seed % 4
        count = DIM * (HEADS + 2 * KV_HEADS * tokens)
        numbers = numpy.array(draw(seed, count))
        query = numbers[: HEADS * DIM].reshape(KV_HEADS, HEADS // KV_HEADS, DIM)
        keys, values = numbers[HEADS * DIM :].reshape(2, KV_HEADS, tokens, DIM)
        chosen = [choose(numpy, query[h], keys[h], page, keep) for h in range(KV_HEADS)]
        if None in chosen:
            continue
        output = [attend(numpy, query[h], keys[h], values[h], page, chosen[h]) for h in range(KV_HEADS)]
        cases.append({"seed": seed, "page": page, "tokens": tokens, "keep": keep, "pages": chosen,
                      "output": numpy.concatenate(output).round(6).ravel().tolist()})
    lines = ",\n".join(json.dumps(case) for case in cases)
    OUT.write_text(f"[\n{lines}\n]\n")
    print(f"{len(cases)} cases of {seed} seeds in {OUT}")


if __name__ == "__main__":
    enter_venv()
    main()
