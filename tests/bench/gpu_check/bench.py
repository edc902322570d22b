"""A run of the check: time limits, programs, the machine, and one record per measurement."""
import datetime
import fnmatch
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field

from .results import shortened
from .runner import Ended, Process, Skipped

RESERVE_SECONDS = 4  # at the end of a stage, for its last records
# Dense bfloat16 TFLOP/s by the vendor's data sheets.
PEAK_TFLOPS = {"H100": 989.5, "H200": 989.5, "GH200": 989.5, "A100": 312.0, "B200": 2250.0}
REHEARSED_PEAK_TFLOPS = 0.1


@dataclass(frozen=True)
class Measurement:
    """A row of the table. `seconds` is its estimate: it is skipped if less time is left, and killed after three times the estimate."""

    name: str
    stage: int
    seconds: float
    settings: dict = field(default_factory=dict)
    aims: dict = field(default_factory=dict)  # figure: ("at_least" or "at_most", number)
    features: tuple = ()  # trainer features, each with tests in the profile's `covered_by`
    optional: bool = False  # the check is complete even if it is skipped or runs out of memory or time

    def measure(self, bench):
        """Returns the figures; raises Ended if they are incomplete."""
        raise NotImplementedError


class Programs:
    """The trainer's programs; `libraries` are library folders for programs built on another machine."""

    def __init__(self, folder, libraries=()):
        self.folder = pathlib.Path(folder).resolve()
        self.environment = {}
        if libraries:
            joined = [*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            self.environment = dict(LD_LIBRARY_PATH=":".join(joined))

    def path(self, name):
        path = self.folder / name
        if not path.exists():
            raise Skipped(f"{name} is not built in {self.folder}")
        return path

    def fingerprint(self):
        path = self.folder / "xffl-train"
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def has_gpu():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.stdout.startswith("GPU")


def output_of(argv, timeout=60, **options):
    try:
        done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=timeout,
                              **options)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def processor_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def python_versions(python):
    script = "import importlib.metadata as m\nfor n in ('torch', 'transformers'): print(n, m.version(n))"
    return dict(line.split(" ", 1) for line in output_of([python, "-c", script]).splitlines())


