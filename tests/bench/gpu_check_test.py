"""Tests of the GPU check, rehearsed on the CPU: results, limits, exit codes, and the state after a kill.

    XFFL_BIN=build/dev/bin XFFL_PYTHON=.deps/venv/bin/python python3 tests/bench/gpu_check_test.py
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from gpu_check import markdown, results  # noqa: E402
from gpu_check.bench import exit_code  # noqa: E402
from gpu_check.table import GPU, PROFILES, REHEARSAL, measurements  # noqa: E402
from llama_shapes import llama_3_1_8b_config, model_flops_per_token  # noqa: E402

BIN = pathlib.Path(os.environ.get("XFFL_BIN", PROJECT / "build" / "dev" / "bin")).resolve()
SCRIPT = PROJECT / "scripts" / "gpu_check.sh"
FAST = ["--only", "pure_bf16_batch_2", "--only", "pure_bf16_batch_2_cheap", "--only", "generate"]
KEYS = {"stage", "name", "status", "reason", "settings", "figures", "machine", "programs", "profile", "seconds", "at"}
STATUSES = {"passed", "missed", "failed", "skipped", "out_of_memory", "out_of_time", "needs_gpu"}


class Check:
    """Runs the script with its own state and output folders; without Hugging Face by default."""

    def __init__(self, folder, programs=BIN, python=None, out="out"):
        self.state, self.out = folder / "state", folder / out
        self.programs = programs
        self.environment = {**os.environ, "OUT": str(self.out), "XFFL_CHECK_PYTHON": sys.executable}
        if python:
            self.environment["XFFL_PYTHON"] = python

    def command(self, *arguments, command="rehearse"):
        return [str(SCRIPT), command, "--bin", str(self.programs), "--state", str(self.state), "--threads", "1", *map(str, arguments)]

    def run(self, *arguments, command="rehearse", timeout=600):
        shutil.rmtree(self.out, ignore_errors=True)
        done = subprocess.run(self.command(*arguments, command=command), env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=timeout)
        self.output = done.stdout
        return done.returncode

    def records(self):
        return results.read_results(self.out / "results.jsonl")

    def record(self, name):
        return next(record for record in self.records() if record["name"] == name)


class CheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpu_check_test.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.check = Check(self.folder)

    def assert_code(self, code, *arguments, **options):
        found = self.check.run(*arguments, **options)
        self.assertEqual(found, code, self.check.output)


class WholeRehearsal(unittest.TestCase):
    """Runs all three stages once; the tests read the results."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="gpu_check_test.")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.check = Check(pathlib.Path(cls.folder.name), python=os.environ.get("XFFL_PYTHON"))
        began = time.monotonic()
        cls.code = cls.check.run()
        cls.seconds = time.monotonic() - began
        cls.records = cls.check.records()
        print(f"rehearsal: exit code {cls.code}, {cls.seconds:.0f} s\n{cls.check.output}", flush=True)

    def test_each_measurement_has_one_line(self):
        self.assertEqual([record["name"] for record in self.records], [row.name for row in measurements(REHEARSAL)])
        for record in self.records:
            self.assertLessEqual(KEYS, set(record), record["name"])
            self.assertIn(record["status"], STATUSES)
            self.assertTrue(record["status"] == "passed" or record["reason"] or record.get("aims"), record)

    def test_the_exit_code_matches_the_results(self):
        self.assertNotIn("failed", [record["status"] for record in self.records])
        incomplete = [record["name"] for record in self.records
                      if record["status"] == "missed" or (record["status"] != "passed" and not record["optional"])]
        self.assertEqual(self.code, 2 if incomplete else 0, incomplete)

    def test_every_run_of_ours_has_its_figures(self):
        ours = [record for record in self.records if record["settings"].get("side") == "xffl" and "batch_size" in record["settings"]]
        self.assertGreaterEqual(len(ours), 15)
        for record in ours:
            figures = record["figures"]
            self.assertEqual(record["status"], "passed", record)
            for name in ("tokens_per_second", "model_flops_utilization", "peak_memory_gib", "first_loss", "seconds_per_step"):
                self.assertGreater(figures[name], 0, f"{record['name']}: {name}")
            if all(other["status"] == "passed" for other in self.records if other["name"].startswith("tests_")):
                self.assertEqual(record["untested"], [], record["name"])

    def test_recomputation_changes_no_loss(self):
        losses = {record["name"]: record["figures"].get("losses") for record in self.records}
        self.assertTrue(losses["pure_bf16_batch_4"])
        self.assertEqual(losses["pure_bf16_batch_4"], losses["pure_bf16_batch_4_cheap"])

    def test_the_table_is_filled_from_the_result_file_alone(self):
        printed = subprocess.run([str(SCRIPT), "table", str(self.check.out / "results.jsonl")], check=True, stdout=subprocess.PIPE, text=True,
                                 env=self.check.environment).stdout
        rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]
        header = next(row for row in rows if row[0] == "settings")
        self.assertEqual(header[1:9], ["tokens/s", "MFU", "peak GiB", "forward s", "head s", "backward s", "norm s", "adamw s"])
        training = [row for row in rows if row[0].startswith(("xffl: ", "Hugging Face: "))]
        self.assertEqual(len(training), sum(markdown.is_training(record) for record in self.records))
        found = markdown.newest(self.records)
        for row, record in zip(training, [record for record in found.values() if markdown.is_training(record)]):
            if record["status"] == "passed":
                self.assertNotIn("-", row[1:4], row)
            if record["figures"].get("phase_seconds"):
                self.assertNotIn("-", row[4:9], row)
            if row[0].startswith("xffl: tiny LLaMA") and found["hf_eager"]["status"] == "passed":
                self.assertNotEqual(row[9], "-", row)
            if row[0].startswith("xffl: tiny LLaMA") and found["hf_compiled_layers"]["status"] == "passed":
                self.assertNotEqual(row[10], "-", row)
        for name in ("generate", "load_and_save", "tests_kernels_test"):
            self.assertTrue(any(row[0] == name for row in rows), name)

    def test_hugging_face_has_the_same_first_loss(self):
        if "torch" not in self.records[-1]["machine"]["python"]:
            self.skipTest("no Python with torch: set XFFL_PYTHON")
        record = next(record for record in self.records if record["name"] == "hf_eager")
        self.assertEqual(record["status"], "passed", record)
        self.assertEqual([tried["batch_size"] for tried in record["figures"]["tried"]], [2, 4, 8])
        self.assertLess(record["figures"]["first_loss_difference"], 3e-4)
        self.assertGreater(record["figures"]["ratio_of_ours"], 0)

    def test_the_output_is_few_small_files(self):
        files = list(self.check.out.iterdir())
        self.assertEqual({path.name for path in files}, {"results.jsonl", "gpu_check.log", "details.tar"})
        self.assertTrue(all(path.stat().st_size < 16 << 20 for path in files))
        with tarfile.open(self.check.out / "details.tar") as archive:
            self.assertLessEqual({"pure_bf16_batch_4.metrics.jsonl", "pure_bf16_batch_4.err", "hf_eager.err"}, set(archive.getnames()))

    def test_passed_measurements_are_not_repeated(self):
        again = Check(self.check.state.parent, out="again")
        began = time.monotonic()
        self.assertEqual(again.run("--stage", 2, "--continue"), 0, again.output)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(again.output.count("kept "), 13)
        expected = [record for record in self.records if record["stage"] == 2]
        self.assertEqual(again.records(), expected)


