"""Checks the trainer on a GPU, or rehearses on the CPU: python3 -m gpu_check run|rehearse|table|clean. See scripts/gpu_check.sh."""
import argparse
import fcntl
import json
import os
import pathlib
import shutil
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parents[1]
PROJECT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from gpu_check.bench import Bench, Measurement, Programs, Stopped, exit_code, has_gpu  # noqa: E402
from gpu_check.markdown import render  # noqa: E402
from gpu_check.measurements import FAULTS, Fault  # noqa: E402
from gpu_check.models import Models  # noqa: E402
from gpu_check.results import Results, append_line, read_results  # noqa: E402
from gpu_check.table import PROFILES, measurements  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("run", "measure on the GPU that is here"), ("rehearse", "the same, on the CPU with a tiny model")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--stage", type=int, choices=(1, 2, 3), required=False, help="rehearse: all three without it")
        command.add_argument("--only", action="append", default=[], metavar="NAME", help="leave out all other measurements")
        command.add_argument("--continue", dest="go_on", action="store_true", help="leave out what these programs have passed before")
        command.add_argument("--bin", type=pathlib.Path, help="folder of the programs")
        command.add_argument("--libraries", type=pathlib.Path, nargs="*", default=[], help="folders of shared libraries for them")
        command.add_argument("--state", type=pathlib.Path, help="what lasts between stages; default: gpu_check beside the programs' folder")
        command.add_argument("--model-folder", type=pathlib.Path,
                             help="where models are made; default: in memory where they fit, else in --state")
        command.add_argument("--limit", type=float, help="seconds of each stage, at most the stage's own")
        command.add_argument("--threads", type=int, default=0)
        command.add_argument("--began", type=float, help="when the stage began, in seconds since 1970")
        command.add_argument("--built", default="", help="of the build: passed, failed or out_of_time, and its seconds: passed:12")
        command.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS), help="for tests of the check: a false measurement")
    table = commands.add_parser("table", help="print result files as Markdown")
    table.add_argument("results", type=pathlib.Path, nargs="+", metavar="RESULTS.jsonl")
    clean = commands.add_parser("clean", help="remove the models that run has made")
    clean.add_argument("--state", type=pathlib.Path, default=PROJECT / "build" / "trainer-cuda" / "gpu_check")
    return parser, parser.parse_args()


def models_in_memory():
    return pathlib.Path("/dev/shm") / f"xffl_gpu_check.{os.getuid()}"


