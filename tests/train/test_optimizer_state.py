"""The optimizer state between rounds: rounds that keep it equal one long training."""

import json
import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

import harness

BEGUN = dict(count=1, interval=1, exchange="weights", weighting="equal",
             outer=dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99, epsilon=1e-8))


class Facility:
    """Jobs of several rounds, with the coordinator's folder layout."""

    def __init__(self, folder, base, base_hash, train, validation):
        self.folder, self.train, self.validation = folder, train, validation
        self.base, self.base_hash = base, base_hash

    def state(self, round, attempt=1):
        return f"r{round:04d}-{round:016d}{attempt:016d}"

    def job(self, round, attempt=1, given=None, base=None, steps=4, **changes):
        base = base or (self.base, self.base_hash)
        path = harness.make_job(
            self.folder / f"r{round}a{attempt}", *base, self.train, [("it", self.validation)],
            **{**dict(keep_optimizer=True, optimizer_path=str(self.folder / "optimizer" / (given or "none")), steps=steps,
                      first_step=(round - 1) * steps, batch_size=8, micro_batch_size=8, learning_rate=2e-3,
                      weight_decay=0.1), **changes})
        job = json.loads(path.read_text())
        job["key"].update(round=round, attempt=attempt, nonce=f"{round:016d}{attempt:016d}")
        path.write_text(json.dumps(job))
        return path


@pytest.fixture
def facility(tmp_path):
    base_hash = harness.make_model(tmp_path / "base", **harness.variants()["everything"])
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(21))
    validation = harness.write_tokens(tmp_path / "v.tokens", harness.make_sequences(5, seed=5))
    return Facility(tmp_path, tmp_path / "base", base_hash, tokens, validation)


def updated(job):
    """Makes the update the next round's model: with one facility and fp32 the global model is the update."""
    return job.parent / "update", json.loads((job.parent / "report.json").read_text())["update_sha256"]


def logged(outcome, text):
    return any(text in output for output in outcome.output)


@pytest.mark.parametrize("world_size,sharding", [(1, "none"), (2, "full")])
def test_two_rounds_equal_one_training(facility, world_size, sharding):
    whole = facility.job(9, steps=8, first_step=0, keep_optimizer=False, optimizer_path="")
    expected = harness.train(whole, world_size)
    first = facility.job(1, sharding=sharding)
    harness.train(first, world_size)
    second = facility.job(2, given=facility.state(1), base=updated(first), sharding=sharding)
    found = harness.train(second, world_size)
    assert logged(found, "optimizer state of the previous round loaded  steps=4")
    assert found.losses == expected.losses[4:]
    assert found.report["update_sha256"] == expected.report["update_sha256"]
    fresh = harness.train(facility.job(2, attempt=2, base=updated(first), keep_optimizer=False, optimizer_path=""), world_size)
    assert fresh.report["update_sha256"] != expected.report["update_sha256"], "else there is nothing to keep"


def test_a_round_continues_from_the_accepted_attempt(facility):
    first = facility.job(1)
    harness.train(first)
    once = harness.train(facility.job(2, given=facility.state(1), base=updated(first)))
    assert sorted(p.name for p in (facility.folder / "optimizer").iterdir()) == [facility.state(1), facility.state(2)]
    again = harness.train(facility.job(2, attempt=2, given=facility.state(1), base=updated(first)))
    assert again.report["update_sha256"] == once.report["update_sha256"]
    third = facility.job(3, given=facility.state(2, 2), base=updated(facility.folder / "r2a2" / "job.json"))
    harness.train(third)
    left = sorted(p.name for p in (facility.folder / "optimizer").iterdir())
    assert left == [facility.state(2, 1), facility.state(2, 2), facility.state(3)], "what rounds before the last left is gone"


