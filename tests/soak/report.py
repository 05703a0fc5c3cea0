"""What is counted, and the table at the end."""

import collections
import json
import statistics
import threading
import time

from answers import CANCELLED, COMPLETE, DEADLINE, STUCK, UNREADABLE
from clients import CLIENT_FAULTS
from oracle import difference, tokens_that_differ

KEPT = 20  # examples

GROWTH_MAX = 0.02
# The first 40 % of a process's life, while caches and heaps fill, are not judged; at least 300 s must remain.
WARM_UP, JUDGED_S = 0.4, 300
FIFTH = (1 - WARM_UP) / 5


class Tally:
    """Every answer, by how it ended; thread-safe."""

    def __init__(self, folder):
        self.folder, self.lock = folder, threading.Lock()
        self.phase = "before faults"
        self.outcomes, self.faults, self.refused = collections.Counter(), collections.Counter(), collections.Counter()
        self.requests = self.right = self.wrong = self.wrong_tokens = self.stuck = self.tokens = 0
        self.problems = []  # whatever else must not be

    def add(self, name, way, request, expected, answer):
        wrong = difference(request, expected, answer)
        with self.lock:
            self.requests += 1
            self.tokens += answer.tokens
            if way in CLIENT_FAULTS and (way != "cancels" or answer.outcome == CANCELLED):  # not when the answer was quicker
                self.faults[CLIENT_FAULTS[way]] += 1
            if wrong:
                self.wrong += 1
                self.wrong_tokens += tokens_that_differ(expected, answer)
            elif answer.outcome == COMPLETE:
                self.right += 1
            else:
                self.outcomes[answer.outcome] += 1
                self.stuck += answer.outcome == STUCK
            if wrong or answer.outcome in (STUCK, UNREADABLE) or answer.outcome.startswith("500"):
                self.keep(name, way, request, expected, answer, wrong)
            if answer.outcome == UNREADABLE:
                self.problem(f"{name} ({way}): {answer.detail}")
            # Nothing may be lost to a fault while there is none.
            elif self.phase != "faults" and not wrong and answer.outcome not in (COMPLETE, CANCELLED, DEADLINE, STUCK):
                self.problem(f"{self.phase}, {name} ({way}) ended with: {answer.outcome} {answer.detail}")

    def keep(self, name, way, request, expected, answer, wrong):
        """All that one needs to look into it, beside the logs."""
        with open(self.folder / "failures.jsonl", "a") as file:
            file.write(json.dumps({"time": time.time(), "name": name, "way": way, "wrong": wrong, "outcome": answer.outcome, "detail": answer.detail,
                                   "request": request.body, "got": {index: vars(choice) for index, choice in answer.choices.items()},
                                   "expected": {index: vars(choice) for index, choice in expected.choices.items()}}) + "\n")

    def problem(self, text):
        if len(self.problems) < KEPT:
            self.problems.append(text)

    def fault(self, kind, refused=False):
        with self.lock:
            (self.refused if refused else self.faults)[kind] += 1

    def counts(self):
        with self.lock:
            return {"requests": self.requests, "right": self.right, "wrong": self.wrong, "stuck": self.stuck, "faults": sum(self.faults.values())}


def growth(life):
    """(before, after, relative growth) of one life's samples (seconds since its start, value), when it was long enough:
    the medians of the first and the last fifth behind the warm-up."""
    end = life[-1][0]
    warm = [(at, value) for at, value in life if at >= WARM_UP * end]
    if end * (1 - WARM_UP) < JUDGED_S:
        return None
    fifth = max(1, len(warm) // 5)
    before = statistics.median(value for _, value in warm[:fifth])
    after = statistics.median(value for _, value in warm[-fifth:])
    return before, after, after / before - 1


class Report:
    def __init__(self, seed, seconds, tally, watch, leaked, events, skipped):
        self.seed, self.seconds, self.tally, self.watch = seed, seconds, tally, watch
        self.leaked, self.events, self.skipped = leaked, events, skipped
        self.memory = {life: growth(samples) for life, samples in watch.memory.items()}
        self.descriptors = {life: growth(samples) for life, samples in watch.descriptors.items()}

    def grown(self):
        return [life for life, found in self.memory.items() if found and found[2] > GROWTH_MAX]

    def passed(self):
        tally = self.tally
        return not (tally.wrong or tally.stuck or self.leaked or self.grown() or tally.problems)

    def json(self):
        tally = self.tally
        return {"seed": self.seed, "seconds": round(self.seconds), "passed": self.passed(), **tally.counts(), "outcomes": tally.outcomes,
                "wrong_tokens": tally.wrong_tokens, "tokens": tally.tokens, "faults": tally.faults, "refused": tally.refused,
                "not_possible": self.skipped, "leaked": self.leaked, "problems": tally.problems, "events": self.events,
                "memory": {" ".join(map(str, life)): found for life, found in self.memory.items() if found},
                "descriptors": {" ".join(map(str, life)): found for life, found in self.descriptors.items() if found}}

    def lines(self):
        tally = self.tally
        yield f"soak of {self.seconds // 60:.0f} min {self.seconds % 60:.0f} s, seed {self.seed}"
        yield from section("requests", tally.requests, [("right", tally.right), *tally.outcomes.most_common(), ("wrong", tally.wrong)])
        yield from section("faults", sum(tally.faults.values()), sorted(tally.faults.items()))
        if tally.refused:
            yield from section("operator's commands refused meanwhile", sum(tally.refused.values()), sorted(tally.refused.items()))
        for name in self.skipped:
            yield f"  not possible here: {name}"
        yield from section("warnings and moves in the logs", sum(self.events.values()),
                           sorted(self.events.items(), key=lambda item: -item[1]))
        yield row("tokens", tally.tokens)
        yield row("wrong tokens", tally.wrong_tokens)
        yield row("wrong answers", tally.wrong)
        yield row("stuck requests", tally.stuck)
        yield row("leaked blocks", sum(self.leaked.values()))
        yield from (f"  {where}: {count:.0f}" for where, count in self.leaked.items())
        minutes = {life: samples[-1][0] / 60 for life, samples in self.watch.memory.items()}
        yield from growth_lines("resident memory without malloc's caches, MiB", self.memory, minutes, 1024, "%.1f", f"at most {GROWTH_MAX:.0%}")
        yield from growth_lines("file descriptors", self.descriptors, minutes, 1, "%.0f", "shown only")
        yield row("other problems", len(tally.problems))
        yield from (f"  {problem}" for problem in tally.problems)
        yield "passed" if self.passed() else "FAILED"


def row(name, value, indent=""):
    return f"{indent}{name:<{44 - len(indent)}} {value:>9}"


def section(title, total, parts):
    yield row(title, total)
    yield from (row(name, count, "  ") for name, count in parts)


def growth_lines(title, lives, minutes, unit, form, bound):
    judged = {life: found for life, found in lives.items() if found}
    if not judged:
        yield f"{title}: not judged, no process lived for {JUDGED_S / (1 - WARM_UP):.0f} s"
        return
    yield f"{title}, from {WARM_UP:.0%} to {WARM_UP + FIFTH:.0%} of a life and in its last {FIFTH:.0%} ({bound}):"
    for (name, life), (before, after, grown) in sorted(judged.items()):
        yield f"  {f'{name}, life {life}, {minutes[name, life]:.0f} min':<30} {form % (before / unit):>8} -> {form % (after / unit):>8}  {grown:+.1%}"
