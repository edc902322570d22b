"""The kinds of measurement: each runs a program and parses its figures."""
import json
import math
import pathlib
import re
import shutil
import sys
from dataclasses import dataclass, field

from llama_shapes import model_flops_per_token
from trainer_job import job, training_settings

from .bench import Measurement
from .runner import Failed, OutOfMemory, OutOfTime, Skipped, last_line

HERE = pathlib.Path(__file__).resolve().parents[1]
PROJECT = HERE.parents[1]


def json_lines(text):
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [line for line in lines if isinstance(line, dict)]


# --- tests ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TestProgram(Measurement):
    """Runs a GoogleTest program; after a crash the remaining tests run in a new process, and failed tests are repeated alone.

    An illegal access spoils a process's GPU for every later test, so only a test that fails alone has failed.
    """

    program: str = ""
    tests: str = "*"
    __test__ = False  # pytest

    def measure(self, bench):
        program, results = bench.programs.path(self.program), {}
        for part in range(10):
            finished = bench.run(f"{self.name}.{part}", [program, "--gtest_filter=" + excluding(self.tests, results)])
            found, unfinished = gtest_results(finished.stdout)
            results |= found
            if finished.timed_out:
                if unfinished:
                    results[unfinished] = "out of time"
                raise OutOfTime(f"{self.program} was killed{f' in {unfinished}' if unfinished else ''}", **counts(results))
            if unfinished is None:
                if not found and finished.returncode != 0:
                    raise Failed(f"{self.program} ended with {finished.returncode}: {last_line(finished.output)}", **counts(results))
                break
            results[unfinished] = "failed"
        failed = [name for name, end in results.items() if end == "failed"]
        for name in failed if len(failed) > 1 else []:
            if bench.left() < 5:
                break
            alone, _ = gtest_results(bench.run(f"{self.name}.alone", [program, "--gtest_filter=" + name], limit_s=60).stdout)
            if alone.get(name) == "passed":
                results[name] = "passed"
                bench.results.say(f"  {name} failed after another failure and passes alone")
        failed = [name for name, end in results.items() if end == "failed"]
        if failed:
            raise Failed(f"{len(failed)} tests failed: {', '.join(failed[:5])}", **counts(results))
        if results and all(end == "skipped" for end in results.values()):
            raise Skipped(f"{self.program} skipped all of its tests", **counts(results))
        if not results:
            raise Failed(f"{self.program} ran no test", **counts(results))
        return counts(results)


def excluding(tests, results):
    if not results:
        return tests
    return tests + (":" if "-" in tests else "-") + ":".join(results)


def gtest_results(output):
    """Results of the tests, and the unfinished test. A test may print text without a newline before its result."""
    results, running = {}, None
    for line in output.splitlines():
        if begin := re.match(r"\[ RUN      \] (\S+)", line):
            running = begin[1]
        elif end := re.search(r"\[ *(OK|FAILED|SKIPPED) *\] ([^\s,]+)", line):
            if end[2] == running:
                results[running] = dict(OK="passed", FAILED="failed", SKIPPED="skipped")[end[1]]
                running = None
    return results, running


def counts(results):
    ends = list(results.values())
    return dict(tests=results, passed=ends.count("passed"), failed=ends.count("failed"), skipped=ends.count("skipped"))


@dataclass(frozen=True)
class Sanitizer(Measurement):
    """Runs a test program under compute-sanitizer, if that tool works."""

    program: str = ""
    tool: str = "memcheck"
    tests: str = "*"

    def measure(self, bench):
        sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        if bench.profile.device != "cuda" or sanitizer is None:
            raise Skipped("compute-sanitizer checks GPU code" if sanitizer else "compute-sanitizer is not installed")
        program = bench.programs.path(self.program)
        command = [sanitizer, "--tool", self.tool, "--error-exitcode", 9, program]
        # The runtime of some machines denies it access to the device.
        probe = bench.run(f"{self.name}.probe", [*command, "--gtest_filter=" + self.first_test(bench, program)], limit_s=40)
        if probe.timed_out or "Device not supported" in probe.output or not re.search(r"^\[  PASSED  \] 1 ", probe.stdout, re.M):
            if probe.returncode != 9:
                raise Skipped(f"compute-sanitizer does not work here: {last_line(probe.output, re.compile('not supported|rror|.'))}")
        finished = bench.run(self.name, [*command, "--gtest_filter=" + self.tests])
        summary = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", finished.output)
        results, _ = gtest_results(finished.stdout)
        figures = dict(errors=int(summary[1] or summary[2]) if summary else None, tests_run=len(results))
        if finished.returncode == 9 or figures["errors"]:
            raise Failed(last_line("\n".join(re.findall(r"^=========.*(?:Invalid|hazard|Error).*$", finished.output, re.M)[:1])), **figures)
        finished.check("compute-sanitizer", **figures)
        return figures

    def first_test(self, bench, program):
        listed = bench.run(f"{self.name}.list", [program, "--gtest_list_tests"], limit_s=20).stdout
        suite = ""
        for line in listed.splitlines():
            if re.match(r"\S+\.", line):
                suite = line.split()[0]
            elif line.startswith("  ") and suite:
                return suite + line.split()[0]
        return "*"


