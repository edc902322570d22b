"""The completion scripts of xffl in real shells, and their candidates from the command tree and a project.

    completion_test.py BUILD [CLASS]    the build folder; BUILD/bin has xffl

Exit code 77: a shell is not installed, and its tests were skipped.
"""
import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
import commands_test as docs  # the reader of --help

BUILD = pathlib.Path("build/dev")
CONSOLE = {"-h", "--help", "-v", "--verbose", "-q", "--quiet", "--color"}
YAML = """project: test
model: model
rounds: 3
training: {steps_per_round: 4}
facilities:
  alba: {workdir: work, data: {train: [x.tokens]}}
  brno-2: {workdir: work, data: {train: [x.tokens]}}
"""
# Runs _xffl as bash does; bash itself refuses compopt outside of a completion.
BASH = """
set -u
options=
compopt() { options+="$*;"; }
source <(xffl completion bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_xffl xffl
printf '%s\\n' "$options" "${COMPREPLY[@]}"
"""
# Keys, and the line that the shell shows after TAB.
TYPED = (("xffl stat", "xffl status "), ("xffl pause -p plain al", "xffl pause -p plain alba "),
         ("xffl status -p plain --run 0002", "--run 0002 "), ("xffl run --color=nev", "xffl run --color=never "),
         ("xffl run -p pla", "xffl run -p plain/"), ("xffl aggregate --out=pla", "xffl aggregate --out=plain/"),
         ("xffl inspect plain/xf", "xffl inspect plain/xffl.yaml "))
HOSTILE_NAMES = ["$(touch owned)", "`touch owned`", "a;touch owned", "a b", "-rf", "../up", "al'ba", 'al"ba', "al\\nba",
                 "al\tba", "*", "~", "ALBA", "\x1b[2J", "è"]


def environment(home):
    return {"PATH": f"{BUILD / 'bin'}:/usr/bin:/bin", "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8", "COLUMNS": "120"}


def commands(path=()):
    """Every command of the tree, by --help."""
    yield path
    for name in sorted(docs.help_of("xffl", path).subcommands):
        if name != "generate":  # its --help is that of xffl-tokenize
            yield from commands((*path, name))