def test_the_state_loads_with_other_ranks_and_sharding(facility):
    first = facility.job(1, sharding="gradients")
    harness.train(first, 2)
    second = harness.train(facility.job(2, given=facility.state(1), base=updated(first)))
    whole = harness.train(facility.job(2, attempt=2, given=facility.state(1), base=updated(first), sharding="full"), 2)
    assert logged(second, "optimizer state of the previous round loaded") and logged(whole, "optimizer state of the previous round loaded")
    for mine, theirs in zip(second.losses, whole.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-5


@pytest.mark.parametrize("harm,text", [("missing", "state.json"), ("torn", "is damaged"), ("zeros", "is damaged"), ("other_model", "its layout differs"),
                                        ("renamed", "from another attempt"), ("old", "not from the previous round")])
def test_an_unusable_state_is_skipped(facility, harm, text):
    first = facility.job(1)
    harness.train(first)
    base, state, round = updated(first), facility.folder / "optimizer" / facility.state(1), 2
    given = facility.state(1)
    if harm == "missing":
        shutil.rmtree(state)
    if harm in ("torn", "zeros"):
        part = next(state.glob("part-*"))
        size = part.stat().st_size
        os.truncate(part, size - 4 if harm == "torn" else 0)
        if harm == "zeros":
            os.truncate(part, size)
    if harm == "other_model":
        base = facility.folder / "other", harness.make_model(facility.folder / "other", hidden_size=40, num_attention_heads=2,
                                                             num_key_value_heads=2)
    if harm == "renamed":
        given = facility.state(1, 7)
        state.rename(state.parent / given)
    if harm == "old":
        round = 3
    found = harness.train(facility.job(round, given=given, base=base, first_step=4))
    assert logged(found, "optimizer state unusable") and logged(found, text), found.output
    fresh = harness.train(facility.job(round, attempt=2, base=base, first_step=4))
    assert not logged(fresh, "unusable")
    assert found.report["update_sha256"] == fresh.report["update_sha256"]


def test_moments_of_other_adapters_are_skipped(facility):
    def lora(*modules):
        return dict(rank=2, alpha=4.0, dropout=0.0, target_modules=list(modules))

    harness.train(facility.job(1, lora=lora("gate_proj")))
    same = harness.train(facility.job(2, given=facility.state(1), lora=lora("gate_proj")))
    assert logged(same, "optimizer state of the previous round loaded")
    other = harness.train(facility.job(2, attempt=2, given=facility.state(1), lora=lora("up_proj")))
    assert logged(other, "its layout differs"), "matrices of the same shapes"


def test_the_report_follows_the_state(facility):
    """The coordinator may start the next round at the report."""
    killed = harness.train(facility.job(1), check=False, **harness.path_faults(XFFL_KILL_FOR="optimizer/r0001"))
    assert killed.codes == [-signal.SIGKILL] and killed.report is None, killed.output


def test_a_failed_save_does_not_lose_the_update(facility):
    (facility.folder / "optimizer").write_text("in the way")
    outcome = harness.train(facility.job(1), 2)
    assert outcome.report["steps"] == 4 and logged(outcome, "optimizer state not saved")


@pytest.mark.parametrize("outer", [dict(kind="average"), dict(kind="nesterov", learning_rate=0.7), dict(kind="adam", learning_rate=2e-3)],
                         ids=lambda outer: outer["kind"])
def test_groups_save_their_state_and_the_outer_optimizers(facility, outer):
    groups = {**BEGUN, "count": 2, "interval": 4, "weighting": "tokens", "outer": {**BEGUN["outer"], **outer}}
    whole = harness.train(facility.job(9, steps=8, first_step=0, keep_optimizer=False, optimizer_path="", groups=groups), 4)
    first = facility.job(1, groups=groups)
    harness.train(first, 4)
    second = harness.train(facility.job(2, given=facility.state(1), base=updated(first), groups=groups, sharding="full"), 4)
    assert second.losses == whole.losses[4:]
    assert second.report["update_sha256"] == whole.report["update_sha256"]


def test_the_outer_optimizer_begins_at_the_rounds_input_model(facility):
    """With an inner learning rate of 0 and no momentum, the update is that model, not a step from the facility's earlier model."""
    groups = {**BEGUN, "count": 2, "interval": 4, "outer": {**BEGUN["outer"], "kind": "sgd", "learning_rate": 0.5, "momentum": 0.0}}
    harness.train(facility.job(1, groups=groups), 2)
    second = facility.job(2, given=facility.state(1), groups=groups, learning_rate=0.0)
    assert logged(harness.train(second, 2), "optimizer state of the previous round loaded")
    given = load_file(facility.base / "model.safetensors")
    for name, tensor in load_file(second.parent / "update" / "model.safetensors").items():
        assert torch.equal(tensor, given[name]), name


def test_two_facilities_with_kept_state_equal_two_groups(tmp_path):
    """Two rounds of aggregation between facilities equal two exchanges inside one job."""
    base_hash = harness.make_model(tmp_path / "base")
    validation = harness.write_tokens(tmp_path / "v.tokens", harness.make_sequences(5, seed=5))
    facilities = []
    for name, seed, count in (("a", 1, 21), ("b", 2, 16)):
        (tmp_path / name).mkdir()
        tokens = harness.write_tokens(tmp_path / name / "t.tokens", harness.make_sequences(count, seed=seed))
        facilities.append(Facility(tmp_path / name, tmp_path / "base", base_hash, tokens, validation))
    base = (tmp_path / "base", base_hash)
    for round in (1, 2):
        jobs = [f.job(round, given=f.state(1) if round == 2 else None, base=base) for f in facilities]
        tokens = [harness.train(job).report["tokens"] for job in jobs]
        model = tmp_path / f"global{round}"
        harness.run([harness.BIN / "xffl", "aggregate", "--out", model, "--dtype", "fp32", "--weights",
                     ",".join(map(str, tokens)), *(job.parent / "update" for job in jobs)])
        base = (model, harness.write_manifest(model))
    groups = {**BEGUN, "count": 2, "interval": 4, "weighting": "tokens"}
    one = facilities[0].job(9, steps=8, first_step=0, keep_optimizer=False, optimizer_path="", groups=groups,
                            train_paths=[str(f.train) for f in facilities])
    harness.train(one, 2)
    found, expected = load_file(one.parent / "update" / "model.safetensors"), load_file(base[0] / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