@dataclass(frozen=True)
class PythonTests(Measurement):
    """Tests of tests/train against Hugging Face with the programs of this build; on a GPU those marked `gpu`."""

    files: tuple = ()
    expression: str = ""
    __test__ = False

    def measure(self, bench):
        bench.programs.path("xffl-train")
        bench.need_python()
        argv = [bench.python, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", "--maxfail=20",
                f"--basetemp={bench.scratch(self.name)}", *(PROJECT / "tests" / "train" / file for file in self.files)]
        if self.expression:
            argv += ["-k", self.expression]
        finished = bench.run(self.name, argv, dict(XFFL_BIN=str(bench.programs.folder), XFFL_TEST_DEVICE=bench.profile.device,
                                                      COLUMNS="250"))
        ends = dict(PASSED="passed", FAILED="failed", ERROR="failed", SKIPPED="skipped")
        results = {name: ends[end] for name, end in re.findall(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", finished.stdout, re.M)}
        if not results and (finished.returncode == 77 or "No module named" in finished.output):
            raise Skipped(last_line(finished.output, re.compile("SKIPPED|No module named")))
        figures = dict(counts(results), failed_tests=[name for name, end in results.items() if end == "failed"][:20])
        if figures["failed"]:
            raise Failed(f"{figures['failed']} tests failed: {', '.join(figures['failed_tests'][:3])}", **figures)
        finished.check("pytest", **figures)
        return figures


# --- kernels ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KernelBench(Measurement):
    """xffl-kernel-bench: one JSON line per kernel with name, shape, milliseconds, and tflops or gigabytes_per_second."""

    def measure(self, bench):
        argv = [bench.programs.path("xffl-kernel-bench"), "--device", bench.profile.device]
        finished = bench.run(self.name, argv + (["--tiny"] if bench.profile.is_rehearsal else []))
        lines = [line for line in json_lines(finished.stdout) if "name" in line]
        kernels = [line for line in lines if "milliseconds" in line]
        figures = dict(kernels=lines, measured=len(kernels), fastest_tflops=max((line.get("tflops") or 0 for line in kernels), default=0),
                       fastest_gb_per_second=max((line.get("gigabytes_per_second") or 0 for line in kernels), default=0))
        if errors := [f"{line['name']} {line.get('shape', '')}: {line['error']}" for line in lines if "error" in line]:
            raise Failed(f"{len(errors)} kernels failed: {errors[0]}", **figures)
        finished.check("xffl-kernel-bench", **figures)
        if not kernels:
            raise Failed("xffl-kernel-bench printed no kernel", **figures)
        return figures


# --- training ---------------------------------------------------------------------------------------------------------------
def lacks(figures, *names):
    return [name for name in names if figures.get(name) is None]


def check_first_loss(bench, figures, precision, key, config):
    """Compares first losses: both sides and all settings start from the same weights, so a difference is a defect."""
    found = figures.get("first_loss")
    if found is None:
        return
    figures["first_loss_of"], figures["first_loss_precision"] = key, precision
    if not math.isfinite(found) or abs(found - math.log(config["vocab_size"])) > 1.5:
        raise Failed(f"the first loss is {found:.5f}: a random model's is near {math.log(config['vocab_size']):.2f}", **figures)
    for record in reversed(bench.known()):
        other = record["figures"]
        if other.get("first_loss_of") != key or other.get("first_loss") is None:
            continue
        strict = precision == other["first_loss_precision"] == "fp32"
        difference = abs(found - other["first_loss"]) / other["first_loss"]
        figures["first_loss_difference"] = max(difference, figures.get("first_loss_difference", 0))
        pairs = list(zip(figures.get("losses", []), other.get("losses", [])))
        if "hf" in (record["settings"].get("side"), figures.get("side")) and pairs:
            figures["drift"] = max(abs(a - b) / abs(b) for a, b in pairs)
        if difference > bench.profile.first_loss_tolerance["fp32" if strict else "bf16"]:
            raise Failed(f"the first loss differs: {found:.6f}, {record['name']} has {other['first_loss']:.6f}", **figures)


def data_of(measurement, bench):
    shape = bench.profile.shapes[measurement.model]
    model, made_in = bench.models.ready(shape["config"], shape["dtype"], bench.left())
    if made_in is not None:
        bench.results.say(f"  the model was made in {made_in:.1f} s: {model.parent}")
    shard, ids, name = bench.models.tokens(model.parent, shape["config"]["vocab_size"], measurement.length, measurement.sequences,
                                           measurement.documents, bench.left())
    return shape, model, shard, ids, name


@dataclass(frozen=True)
class TrainerRun(Measurement):
    """Runs xffl-train once: warm-up steps, then measured steps."""

    model: str = "large"
    batch_size: int = 1
    micro_batch_size: int = 0  # 0: the batch size
    length: int = 1
    sequences: int = 64
    documents: int = 1
    warm_up: int = 2
    steps: int = 4
    training: dict = field(default_factory=dict)
    learning_rate: float = 1e-5

    def measure(self, bench):
        shape, model, shard, _, data_name = data_of(self, bench)
        folder = bench.scratch(self.name)
        settings = training_settings(steps=self.warm_up + self.steps, batch_size=self.batch_size, learning_rate=self.learning_rate,
                                     micro_batch_size=self.micro_batch_size or self.batch_size, document_mask=self.documents > 1)
        settings.update(self.training)
        described = job(model, "0" * 64, shard, settings, update_dtype=shape["dtype"])
        (folder / "job.json").write_text(json.dumps(described))
        argv = [bench.programs.path("xffl-train"), "--device", bench.profile.device, "--threads", bench.threads, "--benchmark",
                "--job", folder / "job.json"]
        finished = bench.run(self.name, argv)
        for name in ("job.json", "metrics.jsonl", "report.json"):
            bench.keep(f"{self.name}.{name}", folder / name)
        figures = self.figures(bench, shape["config"], folder)
        figures["process_seconds"] = round(finished.seconds, 2)
        shutil.rmtree(folder, ignore_errors=True)
        finished.check("xffl-train", **figures)
        if lacks(figures, "tokens_per_second", "first_loss", "peak_memory_gib"):
            raise Failed(f"xffl-train left no {', '.join(lacks(figures, 'tokens_per_second', 'first_loss', 'peak_memory_gib'))}", **figures)
        mask = "masked" if self.documents > 1 else "whole"
        check_first_loss(bench, figures, settings["precision"], f"{self.model} {data_name} {mask} {self.batch_size}", shape["config"])
        return figures

    def figures(self, bench, config, folder):
        path = folder / "metrics.jsonl"
        metrics = [line for line in json_lines(path.read_text()) if "loss" in line] if path.exists() else []
        measured = metrics[self.warm_up:]
        figures = dict(losses=[line["loss"] for line in metrics], steps=len(measured))
        if metrics:
            figures["first_loss"] = metrics[0]["loss"]
            figures["peak_memory_gib"] = max(line["memory_bytes"] for line in metrics) / 2**30
        if (folder / "report.json").exists():
            figures["peak_memory_gib"] = json.loads((folder / "report.json").read_text())["peak_memory_bytes"] / 2**30
        if measured:
            seconds = sum(line["seconds"] for line in measured)
            rate = len(measured) * self.batch_size * self.length / seconds
            figures |= dict(tokens_per_second=rate, seconds_per_step=seconds / len(measured))
            per_token = model_flops_per_token(config, self.length / self.documents, "lora" in self.training)
            figures["model_flops_utilization"] = bench.utilization(rate, per_token)
            if all("phase_seconds" in line for line in measured):
                phases = measured[0]["phase_seconds"]
                figures["phase_seconds"] = {key: sum(line["phase_seconds"][key] for line in measured) / len(measured) for key in phases}
        return figures


@dataclass(frozen=True)
class BestTrainerRun(TrainerRun):
    """Repeats the fastest measured setting of `among`, beside Hugging Face in the same run."""

    among: tuple = ()

    def measure(self, bench):
        best = best_of(bench, [candidate.name for candidate in self.among])
        chosen = next((candidate for candidate in self.among if best and candidate.name == best["name"]), self.among[0])
        changes = {key: getattr(chosen, key) for key in ("batch_size", "micro_batch_size", "training")}
        again = TrainerRun(**{**{key: getattr(self, key) for key in TrainerRun.__dataclass_fields__}, **changes})
        figures = again.measure(bench)
        return dict(figures, setting=chosen.name, batch_size=chosen.batch_size, recompute=chosen.training.get("recompute", "none"))


def best_of(bench, names):
    """The fastest of the newest records of each name."""
    newest = {record["name"]: record for record in bench.known() if record["name"] in names and
              record["status"] in ("passed", "missed") and record["figures"].get("tokens_per_second")}
    return max(newest.values(), key=lambda record: record["figures"]["tokens_per_second"], default=None)


@dataclass(frozen=True)
class HfRun(Measurement):
    """Runs Hugging Face at several settings in one process; the best setting is the result."""

    model: str = "large"
    length: int = 1
    sequences: int = 64
    documents: int = 1
    warm_up: int = 2
    steps: int = 4
    learning_rate: float = 1e-5
    modes: tuple = ("pure bf16",)
    batches: tuple = (1,)
    compile: str = "none"
    against: str = ""  # the xffl measurement for the comparison
    batch_of: str = ""  # starts with the best batch of that measurement

    def measure(self, bench):
        bench.need_python()
        shape, model, _, ids, data_name = data_of(self, bench)
        settings = [dict(mode=mode, batch_size=batch, compile=self.compile) for mode in self.modes for batch in self.order(bench)]
        options = dict(model=str(model), ids=str(ids), length=self.length, device=bench.profile.device, threads=bench.threads,
                       steps=self.steps, warm_up=self.warm_up, learning_rate=self.learning_rate, settings=settings,
                       deadline_s=max(1, bench.left() - 6), backend=bench.profile.compiler)
        finished = bench.run(self.name, [bench.python, HERE / "hf_settings.py", json.dumps(options)], ours=False)
        tried = [line for line in json_lines(finished.stdout) if "status" in line]
        figures = self.figures(bench, shape["config"], tried, data_name)
        if not tried and re.search("ModuleNotFoundError: (.*)", finished.stderr):
            raise Skipped(last_line(finished.stderr))
        if "tokens_per_second" not in figures:
            if not finished.timed_out and any(line["status"] == "out_of_memory" for line in tried):
                raise OutOfMemory("no setting fits", **figures)
            finished.check("hf_settings.py", **figures)
            raise OutOfTime("no setting was measured in time", **figures)
        # Measured settings count even if a later one timed out or failed.
        if finished.returncode != 0 and not finished.timed_out:
            figures["problem"] = last_line(finished.stderr)
        self.check_losses(bench, figures, shape["config"])
        return figures

    def order(self, bench):
        best = best_of(bench, [self.batch_of])
        first = best["figures"]["batch_size"] if best else self.batches[0]
        return [first] + [batch for batch in self.batches if batch > first] if self.batch_of else list(self.batches)

    def figures(self, bench, config, tried, data_name):
        figures = dict(side="hf", tried=[])
        best = None
        for line in tried:
            found = {key: line[key] for key in ("mode", "batch_size", "compile", "status")}
            if line["status"] == "measured":
                seconds = line["seconds"][self.warm_up:]
                found |= dict(tokens_per_second=len(seconds) * line["batch_size"] * self.length / sum(seconds),
                              peak_memory_gib=line["peak_memory_bytes"] / 2**30, losses=line["losses"], first_loss=line["losses"][0],
                              seconds_per_step=sum(seconds) / len(seconds), first_step_seconds=line["seconds"][0],
                              first_loss_of=f"{self.model} {data_name} whole {line['batch_size']}")
                best = max(best or found, found, key=lambda one: one["tokens_per_second"])
            figures["tried"].append(found)
        if best is None:
            return figures
        figures |= {key: best[key] for key in best if key not in ("status", "first_loss_of")}
        figures["model_flops_utilization"] = bench.utilization(best["tokens_per_second"], model_flops_per_token(config, self.length, False))
        ours = best_of(bench, [self.against])
        if ours:
            figures["ratio_of_ours"] = ours["figures"]["tokens_per_second"] / best["tokens_per_second"]
        if same := best_of(bench, self.same_batch(bench, best["batch_size"])):
            figures["memory_of_ours"] = same["figures"]["peak_memory_gib"] / best["peak_memory_gib"]
        return figures

    def same_batch(self, bench, batch_size):
        """The names of the xffl runs of this model and batch, whose peak memory is comparable: memory grows with the batch."""
        return [record["name"] for record in bench.known()
                if (record["name"] == self.against or record["name"].startswith("pure_bf16_batch_")) and
                record["settings"].get("model") == self.settings.get("model") and
                record["figures"].get("batch_size", record["settings"].get("batch_size")) == batch_size]

    def check_losses(self, bench, figures, config):
        """Checks every measured setting; the best one last, so that it stays in the figures."""
        measured = [one for one in figures["tried"] if one["status"] == "measured"]
        for one in sorted(measured, key=lambda one: one["tokens_per_second"]):
            figures.pop("drift", None)
            figures |= dict(losses=one["losses"], first_loss=one["first_loss"])
            check_first_loss(bench, figures, "fp32" if one["mode"] == "fp32" else "bf16", one["first_loss_of"], config)


@dataclass(frozen=True)
class Generation(Measurement):
    """xffl-train generate, token by token."""

    model: str = "large"
    prompt: int = 64
    new_tokens: int = 128

    def measure(self, bench):
        shape = bench.profile.shapes[self.model]
        model, _ = bench.models.ready(shape["config"], shape["dtype"], bench.left())
        ids = ",".join(str(1 + 7 * i % (shape["config"]["vocab_size"] - 1)) for i in range(self.prompt))
        finished = bench.run(self.name, [bench.programs.path("xffl-train"), "generate", "--device", bench.profile.device, "--threads",
                                         bench.threads, "--model", model, "--ids", ids, "--precision", "bf16", "--max-new-tokens",
                                         self.new_tokens, "--ignore-eos"])
        lines = json_lines(finished.stdout)
        finished.check("xffl-train generate", new_tokens=sum("id" in line for line in lines))
        end = lines[-1]
        if end.get("new_tokens") != self.new_tokens:
            raise Failed(f"found {end.get('new_tokens')} new tokens, expected {self.new_tokens}")
        return dict(tokens_per_second=end["new_tokens"] / end["seconds"], new_tokens=end["new_tokens"], prompt_tokens=self.prompt,
                    process_seconds=round(finished.seconds, 2))


@dataclass(frozen=True)
class LoadAndSave(Measurement):
    """xffl-model-io-bench, or transformers: GB/s of loading a model to the device and of writing it."""

    model: str = "large"
    side: str = "xffl"

    def measure(self, bench):
        if self.side != "xffl":
            bench.need_python()
        shape = bench.profile.shapes[self.model]
        model, _ = bench.models.ready(shape["config"], shape["dtype"], bench.left())
        gigabytes = sum(path.stat().st_size for path in model.iterdir()) / 1e9
        out = model.parent / "saved"
        shutil.rmtree(out, ignore_errors=True)
        if shutil.disk_usage(model.parent).free < 1.1e9 * gigabytes:
            raise Skipped(f"{model.parent} has no space for a second copy of {gigabytes:.0f} GB")
        program = [bench.programs.path("xffl-model-io-bench")] if self.side == "xffl" else [bench.python, HERE / "model_io.py", "--worker"]
        try:
            finished = bench.run(self.name, [*program, model, out, bench.profile.device, bench.threads], ours=self.side == "xffl")
        finally:
            shutil.rmtree(out, ignore_errors=True)
        if "ModuleNotFoundError" in finished.stderr:
            raise Skipped(last_line(finished.stderr))
        finished.check(pathlib.Path(str(program[0])).name)
        seconds = json_lines(finished.stdout)[-1]
        figures = dict(gigabytes=gigabytes, folder=str(model.parent.parent), side="hf" if self.side != "xffl" else "xffl")
        for name, value in seconds.items():
            figures |= {f"{name}_seconds": value, f"{name}_gb_per_second": gigabytes / value}
        return figures


# --- for the tests of the check itself ---------------------------------------------------------------------------------------
FAULTS = {
    "hang": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('hanging', flush=True); time.sleep(3600)",
    "fail": "import sys; sys.exit('a failure that was asked for')",
    "memory": "import sys; sys.exit('CUDA error: out of memory')",
    "miss": "print('{\"tokens_per_second\": 1}')",
}


@dataclass(frozen=True)
class Fault(Measurement):
    kind: str = "fail"

    def measure(self, bench):
        finished = bench.run(self.name, [sys.executable, "-c", FAULTS[self.kind]])
        finished.check(f"the fault '{self.kind}'")
        return json_lines(finished.stdout)[-1]