def describe_machine(programs, python, device):
    """GPU, driver, versions, and the peak TFLOP/s for utilization."""
    info = json.loads(output_of([programs.folder / "xffl-train", "info", "--json"], env={**os.environ, **programs.environment}) or "{}")
    machine = dict(gpu=None, driver=None, torch=info.get("torch"), cpus=len(os.sched_getaffinity(0)), python=python_versions(python))
    if device == "cuda":
        names = output_of(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"])
        name, driver, memory = (names.splitlines() or [", , 0"])[0].split(", ")
        machine |= dict(gpu=name, driver=driver, memory_gib=round(float(memory) / 1024, 1))
        machine["peak_tflops"] = next((peak for key, peak in PEAK_TFLOPS.items() if key in name.split()), None)
        machine["peak_is"] = "dense bf16, data sheet"
    else:
        machine |= dict(processor=processor_name(), peak_tflops=REHEARSED_PEAK_TFLOPS, peak_is="assumed, in a rehearsal")
    return machine


class Bench:
    def __init__(self, profile, programs, models, results, python, limit_s, began, threads):
        self.profile, self.programs, self.models, self.results = profile, programs, models, results
        self.python, self.limit_s, self.began, self.threads = python, limit_s, began, threads
        self.run_name = f"{datetime.datetime.now():%Y%m%dT%H%M%S}-{os.getpid()}"
        self.fingerprint = programs.fingerprint()
        self.machine = self.known_machine()
        self.records = []
        self.until = None  # deadline of the measurement in progress

    # --- time ---------------------------------------------------------------------------------------------------------
    def left(self):
        """Seconds left for this stage and for the measurement in progress."""
        left = self.limit_s - (time.time() - self.began) - RESERVE_SECONDS
        return left if self.until is None else min(left, self.until - time.monotonic())

    # --- for measurements ------------------------------------------------------------------------------------------------
    def scratch(self, name):
        folder = self.results.state / "scratch" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def keep(self, name, path):
        """Copies a small file into details.tar."""
        if path.exists():
            (self.results.details / name).write_bytes(shortened(path.read_bytes(), 2 << 20))

    def run(self, name, argv, environment=None, limit_s=None, ours=True):
        """`ours`: a program of this build, or a program that starts one."""
        left = max(0.5, self.left())
        common = dict(self.programs.environment if ours else {}, OMP_NUM_THREADS=str(self.threads))
        process = Process(argv, self.results.details / name, {**common, **(environment or {})})
        try:
            return process.finish(left if limit_s is None else min(limit_s, left))
        except BaseException:
            process.end()
            raise

    def need_python(self):
        if shutil.which(self.python) is None:
            raise Skipped(f"there is no Python at {self.python}: set XFFL_PYTHON")

    # --- records -----------------------------------------------------------------------------------------------------------
    def known(self, name=None):
        """Earlier records of the same programs, newest last."""
        return [record for record in self.results.known() if record.get("programs") == self.fingerprint and
                record.get("profile") == self.profile.name and (name is None or record["name"] == name)]

    def known_machine(self):
        path = self.results.state / "machine.json"
        key = dict(programs=self.fingerprint, device=self.profile.device)
        if path.exists():
            try:
                machine = json.loads(path.read_text())
                if machine.get("of") == key:
                    return machine
            except json.JSONDecodeError:
                pass
        machine = dict(describe_machine(self.programs, self.python, self.profile.device), of=key)
        temporary = path.with_name(".machine.json.tmp")
        temporary.write_text(json.dumps(machine))
        os.replace(temporary, path)
        return machine

    def utilization(self, tokens_per_second, flops_per_token):
        peak = self.machine.get("peak_tflops")
        return tokens_per_second * flops_per_token / (peak * 1e12) if peak and tokens_per_second else None

    def untested(self, features):
        """The reason for each feature without a passed test."""
        status = {}
        for record in self.known():
            status |= record.get("tests", {})
        problems = []
        for feature in features:
            for pattern in self.profile.covered_by[feature]:
                matching = {name: end for name, end in status.items() if fnmatch.fnmatchcase(name, pattern)}
                bad = sorted(name for name, end in matching.items() if end != "passed")
                if not matching:
                    problems.append(f"{feature}: no test {pattern} ran")
                elif bad:
                    problems.append(f"{feature}: {bad[0]} {matching[bad[0]]}")
        return problems

    def record(self, measurement, status, figures=(), reason="", seconds=0.0):
        figures = dict(figures)
        record = dict(stage=measurement.stage, name=measurement.name, status=status, reason=reason, settings=measurement.settings,
                      figures=figures, optional=measurement.optional, profile=self.profile.name, programs=self.fingerprint,
                      run=self.run_name, at=f"{datetime.datetime.now():%Y-%m-%dT%H:%M:%S}", seconds=round(seconds, 2),
                      machine={key: value for key, value in self.machine.items() if key != "of"})
        for lifted in ("tests", "kernels"):
            if lifted in figures:
                record[lifted] = figures.pop(lifted)
        self.judge(measurement, record)
        self.records.append(record)
        self.results.append(record)
        self.tell(record)
        return record

    def judge(self, measurement, record):
        """Logs aims, and features without a test."""
        if measurement.features:
            record["untested"] = self.untested(measurement.features)
        if not measurement.aims:
            return
        record["aims"] = {}
        for name, (bound, number) in measurement.aims.items():
            found = record["figures"].get(name)
            met = None if found is None else (found >= number if bound == "at_least" else found <= number)
            record["aims"][name] = {bound: number, "found": found, "met": met}
        if record["status"] == "passed" and any(aim["met"] is False for aim in record["aims"].values()):
            record["status"] = "missed"

    def tell(self, record):
        say = self.results.say
        figures = record["figures"]
        shown = [f"{figures[key]:.4g} {unit}" for key, unit in (("tokens_per_second", "tokens/s"), ("peak_memory_gib", "GiB"))
                 if figures.get(key) is not None]
        if figures.get("model_flops_utilization"):
            shown.append(f"MFU {figures['model_flops_utilization']:.1%}")
        say(f"{record['status'].upper():13} {record['name']} ({record['seconds']:.1f} s)" + "".join(", " + text for text in shown) +
            (f": {record['reason']}" if record["reason"] else ""))
        if figures.get("phase_seconds") and record["status"] == "missed":
            say("  seconds per step: " + ", ".join(f"{key} {value:.4g}" for key, value in figures["phase_seconds"].items()))
        for name, aim in record.get("aims", {}).items():
            bound, number = next(iter(aim.items()))
            found = "not measured" if aim["found"] is None else f"{aim['found']:.4g}, {'met' if aim['met'] else 'MISSED'}"
            say(f"  aim {name} {bound.replace('_', ' ')} {number}: {found}")
        if record.get("untested"):
            say(f"  UNTESTED {'; '.join(record['untested'])}")

    # --- one measurement ---------------------------------------------------------------------------------------------------
    def is_known(self, measurement):
        return any(record["status"] in ("passed", "missed") and record["settings"] == json.loads(json.dumps(measurement.settings))
                   for record in self.known(measurement.name))

    def measure(self, measurement):
        left, start = self.left(), time.monotonic()
        if left < measurement.seconds:
            return self.record(measurement, "out_of_time", reason=f"{max(0, left):.0f} s are left, the estimate is "
                                                                  f"{measurement.seconds:.0f}")
        self.until = start + min(left, 3 * measurement.seconds)
        try:
            figures = measurement.measure(self)
            status, reason = figures.pop("status", "passed"), figures.pop("reason", "")
        except Ended as end:
            status, reason, figures = end.status, str(end), end.figures
        except Stopped:
            self.until = None
            self.record(measurement, "out_of_time", reason="the check was stopped", seconds=time.monotonic() - start)
            raise
        except Exception as error:  # a defect of the check loses one measurement, not the run
            status, reason, figures = "failed", f"{type(error).__name__}: {error}", {}
        self.until = None
        return self.record(measurement, status, figures, re.sub(r"\s+", " ", reason), time.monotonic() - start)


class Stopped(BaseException):
    """SIGTERM or SIGINT; only the stage catches it."""


def exit_code(records):
    """0: all passed; 77: no GPU; 1: something failed; 2: an aim was missed, or something was not measured."""
    statuses = [record["status"] for record in records]
    if "failed" in statuses:
        return 1
    if "needs_gpu" in statuses:
        return 77
    incomplete = any(record["status"] != "passed" and not (record["optional"] and record["status"] != "missed") for record in records)
    return 2 if incomplete or not records else 0