class InProject(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.project = self.home / "my project"
        for run in ("0001", "0002"):
            (self.project / "runs" / run).mkdir(parents=True)
        (self.project / "xffl.yaml").write_text(YAML, encoding="utf-8")
        (self.home / "plain").symlink_to(self.project)

    def run_quietly(self, argv, **options):
        run = subprocess.run(argv, capture_output=True, text=True, timeout=50, cwd=self.home, check=False,
                             stdin=subprocess.DEVNULL, env=environment(self.home), **options)
        self.assertEqual((run.returncode, run.stderr), (0, ""), argv)
        return run.stdout

    def candidates(self, *words):
        """The lines of the hidden command, without descriptions."""
        lines = self.run_quietly(["xffl", "complete-words", *words]).splitlines()
        return [line.partition("\t")[0] for line in lines]

    def in_bash(self, *words):
        """compopt's arguments, and COMPREPLY."""
        options, *replies = self.run_quietly(["bash", "-c", BASH, "bash", "xffl", *words]).splitlines()
        return options, [reply for reply in replies if reply]


class Candidates(InProject):
    def test_are_the_commands_and_options_of_the_help_pages(self):
        count = 0
        for path in commands():
            known = docs.help_of("xffl", path)
            options = self.candidates(*path, "-")
            self.assertLessEqual(known.subcommands, set(self.candidates(*path, "")), path)
            self.assertEqual(set(options), set(known.options), path)
            self.assertEqual(len(options), len(set(options)), path)
            count += 1
        self.assertGreater(count, 35)

    def test_are_facilities_wherever_a_facility_is_expected(self):
        count = 0
        for path in commands():
            text = self.run_quietly(["xffl", *path, "--help"])
            for line in text.splitlines():
                words = line.split()
                if "FACILITY" not in words[1:2]:
                    continue
                count += 1
                before = [] if not words[0].startswith("-") else [words[0].split(",")[-1]]
                found = self.candidates(*path, "-p", str(self.project), *before, "")
                self.assertEqual(found, ["alba", "brno-2"], path)
        self.assertGreaterEqual(count, 10)  # doctor, join, leave, login, logs, pause, render, resume, simulate, trust

    def test_are_the_fixed_values_of_an_option(self):
        self.assertEqual(self.candidates("run", "--color", ""), ["auto", "always", "never"])
        self.assertEqual(self.candidates("run", "--color=al"), ["--color=always"])
        self.assertEqual(self.candidates("aggregate", "--dtype", "b"), ["bf16"])
        self.assertEqual(self.candidates("completion", ""), ["bash", "zsh", "fish"])
        self.assertIn("leonardo", self.candidates("config", "preset", ""))

    def test_leave_out_given_words(self):
        project = str(self.project)
        self.assertEqual(self.candidates("pause", "alba", "-p", project, ""), ["brno-2"])
        self.assertEqual(self.candidates("logs", "alba", "-p", project, ""), [])
        self.assertNotIn("--new", self.candidates("run", "--new", "--"))
        self.assertEqual(self.candidates("run", "-vq", "--ne"), ["--new"])

    def test_find_the_project_in_each_spelling(self):
        for words in (["-p", "plain"], ["-pplain"], ["--project=plain"], ["--project", "=", "plain"], ["-p", "~/plain"],
                      ["-p", '"my project"'], ["-p", "my\\ project"]):
            self.assertEqual(self.candidates("trust", *words, ""), ["alba", "brno-2"], words)
        self.assertEqual(self.candidates("trust", "-p", "absent", ""), [])

    def test_are_the_runs(self):
        for name in ("x", "00", "0003;x", "$(touch owned)"):
            (self.project / "runs" / name).mkdir()
        self.assertEqual(self.candidates("status", "-p", "my project", "--run", ""), ["0001", "0002"])
        self.assertEqual(self.candidates("status", "-w", "my project", "--run", "0001"), ["0001"])
        self.assertEqual(self.candidates("status", "-w", "absent", "--run", ""), [])

    def test_are_never_hostile_names(self):
        for name in ("plain", *HOSTILE_NAMES):
            quoted = name.replace("\\n", "\n").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\x1b", "\\e")
            text = YAML.replace("  alba:", f'  "{quoted}":')
            self.assertNotEqual(text, YAML)
            (self.project / "xffl.yaml").write_text(text, encoding="utf-8")
            expected = ["brno-2", "plain"] if name == "plain" else []
            self.assertEqual(self.candidates("pause", "-p", "my project", ""), expected, name)
            self.assertEqual(self.in_bash("pause", "-p", "my project", ""), ("", expected), name)
        self.assertEqual(list(self.home.rglob("owned")), [])

    def test_are_absent_for_a_broken_project(self):
        yaml = self.project / "xffl.yaml"
        for content in (b"", b"\x00\xff", b"facilities: [", b"[" * 100000, YAML.encode() + b"nonsense: 1\n"):
            yaml.write_bytes(content)
            self.assertEqual(self.candidates("pause", "-p", "my project", ""), [], content[:40])
        yaml.unlink()
        os.mkfifo(yaml)
        self.assertEqual(self.candidates("pause", "-p", "my project", ""), [])
        yaml.unlink()
        yaml.mkdir()
        self.assertEqual(self.candidates("pause", "-p", "my project", ""), [])

    def test_are_absent_for_other_words(self):
        for words in ([], ["nonsense", ""], ["run", "--nonsense", ""], ["run", "--nonsense=a"], ["run", "--new=a"],
                      ["pause", "--reason", ""], ["=", "=", "="], ["--", ], ["-"]):
            self.assertFalse(set(self.candidates(*words)) & {"alba", ":files"}, words)
        self.assertEqual(self.candidates("simulate", "--", "x"), [":files"])
        self.assertEqual(self.candidates("generate", "--model", ""), [":files"])


class Bash(InProject):
    def test_gets_commands_options_and_names(self):
        self.assertEqual(self.in_bash("jo"), ("", ["journal", "join"]))
        self.assertEqual(self.in_bash("journal", ""), ("", ["repair", "adopt"]))
        self.assertEqual(self.in_bash("run", "--de"), ("", ["--detach"]))
        self.assertEqual(self.in_bash("pause", "-p", '"my project"', "a"), ("", ["alba"]))

    def test_splits_words_at_equals(self):
        self.assertEqual(self.in_bash("run", "--color", "="), ("", ["auto", "always", "never"]))
        self.assertEqual(self.in_bash("run", "--color", "=", "al"), ("", ["always"]))
        self.assertEqual(self.in_bash("run", "--color", "=", "never", "--ne"), ("", ["--new"]))

    def test_completes_files_and_folders_itself(self):
        self.assertEqual(self.in_bash("run", "-p", ""), ("-o dirnames;", []))
        self.assertEqual(self.in_bash("inspect", ""), ("-o default;", []))
        self.assertEqual(self.in_bash("aggregate", "--out", "=", "x"), ("-o dirnames;", []))

    def test_without_xffl_is_silent(self):
        script = self.run_quietly(["xffl", "completion", "bash"])
        text = script + 'COMP_WORDS=(xffl p) COMP_CWORD=1; _xffl xffl; echo "${#COMPREPLY[@]}"'
        run = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=50, check=False,
                             env={"PATH": "/usr/bin:/bin"})
        self.assertEqual((run.stdout, run.stderr), ("0\n", ""))

    def test_completes_at_a_terminal(self):
        for keys, expected in TYPED:
            type_in(self, ["bash", "--norc", "--noprofile", "-i"], "source <(xffl completion bash)", keys, expected)


