"""scripts/scaling.sh: the figures by hand with a trainer of known times, and real ranks where xffl-train is built."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import scaling

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["XFFL_BIN"]) if "XFFL_BIN" in os.environ else None

# Ranks that need 8, 5 and 3.2 seconds for a step on 1, 2 and 4 ranks; the second run is slower by a tenth, the first step by 100 s.
FAKE = """import json, pathlib, sys
ranks, job = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if ranks == 8: sys.exit("no such partition")
seconds = {1: 8.0, 2: 5.0, 4: 3.2, 3: 8.0}[ranks] * (1.1 if job.parent.name == "run-2" else 1.0)
steps = json.loads(job.read_text())["training"]["steps"]
lines = [dict(step=i + 1, loss=3.0, seconds=seconds + (100 if i == 0 else 0), tokens=1000) for i in range(steps)]
(job.parent / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
(job.parent / "report.json").write_text(json.dumps(dict(world_size=ranks if ranks != 3 else 1, train_loss_last=2.5)))
"""


class Scaling(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "fake.py").write_text(FAKE)
        (self.folder / "t.tokens").touch()

    def run_script(self, *arguments, check=True):
        command = [str(ROOT / "scripts/scaling.sh"), "--output", str(self.folder / "out"), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=240)
        self.assertEqual(result.returncode == 0, check, result.stdout + result.stderr)
        return result

    def run_fake(self, *arguments, check=True):
        return self.run_script("--model", self.folder, "--tokens", self.folder / "t.tokens", "--launch", f"{sys.executable} {self.folder}/fake.py {{ranks}} {{job}}",
                               *arguments, check=check)

    def test_the_table_has_medians_speed_up_and_efficiency(self):
        shown = self.run_fake("--ranks", 4, 1, 2, "--runs", 3, "--steps", 5, "--warm-up", 1).stdout.splitlines()
        self.assertEqual([" ".join(line.split()) for line in shown[:4]],
                         ["ranks time, s fastest .. slowest speed-up efficiency tokens/s loss",
                          "1 32.000 32.000 .. 35.200 1.00 100 % 125 2.5000",
                          "2 20.000 20.000 .. 22.000 1.60 80 % 200 2.5000",
                          "4 12.800 12.800 .. 14.080 2.50 62 % 312 2.5000"])

    def test_the_plot_and_the_figures_are_files(self):
        self.run_fake("--ranks", 1, 2, "--steps", 5)
        tree = xml.etree.ElementTree.parse(self.folder / "out/scaling.svg")
        self.assertEqual(len(tree.findall("{http://www.w3.org/2000/svg}circle")), 2)
        figures = json.loads((self.folder / "out/scaling.json").read_text())
        self.assertEqual([row["ranks"] for row in figures["rows"]], [1, 2])
        self.assertEqual(len(figures["runs"]), 6)

    def test_scaling_from_several_ranks_on(self):
        rows = scaling.summarize([dict(ranks=ranks, seconds=seconds, tokens_per_second=1.0, loss=1.0) for ranks, seconds in ((2, 8.0), (8, 4.0))])
        self.assertEqual([(row["speed_up"], row["efficiency"]) for row in rows], [(1.0, 1.0), (2.0, 0.5)])

    def test_a_failed_run_names_its_output(self):
        error = self.run_fake("--ranks", 8, check=False).stderr
        self.assertIn("run 1 on 8 ranks ended with exit code 1", error)
        self.assertIn("no such partition", error)

    def test_another_number_of_ranks_is_refused(self):
        self.assertIn("was to have 3 ranks, but had 1", self.run_fake("--ranks", 3, check=False).stderr)

    def test_nothing_to_train_is_refused(self):
        self.assertIn("give --model DIR and --tokens FILE", self.run_script(check=False).stderr)

    @unittest.skipUnless(BIN and (BIN / "xffl-train").exists(), "XFFL_BIN has no xffl-train")
    def test_real_ranks(self):
        config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False)
        (self.folder / "config.json").write_text(json.dumps(config))
        subprocess.run([BIN / "xffl-train", "init", "--config", self.folder / "config.json", "--output", self.folder / "model"], check=True, capture_output=True)
        lines = "".join(" ".join(str((i * j) % 97) for j in range(20)) + "\n" for i in range(1, 17))
        subprocess.run([BIN / "xffl_test_tool", "tokens", "97", "20", self.folder / "real.tokens"], check=True, input=lines, text=True)
        shown = self.run_script("--model", self.folder / "model", "--tokens", self.folder / "real.tokens", "--trainer", BIN / "xffl-train",
                                "--ranks", 1, 2, "--runs", 2, "--steps", 4, "--threads", 1).stdout
        rows = json.loads((self.folder / "out/scaling.json").read_text())["rows"]
        self.assertEqual([row["ranks"] for row in rows], [1, 2])
        self.assertLess(abs(rows[0]["loss"] - rows[1]["loss"]), 1e-4)
        self.assertIn("medians of 2 runs each", shown)


if __name__ == "__main__":
    unittest.main()