class Kills(CheckTest):
    def test_a_kill_at_any_moment_leaves_readable_results(self):
        self.assert_code(0, *FAST)
        began = time.monotonic()
        self.assert_code(0, *FAST)
        whole_s = time.monotonic() - began
        seed = int(os.environ.get("XFFL_SEED", time.time_ns() % 1_000_000))
        generator = random.Random(seed)
        moments = [generator.uniform(0, 1.1 * whole_s) for _ in range(20)]
        print(f"kills: seed {seed} (XFFL_SEED), a run takes {whole_s:.1f} s", flush=True)
        for number, moment in enumerate(moments):
            with self.subTest(number=number, moment=moment):
                if number % 4 == 0:  # so that some kills interrupt the making of the model
                    shutil.rmtree(self.check.state / "models", ignore_errors=True)
                self.kill_after(moment)
                self.assert_readable()
        self.assert_code(0, *FAST)
        self.assertEqual([record["status"] for record in self.check.records()], ["passed"] * 3)
        shutil.rmtree(self.check.out)
        (model,) = (self.check.state / "models").glob("*/model/model.safetensors")
        made = model.stat().st_mtime_ns
        self.assert_code(0, *FAST, "--continue")
        self.assertEqual(model.stat().st_mtime_ns, made)

    def kill_after(self, moment):
        process = subprocess.Popen(self.check.command(*FAST), env=self.check.environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def assert_readable(self):
        for folder in (self.check.state, self.check.out):
            path = folder / "results.jsonl"
            if path.exists():
                lines = path.read_bytes().split(b"\n")
                self.assertEqual(lines.pop(), b"")
                for line in lines:
                    self.assertIn(json.loads(line)["status"], STATUSES)
        if (self.check.out / "details.tar").exists():
            with tarfile.open(self.check.out / "details.tar") as archive:
                archive.getnames()
        self.assert_nothing_runs()

    def assert_nothing_runs(self):
        """A killed check leaves no running programs."""
        end = time.monotonic() + 5
        while any(str(self.check.state).encode() in command for command in commands()):
            self.assertLess(time.monotonic(), end, "a program of the killed check still runs")
            time.sleep(0.05)

    def test_an_unfinished_model_is_made_again(self):
        self.assert_code(0, "--only", "generate")
        (marker,) = (self.check.state / "models").glob("*/made.json")
        marker.unlink()
        weights = marker.parent / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        self.assert_code(0, "--only", "generate")

    def test_a_stopped_check_lists_the_skipped_measurements(self):
        process = subprocess.Popen(self.check.command("--stage", 2, "--fault", "hang", "--only", "generate"), env=self.check.environment,
                                   stdout=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while not (self.check.state / "details" / "fault_hang.out").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 2)
        ends = {record["name"]: record["status"] for record in self.check.records()}
        self.assertEqual(ends, {"generate": "passed", "fault_hang": "out_of_time", "rest_of_stage_2": "out_of_time"})

    def test_a_second_check_beside_the_first_is_refused(self):
        process = subprocess.Popen(self.check.command("--fault", "hang", "--only", "tests_kernels_test", "--stage", 2),
                                   env=self.check.environment, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        self.assertEqual(Check(self.folder, out="second").run("--only", "generate"), 1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def commands():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if int(path.parent.name) != os.getpid():
                yield path.read_bytes()
        except OSError:
            continue


class Limits(CheckTest):
    def test_a_measurement_that_hangs_is_ended(self):
        began = time.monotonic()
        self.assert_code(2, "--stage", 2, "--fault", "hang", "--only", "generate")
        record = self.check.record("fault_hang")
        self.assertEqual(record["status"], "out_of_time")
        self.assertLess(record["seconds"], 4.5)  # three times its estimate of 1 s, and the end of processes
        self.assertEqual(self.check.record("generate")["status"], "passed")
        self.assertLess(time.monotonic() - began, 60)

    def test_a_stage_keeps_its_limit(self):
        self.assert_code(0, "--only", "generate")  # the model exists
        began = time.monotonic()
        self.assert_code(2, "--stage", 2, "--limit", 14, "--fault", "hang")
        self.assertLess(time.monotonic() - began, 18)
        statuses = {record["name"]: record["status"] for record in self.check.records()}
        self.assertEqual(statuses["offload"], "out_of_time")  # its estimate is above the limit
        self.assertEqual(len(statuses), 14)

    def test_a_measurement_ends_with_its_stage(self):
        began = time.monotonic()
        self.assert_code(2, "--stage", 2, "--limit", 6.5, "--fault", "hang", "--only", "offload")
        self.assertEqual(self.check.record("fault_hang")["status"], "out_of_time")
        self.assertLess(self.check.record("fault_hang")["seconds"], 2.6)
        self.assertLess(time.monotonic() - began, 10)

    def test_only_is_limited_like_the_rest(self):
        self.assert_code(2, "--only", "generate", "--limit", 6)
        self.assertEqual(self.check.record("generate")["status"], "out_of_time")


class ExitCodes(CheckTest):
    def test_one_when_something_fails(self):
        self.assert_code(1, "--stage", 2, "--fault", "fail", "--fault", "miss", "--only", "generate")
        self.assertIn("a failure that was asked for", self.check.record("fault_fail")["reason"])

    def test_two_when_an_aim_is_missed(self):
        self.assert_code(2, "--stage", 2, "--fault", "miss", "--only", "generate")
        self.assertEqual(self.check.record("fault_miss")["aims"]["tokens_per_second"], {"at_least": 2, "found": 1, "met": False})

    def test_two_when_memory_does_not_suffice(self):
        self.assert_code(2, "--stage", 2, "--fault", "memory", "--only", "generate")
        self.assertEqual(self.check.record("fault_memory")["status"], "out_of_memory")

    def test_77_without_a_gpu(self):
        bare = self.folder / "path"
        bare.mkdir()
        for tool in ("bash", "date", "dirname", "mkdir", "env", "sed"):
            (bare / tool).symlink_to(shutil.which(tool))
        self.check.environment["PATH"] = str(bare)
        self.assert_code(77, "--stage", 1, command="run")
        self.assertEqual(self.check.record("gpu")["status"], "needs_gpu")

    def test_one_when_the_build_failed_and_two_when_it_took_too_long(self):
        self.assert_code(1, "--stage", 1, "--built", "failed:3")
        self.assert_code(2, "--stage", 1, "--built", "out_of_time:330")
        self.assertEqual([record["name"] for record in self.check.records()], ["build"])

    def test_one_when_the_first_loss_differs(self):
        self.assert_code(0, *FAST[:2])
        path = self.check.state / "results.jsonl"
        (record,) = results.read_results(path)
        record["figures"]["first_loss"] *= 1 + 1e-3
        results.append_line(path, json.dumps(record))
        self.assert_code(1, *FAST[2:4])
        self.assertIn("the first loss differs", self.check.record("pure_bf16_batch_2_cheap")["reason"])

    def test_no_figure_is_no_success(self):
        self.assertEqual(exit_code([]), 2)


class TestsOfTheTrainer(CheckTest):
    """A script simulates test programs that crash or fail."""

    FAKE = """#!/bin/sh
case ${1#--gtest_filter=} in *-*) rest=yes ;; *) rest= ;; esac
say() { printf '[ RUN      ] %s\\n[       OK ] %s (1 ms)\\n' "$1" "$1"; }
[ -n "$rest" ] || { say Model.GradientsEqualX; printf '[ RUN      ] TrainerGpu.RecomputeX\\n'; kill -SEGV $$; }
say TrainerGpu.PureBf16X | sed 's/^.. *OK/no newline, then &/'; say TrainerGpu.NarrowEmbeddingGradientX
"""

    def setUp(self):
        super().setUp()
        programs = self.folder / "bin"
        programs.mkdir()
        for name in ("xffl-train", "xffl_test_tool"):
            (programs / name).symlink_to(BIN / name)
        (programs / "llama_test").write_text(self.FAKE)
        (programs / "llama_test").chmod(0o755)
        self.check = Check(self.folder, programs)

    def test_a_crash_costs_one_test_and_its_configurations_are_called_untested(self):
        self.assert_code(1, "--only", "tests_llama_test", "--only", "pure_bf16_batch_2", "--only", "pure_bf16_batch_2_cheap")
        record = self.check.record("tests_llama_test")
        self.assertEqual(record["tests"], {"Model.GradientsEqualX": "passed", "TrainerGpu.RecomputeX": "failed",
                                           "TrainerGpu.PureBf16X": "passed", "TrainerGpu.NarrowEmbeddingGradientX": "passed"})
        self.assertEqual(self.check.record("pure_bf16_batch_2")["untested"], [])
        self.assertEqual(self.check.record("pure_bf16_batch_2_cheap")["untested"], ["recompute: TrainerGpu.RecomputeX failed"])
        self.assertIn("UNTESTED recompute", self.check.output)

    def test_a_configuration_without_any_test_is_called_untested(self):
        self.assert_code(0, "--only", "generate")
        self.assertIn("no test", self.check.record("generate")["untested"][0])


class Table(unittest.TestCase):
    def test_a_gpu_and_the_rehearsal_have_the_same_measurements(self):
        names = {name: [row.name for row in measurements(profile) if not row.name.startswith("tests_")]
                 for name, profile in PROFILES.items()}
        self.assertEqual(names["gpu"], names["rehearsal"])
        self.assertEqual(len(set(names["gpu"])), len(names["gpu"]))

    def test_estimates_fit_the_limits(self):
        for stage, limit in GPU.limits.items():
            rows = [row for row in measurements(GPU) if row.stage == stage]
            self.assertLess(sum(row.seconds for row in rows if not row.optional), limit)
        self.assertEqual(GPU.limits, {1: 360, 2: 360, 3: 300})

    def test_every_configuration_has_tests(self):
        for profile in PROFILES.values():
            for row in measurements(profile):
                if row.settings.get("side") == "xffl" and row.name != "load_and_save":
                    self.assertTrue(row.features, row.name)
                for feature in row.features:
                    self.assertTrue(profile.covered_by[feature], f"{row.name}: {feature}")

    def test_large_runs_have_a_small_learning_rate(self):
        self.assertEqual({row.learning_rate for row in measurements(GPU) if getattr(row, "model", "") == "large" and
                          hasattr(row, "learning_rate")}, {1e-5})

    def test_model_flops(self):
        # 6 x 7.50e9 elements of matrices, and 32 blocks of 6 x 2048 x 4096 for attention.
        self.assertAlmostEqual(model_flops_per_token(llama_3_1_8b_config(32), 2048) / 1e9, 6 * 7.5047 + 1.6106, places=2)


class Figures(unittest.TestCase):
    """Figures of an 8B step, parsed from the programs' output."""

    PHASES = dict(forward=0.2, head=0.05, backward=0.4, norm=0.01, adamw=0.04)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpu_check_test.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bench = mock.Mock()
        self.bench.utilization = lambda rate, flops: rate * flops / 989.5e12
        self.bench.known = lambda name=None: []
        self.row = next(row for row in measurements(GPU) if row.name == "pure_bf16_batch_4")
        self.config = llama_3_1_8b_config(32)

    def ours(self):
        lines = [dict(loss=12.5, seconds=9.0 if step < 2 else 0.7, memory_bytes=1 << 30, phase_seconds=self.PHASES) for step in range(6)]
        (self.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (self.folder / "report.json").write_text(json.dumps(dict(peak_memory_bytes=100 << 30)))
        return self.row.figures(self.bench, self.config, self.folder)

    def test_a_run_of_ours(self):
        figures = self.ours()
        self.assertAlmostEqual(figures["tokens_per_second"], 4 * 2048 / 0.7)
        self.assertAlmostEqual(figures["model_flops_utilization"], 11702.86 * 46.639e9 / 989.5e12, places=4)
        self.assertEqual(figures["peak_memory_gib"], 100)
        for name, seconds in self.PHASES.items():
            self.assertAlmostEqual(figures["phase_seconds"][name], seconds)

    def test_hugging_faces_best_batch_is_found_beside_one_that_does_not_fit(self):
        row = next(row for row in measurements(GPU) if row.name == "hf_eager")
        tried = [dict(mode="pure bf16", batch_size=batch, compile="none", status="measured", seconds=[9, 9, *[seconds] * 4],
                      losses=[12.5] * 6, peak_memory_bytes=batch << 35) for batch, seconds in ((2, 0.5), (4, 0.8))]
        tried.append(dict(mode="pure bf16", batch_size=8, compile="none", status="out_of_memory"))
        figures = row.figures(self.bench, self.config, tried, "data")
        self.assertEqual(figures["batch_size"], 4)
        self.assertAlmostEqual(figures["tokens_per_second"], 4 * 2048 / 0.8)
        self.assertEqual([one["status"] for one in figures["tried"]], ["measured", "measured", "out_of_memory"])

    def test_the_table_has_phases_and_ratios(self):
        common = dict(status="passed", reason="", machine={}, optional=False)
        ours = dict(common, name="pure_bf16_batch_4", settings=self.row.settings, figures=self.ours())
        hf = [dict(common, name=f"hf_{how}", settings=dict(side="hf", model="Llama-3.1-8B", length=2048, compile=how),
                   figures=dict(tokens_per_second=rate, batch_size=4)) for how, rate in (("none", 10000), ("layers", 12500))]
        printed = markdown.render([ours, *hf])
        row = next(line for line in printed.splitlines() if line.startswith("| xffl: Llama-3.1-8B, pure bf16, batch 4 x 2048 |"))
        self.assertEqual(row.strip("| ").split(" | ")[1:], ["11,703", "55.2 %", "100", "0.2", "0.05", "0.4", "0.01", "0.04", "1.17", "0.936",
                                                           "passed"])


class ResultFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpu_check_test.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_torn_last_line_is_passed_over_and_cut_off(self):
        path = self.folder / "r.jsonl"
        path.write_text('{"name": "a"}\n{"name": "b", "fig')
        self.assertEqual([record["name"] for record in results.read_results(path)], ["a"])
        results.append_line(path, '{"name": "c"}')
        self.assertEqual(path.read_text(), '{"name": "a"}\n{"name": "c"}\n')

    def test_the_details_stay_below_16_mib(self):
        kept = results.Results(self.folder / "state", self.folder / "out")
        (kept.details / "small").write_text("whole")
        for name in ("large", "larger"):
            (kept.details / name).write_bytes(b"begin" + b"x" * (20 << 20) + b"end")
        kept.bundle()
        self.assertLess((self.folder / "out" / "details.tar").stat().st_size, 16 << 20)
        with tarfile.open(self.folder / "out" / "details.tar") as archive:
            self.assertEqual(archive.extractfile("small").read(), b"whole")
            cut = archive.extractfile("large").read()
        self.assertTrue(cut.startswith(b"begin") and cut.endswith(b"end") and re.search(rb"\d+ bytes were left out", cut))

    def test_a_line_stays_bounded(self):
        kept = results.Results(self.folder, self.folder)
        kept.append(dict(name="many", status="passed", tests={f"A.{i}": "x" * 1000 for i in range(1000)}))
        (record,) = kept.known()
        self.assertEqual(record, dict(name="many", status="passed"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
