"""Every command in README.md, docs/user and docs/operator has subcommands and flags that exist; blocks marked <!-- run --> run.

    commands_test.py BIN    the folder of the programs; a program that is not built there is skipped with a message
"""
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from pages import ROOT, blocks, name, pages, prose

BIN = ROOT / "build/dev/bin"
PROGRAMS = ("xffl", "xffl-train", "xffl-tokenize")
MINIMAL = "project: p\nmodel: m\ntraining: {steps_per_round: 1}\n"
PASSED_ON = {"--arguments", "--"}  # the following words belong to another program


def documented_pages():
    return [page for page in pages() if page.name == "README.md" and page.parent == ROOT
            or page.parent.name in ("user", "operator")]


def is_built(program: str) -> bool:
    # xffl generate is xffl-tokenize's.
    return (BIN / program).exists()


class Help:
    """The content of a command's --help: subcommands, options, and the options that take values."""

    def __init__(self, text: str):
        self.subcommands, self.options, self.takes_arguments, section = set(), {}, False, ""
        for line in text.splitlines():
            if re.fullmatch(r"[A-Z]\w+:", line):
                section = line[:-1]
            elif section == "Positionals" and line.startswith("  "):
                self.takes_arguments = True
            elif section == "Subcommands" and (found := re.match(r"  (\w[\w, -]*?)(?:  |$)", line)):
                self.subcommands |= set(found[1].split(", "))
            elif section == "Options" and (found := re.match(r"  (--?\w[\w,-]*)(?:\{\w+\})?(.*)", line)):
                # "-p,--project TEXT   help": a type in capitals stands right behind the names.
                kind = re.match(r" ([A-Z]+)\b", found[2])
                many = re.match(r" [A-Z]+\S* \.\.\.", found[2]) is not None
                for option in found[1].split(","):
                    self.options[option] = (kind is not None, many)


@functools.cache
def help_of(program: str, path: tuple[str, ...]) -> Help:
    run = subprocess.run([BIN / program, *path, "--help"], capture_output=True, text=True, check=False, timeout=50)
    assert run.returncode == 0, f"{program} {' '.join(path)} --help: exit code {run.returncode}: {run.stderr}"
    return Help(run.stdout)


def problem_of(words: list[str]) -> str:
    """The error in a command line of one of our programs; "" when it parses."""
    program, words = words[0], words[1:]
    path: tuple[str, ...] = ()
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        known = help_of(program, path)
        if word in PASSED_ON:
            return ""
        if word.startswith("-") and word != "-":
            option, equals, _ = word.partition("=")
            if option not in known.options:
                return f"{' '.join((program, *path))} has no option {option}"
            takes, many = known.options[option]
            if takes and not equals:
                if at == len(words):
                    return f"{option} needs a value"
                at += 1
                while many and at < len(words) and not words[at].startswith("-"):
                    at += 1
        elif word in known.subcommands:
            path += (word,)
        elif not known.takes_arguments:
            return f"{' '.join((program, *path))} has no subcommand and takes no argument '{word}'"
    return ""


def problem_of_script(words: list[str]) -> str:
    script = ROOT / words[0]
    if not script.is_file() or not os.access(script, os.X_OK):
        return f"there is no program {words[0]}"
    text = script.read_text(encoding="utf-8")
    text += "".join((ROOT / other).read_text(encoding="utf-8") for other in re.findall(r"tests/bench/\w+\.py", text)
                    if (ROOT / other).exists())
    for word in words[1:]:
        if word.startswith("--") and word.partition("=")[0] not in text:
            return f"{words[0]} has no option {word}"
    return ""


def commands_of(text: str) -> list[list[str]]:
    """The commands of a block of shell lines, as words, without the content of here-documents."""
    text = re.sub(r"<<'?(\w+)'?\n.*?\n\1(?=\n|$)", "", text, flags=re.S).replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if re.fullmatch(r"[|&;]+", word):
                if command:
                    found.append(command)
                command = []
            elif command or not re.fullmatch(r"\w+=.*", word):
                command.append(word)
    return found


def problem(words: list[str]) -> str | None:
    """None: not one of our programs, or one that is not built here."""
    if words[0].startswith("scripts/"):
        return problem_of_script(words)
    if words[0] not in PROGRAMS or not is_built(words[0]):
        return None
    if words[:2] == ["xffl", "generate"]:
        return problem_of(["xffl-tokenize", *words[1:]]) if is_built("xffl-tokenize") else None
    return problem_of(words)


