"""The order of faults: a function of the seed, and of which kinds can happen here."""

import dataclasses
import random

LANES = ("ends", "stops", "links", "stores")  # each a thread, so that faults of different lanes meet
WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
# The processes whose memory is judged. Behind the first third of a run nothing ends them.
SURVIVORS = ("router", "prefill-0", "decode-0")


@dataclasses.dataclass
class Event:
    kind: str
    target: str
    strength: float  # 0 to 1; how long it lasts, or how much it damages
    gap: float       # 0 to 1; how much later than the one before

    def __str__(self):
        return f"{self.kind}: {self.target}"


def events(seed, lane, kinds, round_number):
    """The kinds of a lane in random order: `round_number` counts from 0. `kinds` are names to their possible targets."""
    pick = random.Random(f"{seed} {lane} {round_number}")
    order = sorted(kinds)
    pick.shuffle(order)
    return [Event(kind, pick.choice(kinds[kind]), pick.random(), pick.random()) for kind in order]
