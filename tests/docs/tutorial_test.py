"""The commands of docs/user/first_federation.md, run in order: on this machine, and with two real facilities behind SSH.

    tutorial_test.py BIN [--bundle ARCHIVE] [--root FOLDER]

BIN: the folder of the programs; XFFL_ACCEPT=1 rewrites the outputs of the page. ARCHIVE: a bundle of scripts/package.sh, instead of
one whose programs are those of BIN. FOLDER: the root file system of the facilities (scripts/dev_cluster.sh up --root), which then
needs a bundle.

Blocks marked <!-- run --> run first. A block marked <!-- tutorial --> holds commands behind "$ ", each followed by its output,
stdout and stderr together. The page's names of hosts, accounts and files are replaced by those of the testbed. The outputs are
compared after masking times, numbers, hashes and the names of files. A line "..." of the page stands for any number of lines.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import commands_test
from pages import ROOT, blocks, name

PAGE = ROOT / "docs/user/first_federation.md"
CLUSTER = ROOT / "scripts/dev_cluster.sh"
ACCOUNTS = {"alba": "anna", "brno": "bara"}
SKIPPED = 77


class Testbed:
    def __init__(self, state: pathlib.Path, flavours: list[str]):
        self.state, self.flavours = state, flavours

    def __enter__(self):
        up = self.script("up", "--owner", str(os.getpid()), *self.flavours, *ACCOUNTS)
        if up.returncode == SKIPPED:
            print(f"SKIPPED: {up.stderr.strip()}")
            sys.exit(SKIPPED)
        assert up.returncode == 0, up.stdout + up.stderr
        return self

    def __exit__(self, *_):
        self.script("down")

    def script(self, command: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([CLUSTER, command, "--state", self.state, *words], capture_output=True, text=True, check=False, timeout=180)

    def describe(self, facility: str) -> dict[str, str]:
        lines = self.script("describe", facility).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


def write_bundle(folder: pathlib.Path, programs: pathlib.Path) -> None:
    """A bundle with the names and the MANIFEST of scripts/package.sh; its programs start those of this build."""
    tree = folder / "tree"
    (tree / "bin").mkdir(parents=True)
    for program in ("xffl-train", "xffl-tokenize"):
        (tree / "bin" / program).write_text(f'#!/bin/sh\nexec {programs}/{program} "$@"\n', encoding="utf-8")
        (tree / "bin" / program).chmod(0o755)
    script = """set -eu
(cd tree && find . -type f | sed 's,^./,,' | sort | xargs sha256sum >../MANIFEST && mv ../MANIFEST .)
hash=$(sha256sum tree/MANIFEST | cut -c 1-8)
bundle=xffl-trainer-0.1.0-$(uname -m)-cpu-$hash
mv tree $bundle && mkdir dist && tar -czf dist/$bundle.tar.gz $bundle && rm -r $bundle"""
    subprocess.run(["sh", "-c", script], cwd=folder, check=True)


def masked(line: str) -> str:
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "N", line)
    line = re.sub(r"\b[0-9a-f]{8,}\b", "N", line)
    line = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", line)
    line = re.sub(r"N [kMGT]?B\b", "N B", line)
    line = re.sub(r"ahead of|behind", "off", line)
    return re.sub(r"\s+", " ", line).strip()


def agree(expected: list[str], found: list[str]) -> bool:
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(masked(line)) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(masked(line) + "\n" for line in found)) is not None


def steps_of(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a block, each with the lines of its output."""
    steps: list[tuple[str, list[str]]] = []
    goes_on = False
    for line in text.splitlines():
        if goes_on:
            steps[-1] = (steps[-1][0] + "\n" + line, steps[-1][1])
        elif line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
        goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
    return steps


class Tutorial:
    def __init__(self, folder: pathlib.Path, programs: pathlib.Path, testbed: Testbed):
        self.folder, self.problems, self.count = folder, [], 0
        self.environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        self.names = [("/home/me/federation", str(folder)), ("/opt/xffl/bin", str(programs))]
        for facility, account in ACCOUNTS.items():
            there = testbed.describe(facility)
            key = subprocess.run(["ssh-keyscan", "-t", "ed25519", there["host"]], capture_output=True, text=True, check=False).stdout
            printed = subprocess.run(["ssh-keygen", "-lf", "-"], input=key, capture_output=True, text=True, check=False).stdout
            self.names += [("/home/me/.ssh/id_ed25519", there["key"]), (f"login.{facility}.example", there["host"]),
                           (account, there["user"]), (f"SHA256:{facility}...", printed.split()[1])]
            text = pathlib.Path(there["folder"]) / "scratch/text"
            text.mkdir()
            language = {"alba": "it", "brno": "cs"}[facility]
            (text / f"{language}.txt").write_text((folder / f"{language}.txt").read_text(encoding="utf-8"), encoding="utf-8")
            subprocess.run(["chmod", "-R", "a+rX", text], check=True)

    def run(self, command: str) -> tuple[int, list[str]]:
        for on_page, here in self.names:
            command = re.sub(rf"(?<![\w]){re.escape(on_page)}(?![\w-])", here, command)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.environment, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, timeout=240,
                              start_new_session=True)
        output = done.stdout
        for on_page, here in self.names:
            output = output.replace(here, on_page)
        return done.returncode, output.splitlines()

    def block(self, block) -> list[str]:
        """Runs the steps of a block; returns its lines with the outputs found."""
        lines = []
        for command, expected in steps_of(block.text):
            code, found = self.run(command)
            self.count += 1
            if code != 0:
                self.problems.append(f"{name(block.page)}:{block.line}: $ {command}\nexit code {code}:\n" + "\n".join(found))
            elif not agree(expected, found):
                self.problems.append(f"{name(block.page)}:{block.line}: $ {command}\n--- expected\n" + "\n".join(expected) +
                                     "\n--- found\n" + "\n".join(found))
            lines += ["$ " + command, *found]
        return lines


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--bundle", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path)
    options = parser.parse_args()
    if options.root and not options.bundle:
        parser.error("--root needs --bundle: the programs of this machine do not start there")
    programs = options.programs.resolve()
    if missing := [program for program in commands_test.PROGRAMS if not (programs / program).exists()]:
        print(f"SKIPPED: {programs} has no {', '.join(missing)}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / "federation"
        folder.mkdir()
        commands_test.write_texts(folder)
        if options.bundle:
            (folder / "dist").mkdir()
            shutil.copy(options.bundle, folder / "dist")
        else:
            write_bundle(folder, programs)
        page = PAGE.read_text(encoding="utf-8")
        with Testbed(pathlib.Path(state) / "testbed", ["--root", str(options.root)] if options.root else []) as testbed:
            tutorial = Tutorial(folder, programs, testbed)
            for block in blocks(PAGE):
                if block.marker == "run":
                    code, found = tutorial.run(block.text)
                    if code != 0:
                        tutorial.problems.append(f"{name(PAGE)}:{block.line}: exit code {code}:\n" + "\n".join(found))
                elif block.marker == "tutorial":
                    page = page.replace(block.text, "\n".join(tutorial.block(block)))
                if any("exit code" in problem for problem in tutorial.problems):
                    break  # the following commands depend on it
    if os.environ.get("XFFL_ACCEPT"):
        PAGE.write_text(page, encoding="utf-8")
    print("\n\n".join(tutorial.problems))
    print(f"{tutorial.count} commands, {len(tutorial.problems)} problems")
    return 1 if tutorial.problems or tutorial.count < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
