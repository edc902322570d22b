"""Programs under a time limit, and the ways in which a measurement can end."""
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import time
from dataclasses import dataclass

GRACE_SECONDS = 3
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|bad_alloc|memory plan of a rank: cannot fit", re.IGNORECASE)


class Ended(Exception):
    """A measurement that ended without all figures; `figures` holds the measured ones."""

    status = "failed"

    def __init__(self, reason, **figures):
        super().__init__(reason)
        self.figures = figures


class Failed(Ended):
    pass


class Skipped(Ended):
    status = "skipped"


class OutOfMemory(Ended):
    status = "out_of_memory"


class OutOfTime(Ended):
    status = "out_of_time"


@dataclass
class Finished:
    returncode: int
    timed_out: bool
    seconds: float
    peak_resident_bytes: int
    stdout: str
    stderr: str

    @property
    def output(self):
        return self.stdout + self.stderr

    def check(self, program, **figures):
        """Raises the exception for the program's exit status."""
        if self.timed_out:
            raise OutOfTime(f"{program} was ended after {self.seconds:.0f} s", **figures)
        if self.returncode != 0 and OUT_OF_MEMORY.search(self.output):
            raise OutOfMemory(f"{program}: {last_line(self.output, OUT_OF_MEMORY)}", **figures)
        if self.returncode != 0:
            raise Failed(f"{program} ended with {self.returncode}: {last_line(self.output)}", **figures)


def last_line(output, pattern=re.compile(r"\S")):
    lines = [line.strip() for line in output.splitlines() if pattern.search(line)]
    return lines[-1][-500:] if lines else "no output"


def die_with_parent():
    """Runs in a child before exec: the kernel sends SIGKILL to the child when this process ends."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Process:
    """A program in its own process group; its output goes to `log`.out and `log`.err."""

    def __init__(self, argv, log, environment=None, stdin=None):
        log = pathlib.Path(log)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.out, self.err = log.with_name(log.name + ".out"), log.with_name(log.name + ".err")
        self.began = time.monotonic()
        self.usage = None
        self.returncode = None
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen([str(word) for word in argv], stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err,
                                            env={**os.environ, **(environment or {})}, start_new_session=True,
                                            preexec_fn=die_with_parent)

    def poll(self):
        if self.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.returncode, self.usage = os.waitstatus_to_exitcode(status), usage
                self.process.returncode = self.returncode
                self.signal(signal.SIGKILL)  # child processes that the program left
        return self.returncode is not None

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def wait(self, limit_s):
        """True when it ended within `limit_s` seconds."""
        end, pause = time.monotonic() + limit_s, 0.005
        while not self.poll():
            if time.monotonic() >= end:
                return False
            time.sleep(min(pause, max(0, end - time.monotonic())))
            pause = min(0.1, pause * 1.3)
        return True

    def end(self, grace=GRACE_SECONDS):
        """SIGTERM, which lets xffl-train finish its step and report; then SIGKILL."""
        self.signal(signal.SIGTERM)
        if not self.wait(grace):
            self.signal(signal.SIGKILL)
            self.wait(GRACE_SECONDS)

    def finish(self, limit_s):
        """Waits at most `limit_s` seconds, including the grace period before SIGKILL."""
        grace = min(GRACE_SECONDS, limit_s / 4)
        timed_out = not self.wait(limit_s - grace)
        if timed_out:
            self.end(grace)
        seconds = time.monotonic() - self.began
        resident = self.usage.ru_maxrss * 1024 if self.usage else 0
        texts = [path.read_text(errors="replace") for path in (self.out, self.err)]
        return Finished(self.returncode if self.returncode is not None else -9, timed_out, seconds, resident, *texts)