def write_texts(folder: pathlib.Path) -> None:
    """Two texts of 400 paragraphs, different and compressible, the same at each call."""
    syllables = {"it": "la re mi co no ta ci del gio van", "cs": "ko vě ni ce ho ud rá ský mě sto"}
    for language, parts in syllables.items():
        parts, state, paragraphs = parts.split(), 12345, []
        for _ in range(400):
            words = []
            for _ in range(40):
                word = ""
                for _ in range(3):
                    state = (1103515245 * state + 12345) % 2**31
                    word += parts[state // 65536 % len(parts)]
                words.append(word)
            paragraphs.append(" ".join(words))
        (folder / f"{language}.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


class Commands(unittest.TestCase):
    def setUp(self):
        if not is_built("xffl"):
            self.skipTest("xffl is not built")

    def check(self, commands, at_least):
        wrong, count = [], 0
        for where, words in commands:
            found = problem(words)
            if found is None:
                continue
            count += 1
            if found:
                wrong.append(f"{where}: {shlex.join(words)}: {found}")
        self.assertEqual(wrong, [], "\n".join(wrong))
        self.assertGreater(count, at_least)

    def test_in_blocks_parse(self):
        self.check([(f"{name(block.page)}:{block.line}", words) for page in documented_pages() for block in blocks(page)
                    if block.language == "sh" for words in commands_of(block.text)], 25)

    def test_in_sentences_parse(self):
        found = []
        for page in documented_pages():
            for line, text in prose(page):
                for code in re.findall(r"`((?:xffl(?:-train|-tokenize)?|scripts/\w+\.\w+) [^`]+)`", text):
                    plain = re.sub(r"\\\||[\[\]|]|\.\.\.", " ", code)
                    found += [(f"{name(page)}:{line}", words) for words in commands_of(plain)]
        self.check(found, 60)

    def test_errors_are_noticed(self):
        for line in ("xffl statuss", "xffl run --runn 3", "xffl status extra", "xffl journal mend", "xffl run --workdir",
                     "scripts/quickstart.sh && scripts/nothing.sh", "scripts/test_report.py --nonsense"):
            self.assertTrue(any(problem(words) for words in commands_of(line)), line)
        for line in ("xffl status --json", "xffl config preset lumi # a comment", "A=b xffl doctor alba brno -p x",
                     "xffl simulate x.py --world-size 4 --arguments --model m"):
            self.assertEqual([problem(words) for words in commands_of(line)], [""], line)

    def test_exist_for_each_subcommand_in_the_pages(self):
        text = "".join(page.read_text(encoding="utf-8") for page in documented_pages())
        for program in filter(is_built, PROGRAMS):
            for command in help_of(program, ()).subcommands:
                self.assertRegex(text, rf"`(?:{program} )?{command}\b", f"no page tells of {program} {command}")


class Runs(unittest.TestCase):
    def environment(self):
        return {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}

    def run_block(self, block, folder):
        run = subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, env=self.environment(), check=False,
                             capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=50)
        self.assertEqual(run.returncode, 0, f"{name(block.page)}:{block.line}:\n{run.stdout[-2000:]}\n{run.stderr[-3000:]}")
        return run.stdout

    def test_marked_blocks(self):
        if not is_built("xffl"):
            self.skipTest("xffl is not built")
        ran = 0
        for page in documented_pages():
            with tempfile.TemporaryDirectory() as name_of_folder:
                folder = pathlib.Path(name_of_folder)
                write_texts(folder)
                for block in blocks(page):
                    if block.marker != "run":
                        continue
                    needed = {words[0] for words in commands_of(block.text) if words[0] in PROGRAMS}
                    if "simulate" in block.text:
                        needed.add("xffl-train")
                    if missing := [program for program in needed if not is_built(program)]:
                        print(f"{name(page)}:{block.line}: not run, as {', '.join(missing)} is not built")
                        break  # the following commands depend on it
                    self.run_block(block, folder)
                    ran += 1
        self.assertGreater(ran, 0)

    def test_projects_are_valid(self):
        if not is_built("xffl"):
            self.skipTest("xffl is not built")
        count = 0
        for page in pages():
            for block in blocks(page):
                if not block.marker.startswith("xffl.yaml"):
                    continue
                count += 1
                with tempfile.TemporaryDirectory() as folder:
                    text = block.text + "\n"
                    if block.marker != "xffl.yaml":  # "xffl.yaml: facilities": that section alone
                        text = MINIMAL + text
                    (pathlib.Path(folder) / "xffl.yaml").write_text(text, encoding="utf-8")
                    run = subprocess.run([BIN / "xffl", "config", "validate", "-p", folder], capture_output=True, text=True,
                                         check=False, timeout=50)
                    self.assertEqual(run.returncode, 0, f"{name(page)}:{block.line}: {run.stderr}")
        self.assertGreater(count, 2)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    if not is_built("xffl"):
        print(f"SKIPPED: {BIN} has no xffl")
        sys.exit(77)
    sys.exit(unittest.main())
