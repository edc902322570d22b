"""Every command of docs/user/exports.md runs on a run of an earlier release, which was killed in its second round.

    exports_test.py BIN    the folder of the programs
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

from pages import ROOT, blocks
from commands_test import commands_of

BIN = ROOT / "build/dev/bin"
PAGE = ROOT / "docs/user/exports.md"


class Exports(unittest.TestCase):
    def test_commands_of_the_page_run(self):
        ran = 0
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run(["tar", "-xzf", ROOT / "tests/golden/run/killed_in_round_2.tar.gz", "-C", folder], check=True, timeout=60)
            for block in blocks(PAGE):
                for words in commands_of(block.text) if block.language == "sh" else []:
                    if words[:2] != ["xffl", "export"]:
                        continue
                    words = [str(BIN / "xffl"), *(word.replace("/tmp/", f"{folder}/") for word in words[1:])]
                    run = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
                    self.assertEqual(run.returncode, 0, f"line {block.line}: {words}:\n{run.stdout}{run.stderr}")
                    ran += 1
            self.assertTrue((folder / "project/runs/0001/tb/global").is_dir())
        self.assertGreaterEqual(ran, 7)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    if not (BIN / "xffl").exists():
        print(f"SKIPPED: {BIN} has no xffl")
        sys.exit(77)
    sys.exit(unittest.main())
