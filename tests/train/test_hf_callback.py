"""A Trainer of transformers with the callback of configs/trainers/xffl_hf.py does a job as xffl-train does it."""

import pathlib
import shutil
import signal
import sys
import time

import pytest
import safetensors.torch
import torch
import transformers

import harness

TRAINERS = pathlib.Path(__file__).parents[2] / "configs/trainers"
sys.path.insert(0, str(TRAINERS))
import xffl_hf  # noqa: E402
import xffl_job  # noqa: E402

PROGRAM = (sys.executable, TRAINERS / "hf_callback.py")


@pytest.fixture
def setting(tmp_path):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(30))

    def job(name, **changes):
        return harness.make_job(tmp_path / name, tmp_path / "base", base_hash, tokens,
                                **{**dict(steps=6, first_step=2, weight_decay=0.1, validation=[("it", tokens)], state_path="../state",
                                          schedule=dict(kind="linear", warmup_steps=3, total_steps=10, min_ratio=0.1)), **changes})

    return job


def run(job, world_size=1, program=PROGRAM):
    ranks = harness.start_ranks(job, world_size, program=program)
    output = harness.outputs(ranks, 300)
    return harness.Outcome(job.parent, [rank.returncode for rank in ranks], output)


def stopped(job, world_size=1):
    """Runs a job of many steps; the last rank gets the signal after the first step."""
    ranks = harness.start_ranks(job, world_size, program=PROGRAM)
    try:
        deadline = time.monotonic() + 200
        while not (job.parent / "metrics.jsonl").exists() and time.monotonic() < deadline and not any(r.poll() for r in ranks):
            time.sleep(0.05)
        ranks[-1].send_signal(signal.SIGUSR1)
        output = harness.outputs(ranks, 200)
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world_size, output
    return harness.Outcome(job.parent, [0] * world_size, output)


def update(folder):
    return safetensors.torch.load_file(folder / "update/model.safetensors")


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_job_gives_the_result_of_xffl_train(setting, world_size):
    ours, found = harness.train(setting("ours", state_path="state")), run(setting("theirs"), world_size)
    assert found.codes == [0] * world_size, found.output
    for mine, theirs in zip(found.metrics, ours.metrics, strict=True):
        assert mine["step"] == theirs["step"] and mine["lr"] == pytest.approx(theirs["lr"], rel=1e-12)
        assert harness.relative(mine["loss"], theirs["loss"]) < 1e-4
        assert harness.relative(mine["grad_norm"], theirs["grad_norm"]) < 1e-3
    for key in ("key", "base_model_sha256", "steps", "stopped_early", "samples", "tokens", "data_sha256"):
        assert found.report[key] == ours.report[key]
    for name in ("nll_before", "nll_after"):
        assert harness.relative(found.report["validation"][0][name], ours.report["validation"][0][name]) < 1e-4
    assert found.report["world_size"] == world_size
    for name, value in update(ours.folder).items():
        assert torch.allclose(value, update(found.folder)[name], atol=1e-4), name


# The ranks' program, which fails where threads of gloo still run when it writes its report.
WITHOUT_THREADS = f"""
import os, sys, time
sys.path.insert(0, {str(TRAINERS)!r})
import hf_callback, xffl_job
finish = xffl_job.Job.finish

def threads():
    return [open(f"/proc/self/task/{{task}}/comm").read() for task in os.listdir("/proc/self/task")]

def finish_without_threads(*arguments, **named):
    deadline = time.monotonic() + 10
    while any("gloo" in name for name in threads()):
        if time.monotonic() > deadline:
            sys.exit(f"these threads are left: {{threads()}}")
        time.sleep(0.01)
    finish(*arguments, **named)

xffl_job.Job.finish = finish_without_threads
xffl_job.main_of(hf_callback.train, honoured=["on_stop"])
"""


