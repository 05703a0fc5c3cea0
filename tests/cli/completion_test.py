"""Completion in real shells, and man pages as man(1) and mandoc read them. PENSTOCK_BIN_DIR says where the programs are."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["PENSTOCK_BIN_DIR"])
PROGRAMS = ["penstock", "penstock-router", "penstock-prefill", "penstock-decode"]
LAB = "penstock-lab"  # has commands of `penstock`, and describes itself


def output(*command):
    return subprocess.run([str(part) for part in command], text=True, capture_output=True, check=True, timeout=60).stdout


# A command line whose last word is being typed, and the words that may complete it.
CASES = [
    ("penstock gen", {"generate"}),
    ("penstock bench co", {"codec"}),
    ("penstock bench s", {"serve", "speculative", "store", "structured"}),
    ("penstock bench serve --tra", {"--trace", "--trace-speed", "--trace-longest", "--trace-ticks"}),
    ("penstock bench --isa av", {"avx2", "avx512", "avx512_bf16"}),
    ("penstock up --wire ", {"auto", "tcp", "shm"}),
    ("penstock up --wire=t", {"tcp"}),
    ("penstock up --block-tokens ", {"16", "32", "64"}),
    ("penstock up --port ", set()),  # any number
    ("penstock up --wire auto --kv-f", {"--kv-format"}),
    ("penstock-lab bench co", {"codec"}),
    ("penstock-lab sim", {"simulate"}),
    ("penstock sim", {"simulate"}),
    ("penstock kv i", {"inspect"}),
    ("penstock generate --model up --see", {"--seed"}),  # `up` is a value here, not the command
    ("penstock completion ", {"bash", "zsh", "--help"}),
    ("penstock-router --metr", {"--metrics_listen"}),
    ("penstock-router --log_level ", {"debug", "info", "warning", "error"}),
    ("/usr/bin/penstock-prefill --wire_codec=l", {"lx16", "lxr"}),
    ("penstock-decode --conf", {"--config"}),
    ("penstock-decode --no-such", set()),
]

BASH = """
source {script}
complete -p {program} >/dev/null || exit 1
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
{function}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# The completion system's own functions need a line that somebody types: these stand in for them, and print
# what they are given. What is typed filters, as it does there.
ZSH = """
compdef() {{ }}
compset() {{ PREFIX=${{PREFIX#*=}} }}
offer() {{ local word; for word; do [[ $word == $PREFIX* ]] && print -r -- $word; done; true }}
compadd() {{ shift; offer "$@" }}
_describe() {{ offer "${{(@)${{(@P)2}}%%:*}}" }}
_files() {{ print -r -- "files $*" }}
_message() {{ }}
source {script}
words=({words})
CURRENT=$#words
PREFIX=$words[CURRENT]
{function}
"""


