"""The error codes of docs/api.md are those that the router can answer with."""

import pathlib
import re
import unittest

# The router's own: it ends the other prompts of a request, which is answered with the first one's error.
UNSEEN = {"other_prompt_failed"}
ROOT = pathlib.Path(__file__).resolve().parent.parent


def documented():
    """The codes of the table of errors, by HTTP status."""
    errors = (ROOT / "docs/api.md").read_text().split("\n## Errors\n")[1].split("\n## ")[0]
    codes = {}
    for statuses, named in re.findall(r"^\| (\d{3}(?:, \d{3})*) \| (.+?) \|", errors, re.M):
        for status in statuses.split(", "):
            codes.setdefault(int(status), set()).update(re.findall(r"`(\w+)`", named))
    return codes


def reasons():
    """The constants of error_detail.h: name and code."""
    return dict(re.findall(r'char (kReason\w+)\[\] = "(\w+)"', (ROOT / "router/request/error_detail.h").read_text()))


def sources():
    return [path for path in (ROOT / "router").rglob("*.cc") if path.name != "session_timing.cc"]


class ErrorCodes(unittest.TestCase):
    def test_every_code_of_the_sources_is_documented_and_no_other(self):
        named = reasons()
        self.assertGreater(len(named), 5)
        in_code = set(named.values())
        for path in sources():
            in_code.update(re.findall(r'\.reason = "(\w+)"', path.read_text()))
        in_code.update(code for _, code in self.kinds())
        self.assertEqual(in_code - UNSEEN, set().union(*documented().values()))

    def test_codes_of_a_status_stand_in_its_row(self):
        codes = documented()
        for status, code in self.kinds():
            self.assertIn(code, codes[status] if status else set().union(*codes.values()), status)

    def test_no_reason_is_left_over(self):
        text = "".join(path.read_text() for path in sources())
        for name in reasons():
            self.assertIn(name, text)

    def kinds(self):
        """Status and code of each error that has no reason of its own; status 0: that of the HTTP server."""
        named = reasons()
        text = (ROOT / "router/openai/error.cc").read_text()
        found = re.findall(r'return \{(\d{3}|http_status), "\w+", (?:"(\w+)"|(kReason\w+))\}', text)
        self.assertGreater(len(found), 10)
        return [(int(status) if status.isdigit() else 0, literal or named[constant]) for status, literal, constant in found]


if __name__ == "__main__":
    unittest.main()