def type_in(test, argv, setup, keys, expected):
    """Types `setup`, `keys` and TAB at the terminal of an interactive shell, and waits until it shows `expected`."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(test.home)
        os.execvpe(argv[0], argv, environment(test.home))
    text = ""

    def read_until(expected, seconds):
        nonlocal text
        end = time.monotonic() + seconds
        while expected not in text and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    text += os.read(terminal, 65536).decode(errors="replace")
                except OSError:  # the shell has ended
                    return

    try:
        os.write(terminal, (setup + "; echo READY$((1+1))\n").encode())
        read_until("READY2", 30)
        test.assertIn("READY2", text)
        text = ""
        os.write(terminal, keys.encode() + b"\t")
        read_until(expected, 30)
        test.assertIn(expected, text)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


class Zsh(InProject):
    def test_completes_at_a_terminal(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        for keys, expected in TYPED:
            type_in(self, ["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; source <(xffl completion zsh)", keys, expected)


class Fish(InProject):
    def test_completes(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        for line, expected in (("xffl jo", ["journal", "join"]), ("xffl pause -p plain ", ["alba", "brno-2"]),
                               ("xffl status -p plain --run 00", ["0001", "0002"]), ("xffl run --color=nev", ["--color=never"]),
                               ("xffl run --de", ["--detach"]), ("xffl run -p pla", ["plain/"]),
                               ("xffl aggregate --out=pla", ["--out=plain/"])):
            text = self.run_quietly(["fish", "--no-config", "-c", f"xffl completion fish | source; complete -C '{line}'"])
            self.assertEqual(sorted(one.partition("\t")[0] for one in text.splitlines()), sorted(expected), line)


class Installation(InProject):
    def test_puts_scripts_where_the_shells_look(self):
        if not (BUILD / "manual/xffl/xffl.1").exists():
            self.skipTest("the target xffl_man_pages is not built")
        prefix = self.home / "prefix"
        subprocess.run(["cmake", "--install", BUILD, "--component", "xffl", "--prefix", prefix], check=True, capture_output=True,
                       timeout=50)
        for shell, file in (("bash", "bash-completion/completions/xffl"), ("zsh", "zsh/site-functions/_xffl"),
                            ("fish", "fish/vendor_completions.d/xffl.fish")):
            self.assertEqual((prefix / "share" / file).read_text(encoding="utf-8"),
                             self.run_quietly(["xffl", "completion", shell]))
        self.assertTrue((prefix / "share/man/man1/xffl-run.1").exists())
        run = subprocess.run([prefix / "bin/xffl", "--version"], capture_output=True, check=False, timeout=50)
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    docs.BIN = BUILD / "bin"
    os.environ["PATH"] = f"{BUILD / 'bin'}:{os.environ['PATH']}"
    result = unittest.main(exit=False, verbosity=2).result  # names the reasons of skipped tests
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
