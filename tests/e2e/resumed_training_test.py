"""policy.on_walltime: resume with the built-in trainer: warned in the middle, twice, a facility ends with the same bits.

    resumed_training_test.py BIN_FOLDER SOURCE_FOLDER
"""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from lab import BIN, encode, make_model, run

STEPS = 600


def make_project(folder):
    make_model(folder)
    for facility, seed in (("alba", 1), ("brno", 2)):
        encode(folder, facility, seed, 64)
    (folder / "xffl.yaml").write_text(f"""
project: resumed
model: model
rounds: 1
training: {{steps_per_round: {STEPS}, batch_size: 8, micro_batch_size: 8, learning_rate: 1e-2}}
policy: {{on_missing: fail, max_attempts: 1, poll_interval: 50ms, on_walltime: resume}}
facilities:
  alba: {{workdir: work, environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: alba.tokens}}}}
  brno: {{workdir: work, environment: {{OMP_NUM_THREADS: "1"}}, data: {{train: brno.tokens}}}}
""")


def wait_for(what, condition):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
    return found


def trainer_of(attempt):
    """The process of xffl-train that works on alba's attempt."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"xffl-train") and any(str(attempt).encode() in word for word in words[1:]):
            return int(path.parent.name)
    return None


def warn(folder, number):
    """SIGUSR1, as ahead of a walltime, once the attempt has done some steps."""
    attempt = wait_for(f"attempt {number}", lambda: next(folder.glob(f"work/resumed/*/alba/r0001/a{number}"), None))
    metrics = attempt / "out/metrics.jsonl"
    wait_for("steps", lambda: metrics.exists() and metrics.read_text().count("\n") >= 20)
    os.kill(wait_for("the trainer", lambda: trainer_of(attempt)), signal.SIGUSR1)


def main():
    with tempfile.TemporaryDirectory() as name:
        quiet, warned = pathlib.Path(name) / "quiet", pathlib.Path(name) / "warned"
        for folder in (quiet, warned):
            folder.mkdir()
            make_project(folder)
        run(BIN / "xffl", "run", "-p", quiet)
        coordinator = subprocess.Popen([BIN / "xffl", "run", "-p", warned], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for number in (1, 2):
                warn(warned, number)
            output = coordinator.communicate(timeout=200)[0]
        finally:
            coordinator.kill()
        assert coordinator.returncode == 0, output
        lines = run(BIN / "xffl", "inspect", warned / "runs/0001/journal.db", "--json").splitlines()
        events = [json.loads(line) for line in lines]
        stops = [e["payload"] for e in events if e["kind"] == "attempt_failed"]
        assert len(stops) == 2 and all("to be continued" in s["reason"] and not s["charged"] for s in stops), stops
        assert 20 <= stops[0]["steps"] < stops[1]["steps"] < STEPS, stops
        report = json.loads((warned / "runs/0001/r0001/alba/report.json").read_text())
        assert report["steps"] == STEPS and not report["stopped_early"], report
        models = [(folder / "runs/0001/CURRENT/model.safetensors").read_bytes() for folder in (quiet, warned)]
        assert models[0] == models[1], "another model than without the warnings"
    print("ok")


main()
