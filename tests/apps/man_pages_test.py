"""The manual pages of xffl: a page for each command, its options, the exit codes, and valid roff.

    man_pages_test.py BUILD [CLASS]    the build folder; BUILD/bin has xffl

Exit code 77: groff or mandoc is not installed, and its tests were skipped.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
import commands_test as docs  # the reader of --help
from pages import ROOT, table_rows

BUILD = pathlib.Path("build/dev")
MACROS = {"TH", "SH", "SS", "TP", "PP", "br", "nf", "fi", "so"}
ESCAPES = r"\\(?:[e&-]|\((?:aq|ga|ha|ti|dq)|f[BIR]|\[u[0-9A-F]{4,6}\])"


def text_of(page):
    """The page's text as a reader sees it, with one blank between words."""
    shown = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rLL=2000n"], input=page, text=True, capture_output=True, check=True,
                           timeout=50)
    return " ".join(shown.stdout.split())


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        path = pathlib.Path(cls.folder.name) / "man1"
        subprocess.run([BUILD / "bin/xffl", "man", path], check=True, capture_output=True, timeout=50)
        cls.paths = sorted(path.iterdir())
        cls.pages = {path.name: path.read_text(encoding="utf-8") for path in cls.paths}


class Text(Pages):
    def test_exist_for_each_command(self):
        names = docs.help_of("xffl", ()).subcommands
        self.assertGreater(len(names), 25)
        self.assertEqual(set(self.pages), {"xffl.1"} | {f"xffl-{name}.1" for name in names})
        self.assertEqual(self.pages["xffl-exec.1"], ".so man1/xffl-simulate.1\n")
        for name in ("config", "journal", "export"):
            for below in docs.help_of("xffl", (name,)).subcommands:
                self.assertIn(f'\n.SS "xffl {name} {below}"\n'.replace("-", r"\-"), self.pages[f"xffl-{name}.1"])

    def test_have_the_options_of_the_help_pages(self):
        for name, page in self.pages.items():
            command = name[len("xffl-"):-len(".1")]
            if page.startswith(".so") or command == "generate":
                continue
            path = (command,) if command else ()
            for option in docs.help_of("xffl", path).options:
                self.assertRegex(page, r"\\fB" + re.escape(option.replace("-", r"\-")) + r"\\fR", name)

    def test_are_valid_roff(self):
        for name, page in self.pages.items():
            for line in page.splitlines():
                if line.startswith('.\\"'):
                    continue
                if line.startswith("."):
                    self.assertIn(line[1:3], MACROS, f"{name}: {line}")
                self.assertNotRegex(line, r"^'", name)
                self.assertEqual(re.sub(ESCAPES, "", line).count("\\"), 0, f"{name}: {line}")
                self.assertTrue(line.isascii() and line.isprintable(), f"{name}: {line}")
                if not line.startswith("."):
                    self.assertNotIn("-", re.sub(ESCAPES, "", line), f"{name}: {line}")

    def test_are_the_same_at_each_call(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([BUILD / "bin/xffl", "man", folder], check=True, capture_output=True, timeout=50)
            self.assertEqual({path.name: path.read_text(encoding="utf-8") for path in pathlib.Path(folder).iterdir()}, self.pages)

    def test_refuse_a_file_instead_of_a_folder(self):
        with tempfile.NamedTemporaryFile() as file:
            run = subprocess.run([BUILD / "bin/xffl", "man", file.name], capture_output=True, text=True, check=False, timeout=50)
            self.assertEqual(run.returncode, 6, run.stderr)
            self.assertIn(file.name, run.stderr)


class Groff(Pages):
    def setUp(self):
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed")

    def test_have_the_exit_codes_of_the_reference(self):
        rows = table_rows(ROOT / "docs/reference/exit_codes.md", "code")
        self.assertGreater(len(rows), 10)
        text = text_of(self.pages["xffl.1"])
        for _, (code, kind, meaning) in rows:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "")
            self.assertIn(" ".join(f"{code} {f'({kind})' if kind else ''} {plain}".split()), text)
        self.assertIn("return the program's own exit code, or 128 + the signal's number", text)
        self.assertNotIn("wrong command line", text)  # a code of xffl-tokenize
        self.assertNotIn("SIGUSR1", text)

    def test_give_no_warning_in_groff(self):
        for name, page in self.pages.items():
            if not page.startswith(".so"):
                run = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-z"], input=page, text=True, capture_output=True, check=False,
                                     timeout=50)
                self.assertEqual((run.returncode, run.stderr), (0, ""), name)


class Mandoc(Pages):
    def setUp(self):
        if shutil.which("mandoc") is None:
            self.skipTest("mandoc is not installed")

    def test_give_no_warning_in_mandoc(self):
        for path in self.paths:
            run = subprocess.run(["mandoc", "-Tlint", "-Wwarning", path.relative_to(path.parents[1])], text=True, capture_output=True,
                                 check=False, timeout=50, cwd=path.parents[1])
            # The pages have no date: the same sources make the same bytes. An alias is a page that includes another page.
            warnings = [line for line in run.stdout.splitlines() if "missing date" not in line and ".so is fragile" not in line]
            self.assertEqual(warnings, [], path.name)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    docs.BIN = BUILD / "bin"
    result = unittest.main(exit=False, verbosity=2).result  # names the reasons of skipped tests
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
