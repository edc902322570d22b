"""The output of a job: HF folders, deltas, the report."""

import hashlib
import json
import os

import pytest
import torch
from safetensors.torch import load_file

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates")
    sequences = harness.make_sequences(16, seed=3)
    return folder, sequences, harness.write_tokens(folder / "t.tokens", sequences)


def tensors(folder):
    result = {}
    for path in folder.glob("*.safetensors"):
        result |= load_file(path)
    return result


@pytest.mark.parametrize("name", ["plain", "tied", "everything"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_update_loads_in_transformers(setting, name, dtype):
    folder, sequences, tokens = setting
    base = folder / f"base-{name}-{dtype}"
    base_hash = harness.make_model(base, **harness.variants()[name])
    (base / "tokenizer.json").write_text("{}")
    base_hash = harness.write_manifest(base)
    job = harness.make_job(folder / f"{name}-{dtype}", base, base_hash, tokens, [("it", tokens)], update_dtype=dtype)
    outcome = harness.train(job)
    update = job.parent / "update"
    model = harness.load(update, dtype="auto")
    assert model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    count, nll, _ = harness.hf_evaluate(model.float(), sequences)
    assert harness.relative(harness.evaluate(update, tokens)["nll"], nll) < 2e-6
    assert outcome.report["validation"][0]["tokens"] == count
    tolerance = 1e-6 if dtype == "fp32" else 5e-3
    assert harness.relative(outcome.report["validation"][0]["nll_after"], nll) < tolerance
    assert sorted(tensors(update)) == sorted(tensors(base))
    assert (update / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_delta_plus_base_is_the_weights(setting, dtype):
    folder, _, tokens = setting
    base = folder / f"delta-base-{dtype}"
    base_hash = harness.make_model(base, dtype=torch.bfloat16)
    weights = harness.train(harness.make_job(folder / f"w-{dtype}", base, base_hash, tokens))
    delta = harness.train(harness.make_job(folder / f"d-{dtype}", base, base_hash, tokens, update_kind="delta",
                                           update_dtype=dtype))
    given, trained, added = (tensors(path) for path in (base, weights.folder / "update", delta.folder / "update"))
    assert sorted(given) == sorted(added)
    for name, value in trained.items():
        difference = value.double() - given[name].double()
        spacing = {"fp32": 2.0 ** -24, "bf16": 2.0 ** -8}[dtype]
        assert torch.all((added[name].double() - difference).abs() <= spacing * difference.abs() + 1e-30), name
        assert (difference != 0).any()


def test_the_report_matches_the_training(setting):
    folder, sequences, tokens = setting
    base = folder / "report-base"
    base_hash = harness.make_model(base)
    job = harness.make_job(folder / "report", base, base_hash, tokens, [("it", tokens)], steps=4, batch_size=16)
    outcome = harness.train(job, SLURM_JOB_ID="77", SLURM_RESTART_COUNT="2")
    report, manifest = outcome.report, json.loads((job.parent / "update" / "manifest.json").read_text())
    assert report["key"] == json.loads(job.read_text())["key"]
    assert report["base_model_sha256"] == base_hash
    assert report["steps"] == 4 and report["samples"] == 64
    assert report["tokens"] == 4 * sum(len(ids) - 1 for ids in sequences)
    assert report["train_loss"] == pytest.approx(sum(outcome.losses) / 4)
    assert report["train_loss_last"] == outcome.losses[-1]
    assert report["validation"][0]["nll_before"] == pytest.approx(outcome.losses[0], rel=1e-6)
    assert report["scheduler_job_id"] == "77" and report["restarts"] == 2
    lines = [f"{f['sha256']}  {f['size_bytes']}  {f['name']}\n" for f in manifest["files"]]
    assert report["update_sha256"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    for file in manifest["files"]:
        data = (job.parent / "update" / file["name"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file["sha256"] and len(data) == file["size_bytes"]
    assert not (job.parent / "update.tmp").exists()


def test_the_report_identifies_data_program_and_nodes(setting):
    folder, sequences, tokens = setting
    base = folder / "identity-base"
    base_hash = harness.make_model(base)
    other = harness.write_tokens(folder / "other.tokens", sequences[:4])
    # The shard for training and validation counts once.
    job = harness.make_job(folder / "identity", base, base_hash, tokens, [("it", other), ("en", tokens)], steps=2)
    report = harness.train(job, world_size=2).report
    sums = "".join(hashlib.sha256(path.read_bytes()).hexdigest() + "\n" for path in (tokens, other))
    assert report["data_sha256"] == hashlib.sha256(sums.encode()).hexdigest()
    assert report["data_files"] == 2
    assert report["data_bytes"] == tokens.stat().st_size + other.stat().st_size
    assert report["program_sha256"] == hashlib.sha256((harness.BIN / "xffl-train").read_bytes()).hexdigest()
    assert report["nodes"] == 1
    first_of_its_machine = ("env", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", harness.BIN / "xffl-train", "--device", harness.DEVICE,
                            "--threads", 3)
    job = harness.make_job(folder / "machines", base, base_hash, tokens, steps=1)
    report = harness.train(job, world_size=2, program=first_of_its_machine).report
    assert report["nodes"] == 2 and report["environment"]["threads"] == 3


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_requeued_finished_job_returns_its_report(setting, world_size):
    folder, _, tokens = setting
    base = folder / f"again-base{world_size}"
    base_hash = harness.make_model(base)
    job = harness.make_job(folder / f"again{world_size}", base, base_hash, tokens)
    harness.train(job, world_size)
    before = (job.parent / "report.json").read_bytes()
    assert "already complete" in harness.train(job, world_size).output[0]
    assert (job.parent / "report.json").read_bytes() == before


def test_evaluate_only(setting):
    folder, _, tokens = setting
    base = folder / "only-base"
    base_hash = harness.make_model(base)
    job = harness.make_job(folder / "only", base, base_hash, tokens, [("it", tokens)], steps=0)
    outcome = harness.train(job)
    assert not (job.parent / "update").exists()
    assert outcome.report["update_sha256"] == "" and outcome.report["steps"] == 0
    validation = outcome.report["validation"][0]
    assert validation["nll_before"] == validation["nll_after"]
    assert validation["nll_after"] == pytest.approx(harness.evaluate(base, tokens)["nll"], rel=1e-9)


def test_validation_samples_limits_the_set(setting):
    folder, sequences, tokens = setting
    base = folder / "limit-base"
    base_hash = harness.make_model(base)
    job = harness.make_job(folder / "limit", base, base_hash, tokens, [("it", tokens)], steps=0, validation_samples=3)
    assert harness.train(job).report["validation"][0]["tokens"] == sum(len(ids) - 1 for ids in sequences[:3])


def test_a_benchmark_takes_the_same_steps_and_writes_no_update(setting):
    folder, _, tokens = setting
    base = folder / "benchmark-base"
    base_hash = harness.make_model(base)
    whole = harness.train(harness.make_job(folder / "whole", base, base_hash, tokens))
    job = harness.make_job(folder / "benchmark", base, "0" * 64, tokens)
    harness.run([harness.BIN / "xffl-train", "--benchmark", "--job", job], env={**os.environ, "OMP_NUM_THREADS": "1"})
    measured = harness.Outcome(job.parent, [0], "")
    assert measured.losses == whole.losses
    assert measured.report["steps"] == 5 and measured.report["update_sha256"] == ""
    assert not (job.parent / "update").exists()