class Session:
    """Folders, programs and limits shared by the stages of one command."""

    def __init__(self, options):
        self.options, self.stopped = options, False
        self.profile = PROFILES["gpu" if options.command == "run" else "rehearsal"]
        preset = "trainer-cuda" if options.command == "run" else "dev"
        self.bin = (options.bin or PROJECT / "build" / preset / "bin").resolve()
        self.state = (options.state or self.bin.parent / "gpu_check").resolve()
        self.state.mkdir(parents=True, exist_ok=True)
        out = os.environ.get("OUT")
        self.results = Results(self.state, pathlib.Path(out).resolve() if out else self.state)
        self.programs = Programs(self.bin, options.libraries)
        default_python = PROJECT / ".deps" / "venv" / "bin" / "python"
        self.python = os.environ.get("XFFL_PYTHON") or (str(default_python) if default_python.exists() else "python3")

    def lock(self):
        """Locks the state folder until this process ends."""
        self.lock_file = open(self.state / "lock", "w")
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"gpu_check: another check runs in {self.state}: wait for its end, or choose another --state")

    def rows(self, stage):
        faults = self.options.fault if stage == (self.options.stage or 1) else []
        rows = [row for row in measurements(self.profile, faults, stage) if row.stage == stage]
        if self.options.only:
            rows = [row for row in rows if row.name in self.options.only or isinstance(row, Fault)]
        return rows

    def limit_s(self, stage):
        limit = self.profile.limits[stage]
        return min(limit, self.options.limit) if self.options.limit else limit

    def models(self, threads):
        if self.options.model_folder:
            in_memory, on_disk = None, self.options.model_folder
        else:
            in_memory, on_disk = (None if self.profile.is_rehearsal else models_in_memory()), self.state / "models"
        # Other measurements run meanwhile, and some tests measure time.
        return Models(self.programs, in_memory, on_disk, self.results.details, max(1, threads // 2))

    def stage(self, stage, began):
        """Runs a stage; returns its records."""
        rows = self.rows(stage)
        if not rows:
            return []
        threads = self.options.threads or (1 if self.profile.is_rehearsal else len(os.sched_getaffinity(0)))
        models = self.models(threads)
        bench = Bench(self.profile, self.programs, models, self.results, self.python, self.limit_s(stage), began, threads)
        say = self.results.say
        say(f"stage {stage}: {len(rows)} measurements within {bench.limit_s:.0f} s, {bench.left():.0f} s of them left; "
            f"{bench.machine.get('gpu') or bench.machine.get('processor') or 'no GPU'}; programs {bench.fingerprint or 'none'}")
        try:
            if not self.start(bench, stage, rows):
                return bench.records
            for row in rows:
                if self.options.go_on and bench.is_known(row):
                    self.keep(bench, row)
                else:
                    bench.measure(row)
        except Stopped:
            self.stopped = True
            say("stopped by a signal: the remaining rows are not measured")
            bench.record(Measurement(f"rest_of_stage_{stage}", stage, 0), "out_of_time", reason="the check was stopped")
        finally:
            models.stop()
        untested = [record["name"] for record in bench.records if record.get("untested")]
        if untested:
            say(f"benchmarked without a passed test of their own (UNTESTED above): {', '.join(untested)}")
        say(f"stage {stage} took {time.time() - began:.0f} s")
        return bench.records

    def start(self, bench, stage, rows):
        """Whether programs and device exist; starts to make the models."""
        status, _, seconds = self.options.built.partition(":")
        if status:
            build = Measurement("build", stage, 0, settings=dict(bin=str(self.bin)))
            self.copy_build_log()
            bench.record(build, status, seconds=float(seconds or 0), reason="" if status == "passed" else "see build.log in details.tar")
            if status != "passed":
                return False
        if self.profile.device == "cuda" and not has_gpu():
            bench.record(Measurement("gpu", stage, 0), "needs_gpu", reason="nvidia-smi names no GPU here")
            return False
        try:
            for shape in sorted({row.model for row in rows if getattr(row, "model", "")}, reverse=True):
                bench.models.begin(self.profile.shapes[shape]["config"], self.profile.shapes[shape]["dtype"])
        except Exception as error:  # measurements that need the model report the error
            bench.results.say(f"no model can be made: {error}")
        return True

    def copy_build_log(self):
        log = self.state / "build.log"
        if log.exists():
            shutil.copyfile(log, self.results.details / "build.log")

    def keep(self, bench, row):
        known = bench.known(row.name)[-1]
        bench.records.append(known)
        if self.results.out != self.results.state:
            append_line(self.results.out / "results.jsonl", json.dumps(known))
        bench.results.say(f"kept          {row.name}: measured before with the same programs")


def check_names(parser, options, session):
    names = [row.name for row in measurements(session.profile)]
    for name in options.only:
        if name not in names:
            parser.error(f"--only: unknown measurement {name}, expected one of {', '.join(names)}")
    if options.command == "run" and not options.stage and not options.only:
        parser.error("run: give --stage 1, 2 or 3, or --only NAME")


def stages_of(options, session):
    if options.stage:
        return [options.stage]
    wanted = {row.stage for row in measurements(session.profile) if not options.only or row.name in options.only}
    return sorted(wanted)


def stop(number, _frame):
    signal.signal(number, signal.SIG_IGN)  # ignores repeated signals
    raise Stopped


def main():
    parser, options = parse()
    if options.command == "table":
        try:
            print(render(read_results(*options.results)), flush=True)
        except BrokenPipeError:  # the reader closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if options.command == "clean":
        for folder in (models_in_memory(), options.state / "models", options.state / "scratch"):
            shutil.rmtree(folder, ignore_errors=True)
        return 0
    session = Session(options)
    check_names(parser, options, session)
    session.lock()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    records = []
    for number, stage in enumerate(stages_of(options, session)):
        if session.stopped:
            break
        records += session.stage(stage, options.began if options.began and number == 0 else time.time())
    code = exit_code(records)
    say = session.results.say
    for status in ("failed", "missed", "out_of_time", "out_of_memory", "skipped"):
        names = [record["name"] for record in records if record["status"] == status]
        if names:
            say(f"{status}: {', '.join(names)}")
    say(f"{sum(record['status'] == 'passed' for record in records)} of {len(records)} passed; exit code {code}; "
        f"results in {session.results.out}")
    session.results.bundle()
    return code


if __name__ == "__main__":
    sys.exit(main())
