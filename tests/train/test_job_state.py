"""Checkpoints inside a job: a killed or stopped job resumes with the same bits."""

import json
import os
import signal
import time

import pytest

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    base_hash = harness.make_model(folder / "base", **harness.variants()["everything"])
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(40))
    validation = harness.write_tokens(folder / "v.tokens", harness.make_sequences(9, seed=5))

    def job(name, attempt=1, measured=validation, **changes):
        """Attempts share the checkpoint folder, as in the coordinator's layout."""
        path = harness.make_job(folder / name / f"a{attempt}", folder / "base", base_hash, tokens, measured and [("it", measured)],
                                **{**dict(steps=12, batch_size=8, micro_batch_size=4, state_path="../state",
                                          schedule=dict(kind="cosine", warmup_steps=3, total_steps=30, min_ratio=0.0),
                                          weight_decay=0.1, **harness.SAME_BITS), **changes})
        text = json.loads(path.read_text())
        text["key"]["attempt"] = attempt
        path.write_text(json.dumps(text))
        return path

    return folder, job, harness.train(job("whole"))


def kill_after(job, steps, world_size=1):
    """Sends SIGKILL to all ranks after a number of steps, once a checkpoint exists."""
    ranks = harness.start_ranks(job, world_size)
    metrics, state = job.parent / "metrics.jsonl", job.parent.parent / "state"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") >= steps and list(state.glob("step-????????"))):
        assert time.monotonic() < deadline
        assert all(r.poll() is None for r in ranks), "ended before it could be killed: " + ranks[0].communicate()[0]
        time.sleep(0.005)
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.communicate()


def expect_same(found, whole):
    assert found.report["update_sha256"] == whole.report["update_sha256"]
    for key in ("steps", "samples", "tokens", "train_loss", "train_loss_last", "validation", "stopped_early"):
        assert found.report[key] == whole.report[key], key


MANY = 800 if harness.DEVICE == "cpu" else 200  # enough steps to kill the job before the last one


@pytest.mark.gpu
def test_another_attempt_resumes_a_killed_job(setting):
    folder, job, whole = setting
    many = dict(steps=MANY, checkpoint_interval=5)
    expected = harness.train(job("many", steps=MANY))
    kill_after(job("killed", **many), 12)
    second = harness.train(job("killed", attempt=2, **many))
    assert any("resumed from a checkpoint" in output for output in second.output)
    expect_same(second, expected)
    assert second.losses == expected.losses[-len(second.losses):] and len(second.losses) < MANY
    assert not (folder / "killed" / "state").exists(), "a finished job needs no checkpoint"


def test_a_checkpoint_loads_with_another_size_of_the_validation(setting):
    folder, job, whole = setting
    many = dict(steps=MANY, checkpoint_interval=5)
    kill_after(job("measured", **many), 12)
    second = harness.train(job("measured", attempt=2, validation_samples=1, **many))
    assert any("resumed from a checkpoint" in output for output in second.output)


def test_a_requeued_job_resumes_in_its_own_folder(setting):
    folder, job, whole = setting
    path = job("requeued", steps=800, checkpoint_interval=7)
    kill_after(path, 30)
    again = harness.train(path)
    assert [m["step"] for m in again.metrics] == list(range(1, 801)), "each step once"


def test_a_job_that_is_killed_at_its_report_loses_no_training(setting):
    """The checkpoints go after the report: the same job continues at its last one."""
    folder, job, whole = setting
    path = job("unreported", checkpoint_interval=4, report_path="reports/report.json")
    killed = harness.train(path, check=False, **harness.path_faults(XFFL_KILL_FOR="/reports"))  # the folder is made then
    assert killed.codes == [-signal.SIGKILL] and len(killed.losses) == 12, killed.output
    assert list((folder / "unreported" / "state").glob("step-????????")), killed.output
    harness.train(path)
    report = json.loads((path.parent / "reports" / "report.json").read_text())
    assert report["update_sha256"] == whole.report["update_sha256"]


@pytest.mark.parametrize("first,second", [(dict(), dict(sharding="full")), (dict(sharding="gradients"), dict())],
                         ids=["none_full", "gradients_none"])
def test_a_checkpoint_loads_with_another_sharding(setting, first, second):
    folder, job, whole = setting
    name = "reshard" + "".join(first.values())
    stop = dict(on_stop="checkpoint", steps=100000)
    ranks = harness.start_ranks(job(name, **stop, **first), 2)
    metrics = folder / name / "a1" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 6:
        time.sleep(0.01)
    ranks[1].send_signal(signal.SIGUSR1)
    output = harness.outputs(ranks, 120)
    assert [rank.returncode for rank in ranks] == [0, 0], output
    report = json.loads((folder / name / "a1" / "report.json").read_text())
    assert report["stopped_early"] and report["update_sha256"] == "" and not (folder / name / "a1" / "update").exists()
    done = report["steps"]
    # The remaining steps in another layout, against one uninterrupted training.
    ranks = harness.start_ranks(job(name, attempt=2, **stop, **second), 2)
    metrics = folder / name / "a2" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 6:
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.communicate()
    resumed = [json.loads(line) for line in metrics.read_text().splitlines()[:6]]
    assert resumed[0]["step"] == done + 1
    expected = harness.train(job(name + "-whole", steps=done + 6, schedule=dict(kind="cosine", warmup_steps=3, total_steps=30,
                                                                               min_ratio=0.0)), 2)
    assert [m["loss"] for m in resumed] == expected.losses[-6:]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_stop_while_loading_writes_the_update_of_an_earlier_attempt(setting, world_size):
    """With on_stop update, the steps of a checkpoint make an update."""
    folder, job, _ = setting
    name, many = f"warned{world_size}", dict(steps=100000, checkpoint_interval=5, measured=[])
    kill_after(job(name, **many), 12, world_size)
    warned = harness.path_faults(XFFL_SIGNAL_FOR="base/manifest.json")
    outcome = harness.train(job(name, attempt=2, **many), world_size, **warned)
    report = outcome.report
    assert report["stopped_early"] and report["steps"] >= 10 and report["steps"] % 5 == 0 and outcome.metrics == []
    expected = harness.train(job(name + "-short", steps=report["steps"], measured=[]), world_size)
    for key in ("update_sha256", "samples", "tokens"):
        assert report[key] == expected.report[key], key


