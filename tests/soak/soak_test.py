"""A short soak, in which every kind of fault happens, finds nothing; and whatever it must find, it does."""

import copy
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e/operator")]
from answers import CANCELLED, COMPLETE, STUCK, UNREADABLE, Answer, Choice  # noqa: E402
from faults import KINDS  # noqa: E402
from operations import eventually  # noqa: E402
from oracle import difference, tokens_that_differ  # noqa: E402
from plan import LANES, events  # noqa: E402
from report import GROWTH_MAX, Report, Tally, growth  # noqa: E402
from workload import Request, first_turns  # noqa: E402

SHORT = ["--minutes", "0.5", "--requests", "40"]
PATIENCE_S = 400
OF_CLIENTS = ("client cancels midway", "client cancels at once", "client reads slowly", "client's deadline")


def command(*arguments):
    return [sys.executable, "-B", HERE / "soak.py", *map(str, arguments)]


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-soak-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_every_fault_happens_and_no_answer_is_wrong(self):
        result = self.folder / "result.json"
        done = subprocess.run(command(*SHORT, "--seed", 5, "--json", result, "--keep", self.folder / "logs"), text=True, capture_output=True,
                              timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads(result.read_text())
        self.assertEqual((found["wrong"], found["stuck"], found["leaked"], found["problems"]), (0, 0, {}, []))
        self.assertLessEqual(set(found["not_possible"]), {"full disk"})  # which takes a mount
        for name in {*KINDS, *OF_CLIENTS} - set(found["not_possible"]):
            self.assertGreater(found["faults"].get(name, 0), 0, name)
        # They were felt.
        self.assertGreater(found["events"]["request_replanned"], 0)
        self.assertGreater(found["right"], 100)
        self.assertIn("seed 5", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^wrong tokens +0$")

    def test_an_interrupt_ends_it_with_the_table(self):
        process = subprocess.Popen(command("--minutes", 10, "--requests", 12, "--seed", 6, "--keep", self.folder), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            eventually(lambda: any("begins" in log.read_text() for log in self.folder.glob("*/faults.log")), what="a fault")
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 128 + signal.SIGINT, output + error)
        self.assertRegex(output, r"(?m)^wrong tokens +0$")
        self.assertRegex(output, r"(?m)^leaked blocks +0$")
        self.assertEqual(servers_in(self.folder), [])


def servers_in(folder):
    """Processes that were started with a file there."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended
        if f"--ready_file={folder}" in line:
            found.append(line.replace("\0", " "))
    return found


def answer(*choices, outcome=COMPLETE):
    return Answer(outcome, {index: Choice(list(tokens), text, finish) for index, (tokens, text, finish) in enumerate(choices)})


class Judging(unittest.TestCase):
    request = Request(0, "/v1/completions", {"n": 2})
    right = answer(([1, 2, 3], "abc", "length"), ([4, 5], "de", "stop"))

    def changed(self, change, outcome=COMPLETE):
        got = copy.deepcopy(self.right)
        got.outcome = outcome
        change(got.choices)
        return got

    def wrong(self, change, outcome=COMPLETE):
        return difference(self.request, self.right, self.changed(change, outcome)) is not None

    def test_what_is_wrong_in_an_answer(self):
        self.assertFalse(self.wrong(lambda choices: None))
        for change in (lambda choices: choices[0].tokens.__setitem__(1, 9), lambda choices: choices[1].tokens.append(6),
                       lambda choices: choices[1].tokens.pop(), lambda choices: choices.pop(1),
                       lambda choices: setattr(choices[0], "text", "abd"), lambda choices: setattr(choices[0], "text", "ab"),
                       lambda choices: setattr(choices[0], "finish", "stop"), lambda choices: setattr(choices[0], "finish", None),
                       lambda choices: choices[0].logprobs.append(["a", -1.0, {}])):
            self.assertTrue(self.wrong(change))

    def test_an_answer_that_was_cut_off_is_right_as_far_as_it_goes(self):
        def cut(choices):
            choices[0] = Choice([1, 2], "a")
            choices.pop(1)
        self.assertFalse(self.wrong(cut, CANCELLED))
        self.assertTrue(self.wrong(cut, COMPLETE))
        self.assertTrue(self.wrong(lambda choices: choices[0].tokens.__setitem__(0, 2), CANCELLED))
        self.assertTrue(self.wrong(lambda choices: choices[0].tokens.append(4), CANCELLED))
        self.assertTrue(self.wrong(lambda choices: choices.update({2: Choice([1], "a")}), CANCELLED))

    def test_wrong_tokens_are_counted(self):
        self.assertEqual(tokens_that_differ(self.right, self.right), 0)
        got = self.changed(lambda choices: (choices[0].tokens.__setitem__(0, 9), choices[1].tokens.append(7)))
        self.assertEqual(tokens_that_differ(self.right, got), 2)


class Table(unittest.TestCase):
    request = Request(0, "/v1/completions", {"n": 1})
    right = answer(([1, 2], "ab", "length"))

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-soak-test-")
        self.addCleanup(folder.cleanup)
        self.tally = Tally(pathlib.Path(folder.name))
        self.tally.phase = "faults"
        self.memory, self.leaked = {}, {}

    def report(self):
        watch = type("Watch", (), {"memory": self.memory, "descriptors": {}})
        return Report(1, 60, self.tally, watch, self.leaked, {}, [])

    def add(self, got):
        self.tally.add("a", "patient", self.request, self.right, got)

    def test_it_passes_only_with_nothing_wrong_stuck_leaked_or_grown(self):
        self.add(self.right)
        self.add(answer(([1], "a", None), outcome="503 overloaded"))  # permitted while there are faults
        self.assertTrue(self.report().passed())
        for spoil in (lambda: self.add(answer(([1, 3], "ab", "length"))), lambda: self.add(answer(([1], "a", None), outcome=STUCK)),
                      lambda: self.add(answer(outcome=UNREADABLE)), lambda: self.leaked.update(worker=1),
                      lambda: self.tally.problem("ended by itself"), self.lose_without_a_fault,
                      lambda: self.memory.update({("router", 1): self.grows(GROWTH_MAX * 3)})):
            with self.subTest(spoil=spoil):
                self.setUp()
                self.add(self.right)
                spoil()
                self.assertFalse(self.report().passed())
                self.assertEqual(list(self.report().lines())[-1], "FAILED")

    def lose_without_a_fault(self):
        self.tally.phase = "after the faults"
        self.add(answer(outcome="503 overloaded"))

    @staticmethod
    def grows(share, seconds=1000):
        """Samples of a process that fills its caches for a minute, and grows by so much over all of its life."""
        return [(at, 1000 * min(1, at / 50) * (1 + share * at / seconds)) for at in range(seconds)]

    def test_growth_is_that_behind_the_warm_up(self):
        self.assertIsNone(growth(self.grows(0, seconds=400)))
        self.assertEqual(growth(self.grows(0))[2], 0)
        # The growth is measured from the middle of the first fifth behind 40 % to that of the last.
        self.assertAlmostEqual(growth(self.grows(0.1))[2], 0.1 * 0.48 / 1.046, places=3)
        self.memory[("router", 1)] = self.grows(GROWTH_MAX)
        self.assertTrue(self.report().passed())
        self.assertRegex("\n".join(self.report().lines()), r"(?m)^resident memory.*\n +router, life 1, 17 min +1\.0 -> +1\.0  \+1\.0%$")


class Plan(unittest.TestCase):
    def test_it_is_a_function_of_the_seed(self):
        for lane in LANES:
            kinds = {kind.name: kind.targets for kind in KINDS.values() if kind.lane == lane}
            self.assertGreater(len(kinds), 3)
            one, same, other, next_round = (events(seed, lane, kinds, number) for seed, number in ((1, 0), (1, 0), (2, 0), (1, 1)))
            self.assertEqual(one, same)
            self.assertNotEqual(one, other)
            self.assertNotEqual(one, next_round)
            self.assertEqual(sorted(event.kind for event in one), sorted(kinds))

    def test_so_are_the_requests_and_they_differ_in_every_way(self):
        requests = first_turns(3, 150)
        self.assertEqual(requests, first_turns(3, 150))
        self.assertNotEqual(requests, first_turns(4, 150))
        for key in ("stop", "logprobs", "repetition_penalty", "top_p", "messages", "prompt"):
            self.assertTrue(any(key in request.body for request in requests), key)
        self.assertEqual({request.choices for request in requests}, {1, 2})


if __name__ == "__main__":
    unittest.main()
