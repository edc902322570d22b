"""cmake --install puts programs, manual pages, completion and pages into a prefix from which they work, with an empty environment.

    install_test.py BUILD [CLASS]    the build folder

Exit code 77: a program is not built, and its test was skipped.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/docs"))
from pages import blocks

BUILD = pathlib.Path("build/dev")
VERSION = re.search(r"project\(xffl VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]


def run_bare(command, folder, expected=0):
    """The output of a command without any environment variable."""
    done = subprocess.run(list(map(str, command)), cwd=folder, env={}, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == expected, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


class Installed(unittest.TestCase):
    component = ""

    def setUp(self):
        if self.component != "doc" and not (BUILD / "bin" / self.component).exists():
            self.skipTest(f"{self.component} is not built")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        first = self.folder / "first"
        subprocess.run(["cmake", "--install", BUILD, "--component", self.component, "--prefix", first], check=True, capture_output=True,
                       timeout=50)
        self.prefix = self.folder / "a prefix"  # the programs know no prefix
        first.rename(self.prefix)

    def program(self, *words, expected=0):
        return run_bare([self.prefix / "bin" / self.component, *words], self.folder, expected)

    def manual_pages(self):
        return {path.name for path in (self.prefix / "share/man/man1").iterdir()}


class Coordinator(Installed):
    component = "xffl"

    def test_runs_the_commands_of_the_readme(self):
        self.assertEqual(self.program("--version"), f"xffl {VERSION}\n")
        project = self.folder / "project"
        project.mkdir()
        (yaml,) = [text for kind, text in readme_blocks() if kind == "yaml"]
        (project / "xffl.yaml").write_text(yaml, encoding="utf-8")
        # Only the files that the README's reader brings along are missing.
        problems = self.program("config", "validate", "-p", "project")
        self.assertIn("models/small", problems)
        self.assertIn("data/it.tokens", problems)
        self.assertIn("leonardo", self.program("config", "preset"))  # compiled in
        self.assertIn("#SBATCH --account=my_account", self.program("render", "-p", "project", "brno"))
        self.assertIn("complete-words", self.program("completion", "bash"))
        self.assertIn("xffl run -p project", self.program("status", "-p", "project", expected=4))
        self.assertIn("xffl-run.1", self.manual_pages())


class Tokenizer(Installed):
    component = "xffl-tokenize"

    def test_trains_and_encodes(self):
        self.assertEqual(self.program("--version"), f"{VERSION}\n")
        lines = "".join(f"The quick brown fox number {i} jumps over {i * 7 % 13} lazy dogs.\n" for i in range(400))
        (self.folder / "text.txt").write_text(lines, encoding="utf-8")
        self.program("train", "--input", "text.txt", "--vocab-size", "300", "--output", "tokenizer")
        self.program("encode", "--tokenizer", "tokenizer", "--sequence-length", "32", "--input", "text.txt", "--output", "x.tokens")
        self.assertIn("32", self.program("inspect", "x.tokens"))
        self.assertLess({"xffl-tokenize.1", "xffl-tokenize-encode.1"}, self.manual_pages())


class Trainer(Installed):
    component = "xffl-train"

    def loaded_from(self):
        lines = run_bare(["/usr/bin/ldd", self.prefix / "bin/xffl-train"], self.folder)
        return pathlib.Path(re.search(r"libtorch_cpu\.so => (.*) \(0x", lines)[1])

    def test_starts_with_libtorch_of_the_build_or_of_the_prefix(self):
        self.assertTrue(self.program("--version").startswith(f"xffl-train {VERSION}"))
        self.assertIn("torch", self.program("info"))
        built_with = self.loaded_from().resolve()
        (self.prefix / "lib").mkdir()
        (self.prefix / "lib/xffl").symlink_to(built_with.parent)
        self.assertEqual(self.loaded_from().parent.resolve(), built_with.parent)
        self.assertIn("/lib/xffl/", str(self.loaded_from()))
        self.assertTrue(self.program("--version").startswith(f"xffl-train {VERSION}"))


class Pages(Installed):
    component = "doc"

    def test_have_the_files_to_which_the_readme_links(self):
        folder = self.prefix / "share/doc/xffl"
        links = re.findall(r"\]\(([^)#:]+)[)#]", (folder / "README.md").read_text(encoding="utf-8"))
        self.assertGreater(len(links), 10)
        for link in links:
            self.assertTrue((folder / link).exists(), link)
        self.assertTrue((folder / "LICENSE").exists())


def readme_blocks():
    return [(block.language, block.text) for block in blocks(ROOT / "README.md")]


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    result = unittest.main(exit=False, verbosity=2).result  # names the reasons of skipped tests
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
