#!/usr/bin/env python3
"""Real processes under load and random faults: every answer is compared with the undisturbed one.

Exit code 0: no answer was wrong, no request stuck, no block leaked, no process grew or ended by itself."""

import argparse
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e/operator"))
from clients import Clients, ask  # noqa: E402
from cluster import UNKNOWN, Cluster  # noqa: E402
from faults import KINDS, Faults, Refused  # noqa: E402
from oracle import references  # noqa: E402
from plan import LANES, SURVIVORS, events  # noqa: E402
from report import Report, Tally  # noqa: E402
from watch import Watch  # noqa: E402

GAP_MAX_S = {"ends": 12, "stops": 8, "links": 6, "stores": 6}
CLIENTS = 8
RETRY_S, TAKEN_S = 0.5, 60
WIDTH = 24  # of the progress bar


class Interrupted(Exception):
    """Ctrl-C before there was anything to report."""


class Progress:
    """One line that is redrawn on a terminal; elsewhere a line now and then."""

    ELSEWHERE_S = 30

    def __init__(self):
        self.terminal, self.last = sys.stderr.isatty() and "CI" not in os.environ, 0

    def show(self, text, always=False):
        now = time.monotonic()
        if self.terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif always or now - self.last >= self.ELSEWHERE_S:
            print(text, file=sys.stderr, flush=True)
            self.last = now

    def clear(self):
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Lane:
    """One thread of faults, one after the other."""

    def __init__(self, soak, name):
        self.soak, self.name, self.now, self.rounds = soak, name, None, 0
        self.kinds = {kind.name: kind.targets for kind in soak.possible.values() if kind.lane == name}
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        for round_number in itertools.count():
            for event in events(self.soak.seed, self.name, self.kinds, round_number):
                if self.soak.stopping.wait(self.gap(event, round_number)) and self.soak.interrupted:
                    return
                if self.soak.stopping.is_set() and round_number > 0:
                    return
                if round_number > 0 and self.name == "ends" and self.soak.late() and event.target in SURVIVORS:
                    continue
                self.execute_once(event) if round_number == 0 else self.execute(event)
            self.rounds = round_number + 1

    def gap(self, event, round_number):
        """In the first round, which goes through every kind, a run of any length has time for all of them."""
        return event.gap * (min(GAP_MAX_S[self.name], self.soak.seconds / 60) if round_number == 0 else GAP_MAX_S[self.name])

    def execute_once(self, event):
        """A command that is refused now is taken when other faults are over."""
        end = time.monotonic() + TAKEN_S
        while not self.execute(event) and not self.soak.interrupted:
            if time.monotonic() > end:
                self.soak.tally.problem(f"{event} was refused for {TAKEN_S} s")
                return
            self.soak.stopping.wait(RETRY_S)

    def execute(self, event):
        """False for what the cluster refused."""
        self.now, soak, done = event, self.soak, True
        soak.note(f"begins: {event}")
        try:
            soak.faults.run(event)
            soak.tally.fault(event.kind)
        except Refused as error:
            soak.note(f"refused: {error}")
            soak.tally.fault(event.kind, refused=True)
            done = False
        except Exception as error:  # whatever it is, this fault did not go as it should
            soak.tally.problem(f"{event}: {error!r}")
        soak.note(f"ends: {event}")
        self.now = None
        return done