def test_no_thread_of_the_process_group_outlives_the_training(setting, tmp_path):
    (tmp_path / "program.py").write_text(WITHOUT_THREADS)
    found = run(setting("job", steps=1), 2, (sys.executable, tmp_path / "program.py"))
    assert found.codes == [0, 0] and found.report["steps"] == 1, found.output


def test_a_job_without_steps_measures(setting):
    found = run(setting("job", steps=0))
    assert found.codes == [0] and found.report["update_sha256"] == "" and found.report["steps"] == 0, found.output
    assert found.report["validation"][0]["nll_before"] == found.report["validation"][0]["nll_after"] > 0


def test_a_signal_ends_with_the_update_of_the_completed_steps(setting):
    job = setting("job", steps=100000)
    found = stopped(job, 2)
    assert found.report["stopped_early"] is True
    harness.expect_measured_before(found.report, job)
    assert 1 <= found.report["steps"] == len(found.metrics) < 100000 and update(found.folder)
    assert found.report["samples"] == 8 * found.report["steps"]
    assert found.report["tokens"] == sum(m["tokens"] for m in found.metrics)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_later_attempt_continues_from_the_checkpoint_of_a_signal(setting, world_size):
    steps = 60
    whole = run(setting("whole", steps=steps, state_path="state"), world_size)
    first = stopped(setting("first", steps=steps, on_stop="checkpoint"), world_size)
    done = first.report["steps"]
    assert first.report["stopped_early"] is True and first.report["update_sha256"] == "" and not (first.folder / "update").exists()
    assert 1 <= done < steps
    second = run(setting("second", steps=steps, on_stop="checkpoint"), world_size)
    assert second.codes == [0] * world_size, second.output
    assert [m["step"] for m in second.metrics] == list(range(2 + done + 1, 2 + steps + 1))
    for key in ("steps", "samples", "tokens", "stopped_early"):
        assert second.report[key] == whole.report[key]
    for key in ("train_loss", "train_loss_last"):
        assert harness.relative(second.report[key], whole.report[key]) < 1e-5
    assert second.report["validation"][0]["nll_before"] == whole.report["validation"][0]["nll_before"]
    for name, value in update(whole.folder).items():
        assert torch.allclose(value, update(second.folder)[name], atol=1e-6), name


def test_only_complete_checkpoints_of_the_same_work_are_taken(setting):
    assert run(setting("first", checkpoint_interval=2, keep_checkpoints=2)).codes == [0]
    job = xffl_job.Job(setting("same", checkpoint_interval=2, keep_checkpoints=2))
    found = xffl_hf.last_checkpoint(job)
    assert found.endswith("/checkpoint-6")
    assert sorted(path.name for path in xffl_hf.state_folder(job).glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    (pathlib.Path(found) / xffl_hf.MARK).unlink()  # its writer was killed
    assert xffl_hf.last_checkpoint(job).endswith("/checkpoint-4")
    other = setting("other", checkpoint_interval=2, keep_checkpoints=2, learning_rate=2e-3)
    assert xffl_hf.last_checkpoint(xffl_job.Job(other)) is None
    shutil.rmtree(xffl_hf.state_folder(job))
    assert xffl_hf.last_checkpoint(job) is None


def test_a_checkpoint_is_complete_after_all_ranks_have_written(setting):
    job = xffl_job.Job(setting("job"))
    mark, found = xffl_hf.state_folder(job) / "checkpoint-2" / xffl_hf.MARK, []
    mark.parent.mkdir(parents=True)
    job.sum = lambda value: found.append(mark.exists())  # as a collective call, it waits for the other ranks
    xffl_hf.JobCallback(job).on_save(None, transformers.TrainerState(global_step=2), None)
    assert found == [False] and mark.exists()


def test_a_batch_that_ranks_cannot_share_is_refused(setting, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(xffl_job.JobError, match="9 sequences cannot be shared equally among 2 ranks"):
        xffl_hf.arguments(xffl_job.Job(setting("job", batch_size=9)))
