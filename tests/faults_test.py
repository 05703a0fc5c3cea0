"""The rows of docs/operations/faults.md name files and tests that exist, and every row names some."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = 58
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.M)


def rows():
    """Number, fault, what is seen, and the files with the names of their tests."""
    found = []
    for number, fault, seen, named in ROW.findall((ROOT / "docs/operations/faults.md").read_text()):
        tests = {}
        for name in re.findall(r"`([^`]+)`", named):
            if "/" in name:
                path = name
                tests.setdefault(path, [])
            else:
                tests[path].append(name)
        found.append((int(number), fault, seen, tests))
    return found


def names(path):
    """The tests of a file, each as Suite.Test or Class.test."""
    text = (ROOT / path).read_text()
    if path.endswith(".cc"):
        return {f"{suite}.{test}" for suite, test in re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text, re.M)}
    classes = re.split(r"^class (\w+)", text, flags=re.M)
    return {f"{name}.{test}" for name, body in zip(classes[1::2], classes[2::2]) for test in re.findall(r"^    def (test_\w+)", body, re.M)}


class Faults(unittest.TestCase):
    def test_every_row_is_there_once_and_says_what_is_seen(self):
        self.assertEqual([number for number, *_ in rows()], list(range(1, ROWS + 1)))
        self.assertEqual(len({fault for _, fault, *_ in rows()}), ROWS)

    def test_every_row_names_tests_that_exist(self):
        for number, fault, _, tests in rows():
            with self.subTest(row=number, fault=fault):
                self.assertTrue(tests)
                for path, wanted in tests.items():
                    self.assertTrue((ROOT / path).is_file(), path)
                    self.assertEqual(set(wanted) - names(path), set(), path)
                    if not path.startswith("tests/fuzz/"):
                        self.assertTrue(wanted, f"{path}: which of its tests?")

    def test_metrics_events_and_codes_stand_in_their_pages(self):
        pages = "".join((ROOT / "docs" / page).read_text() for page in ("operations/logs.md", "operations/metrics.md", "api.md", "api-reference.md"))
        for number, _, seen, _ in rows():
            for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)[`{]", seen):
                self.assertTrue(f"`{name}`" in pages or f"{name}{{" in pages, f"row {number}: {name}")

    def test_fuzzers_are_built(self):
        built = "".join(path.read_text() for path in (ROOT / "tests/fuzz").glob("*.c*make")) + (ROOT / "tests/fuzz/CMakeLists.txt").read_text()
        for number, _, _, tests in rows():
            for path in tests:
                if path.startswith("tests/fuzz/"):
                    self.assertIn(pathlib.Path(path).stem.removesuffix("_fuzz"), built, f"row {number}")


if __name__ == "__main__":
    unittest.main()
