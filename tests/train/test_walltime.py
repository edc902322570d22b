"""Signals before the end of the walltime: a job saves its steps with true counts; on one rank and on several."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import harness

STEPS = 1000000
FINISH = [signal.SIGUSR1, signal.SIGTERM]
SLOW = [[i % 97 for i in range(250)]] * 1000  # seconds of validation


@pytest.fixture
def setting(tmp_path):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(30))
    return tmp_path, tmp_path / "base", base_hash, tokens


def read_until(stream, text, lines):
    for line in stream:
        lines.append(line)
        if text in line:
            return
    raise AssertionError(f"the output ended without '{text}': {lines}")


def signal_when(job, world_size, numbers, rank, after_line=None, steps=0, seconds=20, **options):
    """Sends `numbers` to one rank after rank 0 logged a text or did some steps; waits at most `seconds` for the end."""
    ranks = harness.start_ranks(job, world_size, **options)
    lines = []
    killer = threading.Timer(120, lambda: [r.kill() for r in ranks])
    killer.start()
    try:
        if after_line:
            read_until(ranks[0].stdout, after_line, lines)
        metrics = job.parent / "metrics.jsonl"
        while steps and (not metrics.exists() or metrics.read_text().count("\n") < steps):
            assert all(r.poll() is None for r in ranks), ranks[0].communicate()[0]
            time.sleep(0.02)
        for number in numbers:
            ranks[rank].send_signal(number)
        output = harness.outputs(ranks, seconds)
    finally:
        killer.cancel()
        for r in ranks:
            r.kill()
    output[0] = "".join(lines) + output[0]
    return harness.Outcome(job.parent, [r.returncode for r in ranks], output)


@pytest.mark.parametrize("number", FINISH)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_signalled_job_saves_its_steps(setting, world_size, number):
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, base_hash, tokens, [("it", tokens)], steps=STEPS)
    outcome = signal_when(job, world_size, [number, number], world_size - 1, steps=3)
    assert outcome.codes == [0] * world_size, outcome.output
    report = outcome.report
    assert report["stopped_early"] is True
    harness.expect_measured_before(report, job)
    assert 3 <= report["steps"] == len(outcome.metrics) < STEPS
    assert report["tokens"] == sum(metric["tokens"] for metric in outcome.metrics)
    assert report["samples"] == 8 * report["steps"]
    harness.load(job.parent / "update")
    # Equals a job with the same number of steps.
    short = harness.train(harness.make_job(folder / "short", base, base_hash, tokens, steps=report["steps"]), world_size)
    assert short.report["stopped_early"] is False
    assert short.report["update_sha256"] == report["update_sha256"]


@pytest.mark.parametrize("number", FINISH)
@pytest.mark.parametrize("world_size", [1, 2])
def test_before_the_first_step_there_is_nothing_to_save(setting, world_size, number):
    folder, base, base_hash, tokens = setting
    slow = harness.write_tokens(folder / "slow.tokens", SLOW)
    job = harness.make_job(folder / "job", base, base_hash, tokens, [("slow", slow)])
    outcome = signal_when(job, world_size, [number], world_size - 1, after_line="job loaded")
    assert outcome.codes == [75] * world_size, outcome.output
    assert "before the first step" in outcome.output[0]
    assert outcome.report is None and not (job.parent / "update").exists()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_signal_in_the_last_validation_skips_the_remaining_sets(setting, world_size):
    folder, base, base_hash, tokens = setting
    slow = harness.write_tokens(folder / "slow.tokens", SLOW)
    sets = [("it", tokens), ("slow", slow)]
    job = harness.make_job(folder / "job", base, base_hash, tokens, sets, steps=2)
    outcome = signal_when(job, world_size, [signal.SIGUSR1], world_size - 1, after_line="set=it  when=after")
    assert outcome.codes == [0] * world_size, outcome.output
    assert outcome.report["steps"] == 2 and outcome.report["stopped_early"] is True
    it, slow = outcome.report["validation"]
    assert it["nll_after"] > 0 and slow["nll_before"] > 0 and slow["nll_after"] == 0
    harness.load(job.parent / "update")


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_interrupt_ends_without_an_update(setting, world_size):
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, base_hash, tokens, steps=STEPS)
    outcome = signal_when(job, world_size, [signal.SIGINT], world_size - 1, steps=3)
    assert outcome.codes == [75] * world_size, outcome.output
    assert outcome.report is None and not (job.parent / "update").exists()
    assert "stopped on request" in outcome.output[0]


def test_a_warning_after_an_interrupt_saves_no_update(setting):
    folder, base, base_hash, tokens = setting
    slow = harness.write_tokens(folder / "slow.tokens", SLOW)
    sets = [("it", tokens), ("slow", slow)]
    job = harness.make_job(folder / "job", base, base_hash, tokens, sets, steps=2)
    outcome = signal_when(job, 1, [signal.SIGINT, signal.SIGTERM], 0, after_line="set=it  when=after")
    assert outcome.codes == [75], outcome.output
    assert outcome.report is None and not (job.parent / "update").exists()


def test_no_handler_interrupts_a_computation(setting):
    """The frame of a handler on a thread's stack damages the heap below LibTorch's compiled kernels (train_command.cc)."""
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, base_hash, tokens, steps=STEPS)
    watched = sum(1 << (number - 1) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))

    def masks(pid, field):
        files = pathlib.Path(f"/proc/{pid}/task").glob("*/status")
        return [int(re.search(rf"^{field}:\s*(\w+)$", file.read_text(), re.M)[1], 16) & watched for file in files]

    rank = harness.start_ranks(job, 1)[0]
    try:
        read_until(rank.stdout, "step 1/", [])
        assert set(masks(rank.pid, "SigCgt")) == {0}
        blocked = sorted(masks(rank.pid, "SigBlk"))
        assert blocked[0] == 0, "the thread that waits for the signals"
        assert len(blocked) > 1 and set(blocked[1:]) == {watched}, blocked
    finally:
        rank.kill()


def test_a_second_interrupt_ends_at_once(setting):
    """Rank 0 cannot agree with a rank that stands still."""
    folder, base, base_hash, tokens = setting
    ranks = harness.start_ranks(harness.make_job(folder / "job", base, base_hash, tokens, steps=STEPS), 2)
    try:
        read_until(ranks[0].stdout, "step 1/", [])
        ranks[1].send_signal(signal.SIGSTOP)
        for _ in range(1000):  # two pending signals of a kind are one
            ranks[0].send_signal(signal.SIGINT)
            time.sleep(0.02)
            if ranks[0].poll() is not None:
                break
        assert ranks[0].returncode == -signal.SIGINT
    finally:
        for rank in ranks:
            rank.kill()


def test_the_python_example_does_the_same(setting):
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, base_hash, tokens, [("it", tokens)], steps=STEPS)
    example = pathlib.Path(__file__).parents[2] / "configs/trainers/hf_trainer.py"
    outcome = signal_when(job, 1, [signal.SIGTERM], 0, steps=3, program=(sys.executable, example))
    assert outcome.codes == [0], outcome.output
    assert outcome.report["version"] == 2 and outcome.report["stopped_early"] is True
    assert 3 <= outcome.report["steps"] == len(outcome.metrics) < STEPS
    harness.expect_measured_before(outcome.report, job)
    assert outcome.report["samples"] == 8 * outcome.report["steps"]
    harness.load(job.parent / "update")


def test_a_rank_in_rendezvous_ends_at_once(setting):
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, base_hash, tokens)
    environment = dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(harness.free_port()))
    rank = subprocess.Popen([harness.BIN / "xffl-train", "--job", job], env={**os.environ, **environment},
                            stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(4)  # the process starts faster and then waits for rank 1
        assert rank.poll() is None
        rank.send_signal(signal.SIGUSR1)
        assert "before the job began" in rank.communicate(timeout=5)[1]
        assert rank.returncode == 75
    finally:
        rank.kill()
