"""The example trainer in Python implements the contract of docs/reference/job_json.md like xffl-train."""

import pathlib
import sys

import pytest

import harness

EXAMPLE = (sys.executable, pathlib.Path(__file__).parents[2] / "configs/trainers/hf_trainer.py")


@pytest.fixture
def setting(tmp_path):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(8))

    def job(name, **changes):
        return harness.make_job(tmp_path / name, tmp_path / "base", base_hash, tokens, [("it", tokens)],
                                **{**dict(steps=3, schedule=dict(kind="linear", warmup_steps=2, total_steps=4, min_ratio=0.1)), **changes})

    return job


def run(job):
    rank = harness.start_ranks(job, program=EXAMPLE)[0]
    output = rank.communicate(timeout=300)[0]
    return harness.Outcome(job.parent, [rank.returncode], [output])


def test_a_job_gives_the_result_of_xffl_train(setting):
    """All sequences in each step: their order does not matter."""
    found, ours = run(setting("example")), harness.train(setting("ours"))
    assert found.codes == [0], found.output
    for mine, theirs in zip(found.metrics, ours.metrics, strict=True):
        assert mine["step"] == theirs["step"] and mine["lr"] == pytest.approx(theirs["lr"], rel=1e-12)
        assert harness.relative(mine["loss"], theirs["loss"]) < 1e-4
    optional = {"samples_per_second", "tokens_per_second_per_rank", "startup_seconds", "evaluation_seconds", "environment", "train_accuracy",
                "train_accuracy_last"}
    assert found.report.keys() == ours.report.keys() - optional
    for key in ("key", "base_model_sha256", "steps", "stopped_early", "samples", "tokens", "nodes",
                "data_files", "data_bytes", "data_sha256"):
        assert found.report[key] == ours.report[key]
    found = run(setting("measure", steps=0))
    assert found.codes == [0] and found.report["update_sha256"] == "" and found.report["steps"] == 0, found.output
    assert found.report["validation"][0]["nll_before"] == found.report["validation"][0]["nll_after"]


def test_unsupported_settings_are_rejected(setting):
    found = run(setting("refused", document_mask=True))
    assert found.codes == [1] and "training.document_mask" in found.output[0] and found.report is None