class Soak:
    def __init__(self, arguments, folder, progress):
        self.seed, self.seconds, self.folder, self.progress = arguments.seed, arguments.minutes * 60, folder, progress
        self.requests_count = arguments.requests
        self.tally, self.stopping, self.interrupted = Tally(folder), threading.Event(), False
        self.start, self.leaked, self.possible = time.monotonic(), {}, {}
        self.cluster = self.watch = None
        self.plan_log = open(folder / "faults.log", "w")

    def interrupt(self, *unused):
        """The second time ends at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.stopping.set()

    def note(self, text):
        self.plan_log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.plan_log.flush()

    def late(self):
        return time.monotonic() - self.start > self.seconds / 3

    def run(self):
        self.progress.show("asking an undisturbed cluster for the right answers ...", always=True)
        self.requests, self.expected = references(self.seed, self.requests_count, self.show_references)
        wire_fault = os.environ.get("PENSTOCK_DAMAGED_LINK")
        self.cluster = Cluster(self.folder, wire_fault if wire_fault and pathlib.Path(wire_fault).exists() else None)
        self.watch = Watch(self.cluster, self.tally)
        self.ask_all("before faults")
        self.disturb()
        self.settle()

    def show_references(self, count):
        if self.interrupted:
            raise Interrupted
        self.progress.show(f"asking an undisturbed cluster for the right answers: {count}")

    def disturb(self):
        faults = self.faults = Faults(self.cluster, self.stopping.wait)
        self.possible = faults.possible()
        self.tally.phase, self.start = "faults", time.monotonic()
        clients = Clients(self.cluster, self.requests, self.expected, self.tally, self.seed, CLIENTS)
        lanes = [Lane(self, name) for name in LANES]
        saw_held = False
        while not self.stopping.wait(0.5):
            saw_held = saw_held or any(UNKNOWN not in held for held in self.cluster.held().values())
            passed = time.monotonic() - self.start
            # The first round of faults is finished, however short the run is.
            if passed >= self.seconds and all(lane.rounds > 0 for lane in lanes):
                break
            self.show(passed, lanes)
        self.stopping.set()
        self.seconds = time.monotonic() - self.start
        if not saw_held and not self.interrupted:
            self.tally.problem("no process held anything under load: the check for leaks checks nothing")
        self.progress.show("ending faults and open requests ...", always=True)
        for lane in lanes:
            lane.thread.join()
        clients.stop()

    def show(self, passed, lanes):
        counts, done = self.tally.counts(), min(1, passed / self.seconds)
        bar = "#" * int(done * WIDTH)
        now = ", ".join(str(lane.now) for lane in lanes if lane.now)
        text = (f"[{bar:.<{WIDTH}}] {clock(passed)} of {clock(self.seconds)}  {counts['requests']} requests, {counts['wrong']} wrong, "
                f"{counts['stuck']} stuck; {counts['faults']} faults: {now}")
        self.progress.show(text[:shutil.get_terminal_size().columns - 1] if self.progress.terminal else text)

    def settle(self):
        """Every worker is back and holds nothing; then all answers are right, and again nothing is held."""
        self.progress.show("waiting until every worker serves and nothing is held ...", always=True)
        self.tally.phase = "healing"
        try:
            self.cluster.heal()
        except AssertionError as error:
            self.tally.problem(f"after the faults: {error}")
        self.count_leaks("after the faults")
        if not self.interrupted and not self.tally.problems:
            self.ask_all("after the faults")
            self.count_leaks("after the last answers")

    def count_leaks(self, when):
        for name, held in self.cluster.await_quiet().items():
            for sample, value in held.items():
                self.leaked[f"{when}, {name} {sample}"] = value

    def ask_all(self, phase):
        """Each request once, with nothing that disturbs."""
        self.tally.phase = phase
        remaining, lock, pick = list(self.requests), threading.Lock(), random.Random(self.seed)

        def run():
            while not self.interrupted:
                with lock:
                    if not remaining:
                        return
                    request = remaining.pop()
                    self.progress.show(f"{phase}: every request once, {len(remaining)} left")
                way = "streaming" if request.number % 3 else "gRPC" if request.number % 2 else "patient"
                answer = ask(self.cluster, request, way, f"{phase.split()[0]}-{request.number}", "", pick, self.stopping)
                self.tally.add(f"{phase} {request.number}", way, request, self.expected[request.number], answer)
        threads = [threading.Thread(target=run, daemon=True) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def report(self):
        events_seen = self.cluster.events() if self.cluster else {}
        skipped = sorted(set(KINDS) - set(self.possible))
        watch = self.watch or argparse.Namespace(memory={}, descriptors={})
        return Report(self.seed, self.seconds, self.tally, watch, self.leaked, events_seen, skipped)

    def stop(self):
        self.stopping.set()
        if self.watch:
            self.watch.stop()
        if self.cluster:
            self.cluster.stop()
        self.plan_log.close()


def main():
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.split("\n", maxsplit=1)[0], epilog=__doc__.split("\n\n")[1])
    parser.add_argument("--minutes", type=float, default=60, help="how long faults go on [60]; every kind happens once, also in less time")
    parser.add_argument("--seed", type=int, default=None, help="of the plan of faults and of the requests; random unless said")
    parser.add_argument("--requests", type=int, default=150, help="different requests, and as many second turns as there are chats [150]")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the result")
    parser.add_argument("--keep", type=pathlib.Path, help="a directory for the logs, which are kept; else only those of a failed run are")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {arguments.seed}", flush=True)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-soak-", dir=arguments.keep))
    progress = Progress()
    soak = Soak(arguments, folder, progress)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, soak.interrupt)
    try:
        soak.run()
    except Interrupted:
        pass
    except KeyboardInterrupt:  # the second one
        sys.exit(128 + signal.SIGINT)
    except AssertionError as error:
        soak.tally.problem(str(error))
    finally:
        soak.stop()
        progress.clear()
    found = soak.report()
    for line in found.lines():
        print(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(found.json(), indent=1))
    if found.passed() and not arguments.keep:
        shutil.rmtree(folder)
    else:
        print(f"logs: {folder}")
    if soak.interrupted:
        sys.exit(128 + signal.SIGINT)
    sys.exit(0 if found.passed() else 1)


if __name__ == "__main__":
    main()
