"""Rounds whose length is in epochs: each sequence once an epoch, on one rank and several, and across a restart."""

import json

import pytest

import harness

SEQUENCES = [[7] * (2 + i) for i in range(23)]  # of distinct lengths
TARGETS = sum(len(ids) - 1 for ids in SEQUENCES)


def job_of(tmp_path, name, epochs, number=1, rounds=1, **changes):
    base = tmp_path / "base"
    if not base.exists():
        (tmp_path / "hash").write_text(harness.make_model(base))
        harness.write_tokens(tmp_path / "t.tokens", SEQUENCES)
    key = dict(project="p", run="0001", round=number, facility="alba", attempt=1, nonce=harness.NONCE)
    job = harness.make_job(tmp_path / name, base, (tmp_path / "hash").read_text(), tmp_path / "t.tokens", batch_size=6, micro_batch_size=2,
                           key=key, steps=1_000_000_000, **changes)
    document = json.loads(job.read_text())
    document["training"].update(epochs=epochs, total_rounds=rounds)
    job.write_text(json.dumps(document))
    return job


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_takes_each_sequence_once(tmp_path, world_size):
    found = harness.train(job_of(tmp_path, "job", 1.0), world_size)
    assert (found.report["steps"], found.report["samples"], found.report["tokens"]) == (4, 23, TARGETS)
    assert not found.report["stopped_early"]
    assert [metric["job_step"] for metric in found.metrics] == [1, 2, 3, 4] and found.metrics[0]["job_steps"] == 4


def test_fractions_of_an_epoch_over_rounds(tmp_path):
    """Three rounds of a third: 8, 7 and 8 sequences; the learning rate's schedule and the steps continue."""
    schedule = dict(kind="linear", warmup_steps=0, total_steps=0, min_ratio=0.0)
    found = [harness.train(job_of(tmp_path, f"round{number}", 1 / 3, number, 3, schedule=schedule)) for number in (1, 2, 3)]
    assert [each.report["samples"] for each in found] == [8, 7, 8]
    assert sum(each.report["tokens"] for each in found) == TARGETS
    steps = [metric["step"] for each in found for metric in each.metrics]
    assert steps == [1, 2, 3, 4, 5, 6]
    rates = [metric["lr"] for each in found for metric in each.metrics]
    assert rates == pytest.approx([1e-3 * (6 - step) / 6 for step in range(6)])


def test_a_restart_takes_the_rest(tmp_path):
    """The job is killed at step 3, and goes on from step 2 on another number of ranks."""
    job = job_of(tmp_path, "killed", 2.0, checkpoint_interval=1)
    harness.kill_at(3, job, world_size=2)
    resumed = harness.train(job, 1)
    assert "resumed from a checkpoint" in resumed.output[0]
    assert (resumed.report["steps"], resumed.report["samples"], resumed.report["tokens"]) == (8, 46, 2 * TARGETS)


def test_too_few_sequences_for_a_round(tmp_path):
    found = harness.train(job_of(tmp_path, "job", 0.01), check=False)
    assert found.codes != [0] and "training.epochs 0.01 of 23 training sequences gives round 1 no sequence" in found.output[0]