def test_a_stop_while_loading_without_a_checkpoint_writes_nothing(setting):
    folder, job, _ = setting
    path = job("nothing", steps=100000, checkpoint_interval=5)
    outcome = harness.train(path, check=False, **harness.path_faults(XFFL_SIGNAL_FOR="base/manifest.json"))
    assert outcome.codes == [75] and "before the first step" in outcome.output[0] and outcome.report is None


def test_a_checkpoint_of_another_job_is_skipped(setting):
    folder, job, whole = setting
    kill_after(job("other", steps=800, checkpoint_interval=1, learning_rate=5e-3), 8)
    outcome = harness.train(job("other", attempt=2))
    assert any("it belongs to another job" in output for output in outcome.output)
    expect_same(outcome, whole)


@pytest.mark.parametrize("harm", ["torn", "zeros", "bit"])
def test_a_damaged_checkpoint_is_skipped(setting, harm):
    folder, job, whole = setting
    name = "damaged-" + harm
    kill_after(job(name, steps=800, checkpoint_interval=4), 20)
    steps = sorted((folder / name / "state").glob("step-????????"))
    # keep_checkpoints is 2; the kill may fall between a new checkpoint and the removal of the oldest.
    assert len(steps) in (2, 3)
    for part in steps[-1].glob("part-*"):
        size = part.stat().st_size
        if harm == "bit":  # of the last number
            with open(part, "r+b") as file:
                file.seek(size - 2)
                byte = file.read(1)
                file.seek(size - 2)
                file.write(bytes([byte[0] ^ 1]))
            continue
        os.truncate(part, size - 4 if harm == "torn" else 0)
        if harm == "zeros":  # a node's crash can leave such a file
            os.truncate(part, size)
    again = harness.start_ranks(job(name, attempt=2, steps=800, checkpoint_interval=4))[0]
    lines = []
    while not lines or "resumed from a checkpoint" not in lines[-1]:
        lines.append(again.stdout.readline())
        assert lines[-1], lines
    again.kill()
    again.communicate()
    assert any("is damaged" in line for line in lines)
    assert f"steps={int(steps[-2].name[5:])}" in lines[-1]


def test_a_stop_before_the_first_step_writes_only_a_report(setting):
    folder, job, whole = setting
    slow = harness.write_tokens(folder / "slow.tokens", [[i % 97 for i in range(250)]] * 1000)  # seconds of validation
    path = job("early", on_stop="checkpoint", measured=slow)
    rank = harness.start_ranks(path)[0]
    while "job loaded" not in rank.stdout.readline():
        assert rank.poll() is None
    rank.send_signal(signal.SIGTERM)
    output = rank.communicate(timeout=60)[0]
    assert rank.returncode == 0, output
    report = json.loads((path.parent / "report.json").read_text())
    assert report["stopped_early"] and report["update_sha256"] == "" and report["steps"] == 0
    assert not list((path.parent.parent / "state").glob("*"))


def test_an_unusable_checkpoint_is_replaced(setting):
    folder, job, whole = setting
    state = folder / "replaced" / "state" / "step-00000004"
    state.mkdir(parents=True)
    (state / "state.json").write_text("{}")
    kill_after(job("replaced", steps=100000, checkpoint_interval=4, keep_checkpoints=100000), 6)
    assert json.loads((state / "state.json").read_text())["counts"], "of this job"


def test_a_full_disk_is_not_filled_further(setting):
    """A file size limit between the sizes of a checkpoint's part and the update simulates the full disk."""
    folder, job, whole = setting
    path = job("full", steps=100000, checkpoint_interval=2)
    left = path.parent.parent / "state" / "step-00000001.a1.tmp"
    left.mkdir(parents=True)  # left by this attempt, which was killed and requeued
    limited = ("bash", "-c", 'trap "" XFSZ; ulimit -f 300; exec "$@"', "limited", harness.BIN / "xffl-train")
    rank = harness.start_ranks(path, program=limited)[0]
    try:
        warnings = 0
        for line in rank.stdout:
            warnings += "checkpoint not saved" in line
            if warnings == 5:
                break
        assert warnings == 5 and len(list((path.parent.parent / "state").iterdir())) <= 1 and not left.exists()
    finally:
        rank.kill()
        rank.communicate()


def test_the_next_attempt_completes_an_interrupted_validation(setting):
    folder, job, whole = setting
    slow = harness.write_tokens(folder / "slow-validation.tokens", [[i % 97 for i in range(250)]] * 300)
    changes = dict(on_stop="checkpoint", measured=slow, steps=3, validation_interval=2)
    first = job("cut", **changes)
    rank = harness.start_ranks(first)[0]
    metrics = first.parent / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert rank.poll() is None
    rank.send_signal(signal.SIGUSR1)
    output = rank.communicate(timeout=60)[0]
    assert json.loads((first.parent / "report.json").read_text())["steps"] == 2, output
    assert "validation" not in metrics.read_text(), "the stop came too late"
    found = harness.train(job("cut", attempt=2, **changes))
    assert [("validation" in m, m["step"]) for m in found.metrics] == [(True, 2), (False, 3)]