def bash_words(line):
    """As readline splits a line: '=' is a word of its own."""
    return [word for part in line.split(" ") for word in (re.split("(=)", part) if part else [""]) if word or not part]


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scripts = {(program, shell): output(BIN / program, "completion", shell) for program in ("penstock", LAB) for shell in ("bash", "zsh")}

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, program, shell):
        script = self.path / shell
        script.write_text(self.scripts[LAB if program == LAB else "penstock", shell])
        return script

    def complete(self, shell, line):
        words = bash_words(line) if shell == "bash" else line.split(" ")
        program = pathlib.Path(words[0]).name
        text = (BASH if shell == "bash" else ZSH).format(script=shlex.quote(str(self.write(program, shell))), program=program,
                                                         function="_penstock_lab" if program == LAB else "_penstock",
                                                         words=" ".join(shlex.quote(word) for word in words))
        flags = ["--norc", "--noprofile"] if shell == "bash" else ["-f"]
        result = subprocess.run([shell, *flags, "-c", text], text=True, capture_output=True, timeout=60, cwd=self.path,
                                env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
        self.assertEqual((result.returncode, result.stderr), (0, ""), line)
        return set(result.stdout.split("\n")) - {""}

    def check(self, shell):
        for line, expected in CASES:
            with self.subTest(line=line):
                self.assertEqual(self.complete(shell, line), expected)

    def test_bash(self):
        self.check("bash")

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        self.check("zsh")

    def test_bash_offers_files_and_folders(self):
        (self.path / "trace.jsonl").touch()
        (self.path / "trays").mkdir()
        self.assertEqual(self.complete("bash", "penstock bench serve --trace tra"), {"trace.jsonl", "trays"})
        self.assertEqual(self.complete("bash", "penstock up --model tra"), {"trays"})
        self.assertEqual(self.complete("bash", "penstock-router --keys_file=trace"), {"trace.jsonl"})
        self.assertEqual(self.complete("bash", "penstock-router --tls_cert tr"), {"trace.jsonl", "trays"})

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_offers_files_and_folders(self):
        self.assertEqual(self.complete("zsh", "penstock bench serve --trace tra"), {"files "})
        self.assertEqual(self.complete("zsh", "penstock up --model tra"), {"files -/"})

    def test_every_option_of_every_help_is_known(self):
        for program in PROGRAMS[1:]:
            text = output(BIN / program, "--help")
            options = set(re.findall(r"^  (--[a-z_]+)", text, re.M)) | {"--version"}
            self.assertGreater(len(options), 10)
            self.assertEqual(self.complete("bash", program + " --"), options)
        for command in re.findall(r"^  ([a-z]+) ", output(BIN / "penstock", "--help").split("Commands:")[1].split("Examples")[0], re.M):
            options = set(re.findall(r"^  (?:-[a-z], )?(--[a-z-]+)", output(BIN / "penstock", command, "--help"), re.M))
            # (An option that has no room in a help of one screen is completed all the same.)
            self.assertLessEqual(options, self.complete("bash", f"penstock {command} --"), command)


class Manual(unittest.TestCase):
    def test_pages_have_no_warnings_and_say_what_help_says(self):
        for program in [*PROGRAMS, LAB]:
            with self.subTest(program=program), tempfile.TemporaryDirectory() as folder:
                page = pathlib.Path(folder) / f"{program}.1"
                page.write_text(output(BIN / (LAB if program == LAB else "penstock"), "manual", program))
                if shutil.which("mandoc"):
                    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", str(page)], text=True, capture_output=True, timeout=60).stdout
                    # A date would be that of the build, and builds would differ.
                    self.assertEqual([line for line in lint.splitlines() if "missing date" not in line], [])
                if not shutil.which("man"):
                    self.skipTest("man is not installed")
                read = subprocess.run(["man", "--warnings", "-E", "ascii", "-l", str(page)], text=True, capture_output=True, timeout=60,
                                      env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "1000", "LC_ALL": "C", "GROFF_NO_SGR": "1"})
                self.assertEqual((read.returncode, read.stderr), (0, ""))
                text = re.sub(".\b", "", read.stdout)
                self.assertIn("EXIT STATUS", text)
                shown = output(BIN / program, "--help")
                options = re.findall(r"^  (?:-[a-z], )?(--[a-z_-]+)", shown, re.M)
                for option in options:
                    self.assertIn(option, text)
                # The summary is the one that the program has for itself.
                self.assertIn(shown.splitlines()[0].split(": ")[1].rstrip(".").lower(), text.lower())

    def test_unknown_programs_are_refused(self):
        result = subprocess.run([BIN / "penstock", "manual", "penstock-engine"], text=True, capture_output=True, timeout=60)
        self.assertEqual(result.returncode, 64)
        self.assertIn("penstock-engine", result.stderr)
        result = subprocess.run([BIN / "penstock", "completion", "fish"], text=True, capture_output=True, timeout=60)
        self.assertEqual(result.returncode, 64)
        self.assertIn("bash", result.stderr)


class Install(unittest.TestCase):
    def test_all_is_installed(self):
        build = BIN.parent
        with tempfile.TemporaryDirectory() as folder:
            output("cmake", "--install", build, "--prefix", folder)
            root = pathlib.Path(folder)
            for program in [*PROGRAMS, LAB]:
                self.assertTrue(os.access(root / "bin" / program, os.X_OK))
                self.assertIn(f".TH {program.upper()} 1".replace("-", r"\-"), (root / "share/man/man1" / f"{program}.1").read_text())
                script = (root / "share/bash-completion/completions" / program).read_text()
                self.assertEqual(script, output(BIN / (LAB if program == LAB else "penstock"), "completion", "bash"))
            self.assertIn("service Inference", (root / "share/penstock/proto/inference.proto").read_text())
            self.assertTrue((root / "share/zsh/site-functions/_penstock").read_text().startswith("#compdef penstock penstock-router"))
            self.assertTrue((root / "share/zsh/site-functions/_penstock-lab").read_text().startswith("#compdef penstock-lab"))

    def test_the_laboratory_is_a_component_of_its_own(self):
        build = BIN.parent
        with tempfile.TemporaryDirectory() as folder:
            output("cmake", "--install", build, "--prefix", folder, "--component", "penstock")
            self.assertEqual({path.name for path in (pathlib.Path(folder) / "bin").iterdir()}, set(PROGRAMS))
        with tempfile.TemporaryDirectory() as folder:
            output("cmake", "--install", build, "--prefix", folder, "--component", "lab")
            self.assertEqual([path.name for path in (pathlib.Path(folder) / "bin").iterdir()], [LAB])


if __name__ == "__main__":
    unittest.main()
