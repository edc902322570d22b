"""Whole jobs in every mode of sharding, against data parallelism in the same world."""

import re

import pytest

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    hashes = {name: harness.make_model(folder / name, **harness.variants()[name]) for name in ("everything", "biased", "qwen3")}
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(40))
    validation = harness.write_tokens(folder / "v.tokens", harness.make_sequences(9, seed=5))
    done = {}

    def train(world_size, base="everything", **changes):
        key = (world_size, base, *sorted(changes.items()))
        if key not in done:
            changes = {**dict(steps=6, batch_size=8, micro_batch_size=8), **changes}
            job = harness.make_job(folder / f"job{len(done)}", folder / base, hashes[base], tokens, [("it", validation)],
                                   **changes)
            done[key] = harness.train(job, world_size)
        return done[key]

    return train


MODES = [dict(sharding="optimizer"), dict(sharding="gradients"), dict(sharding="full"), dict(sharding="full", recompute="full"),
         dict(sharding="none", offload="optimizer"), dict(sharding="gradients", offload="optimizer"),
         dict(sharding="full", offload="parameters", recompute="full")]


def name(mode):
    return "_".join(mode.values())


@pytest.mark.parametrize("base", ["everything", "biased", "qwen3"])
@pytest.mark.parametrize("mode", MODES, ids=name)
def test_same_bits_as_data_parallelism(setting, mode, base):
    expected, found = setting(2, base), setting(2, base, **mode)
    assert found.losses == expected.losses
    assert [m["grad_norm"] for m in found.metrics] == [m["grad_norm"] for m in expected.metrics]
    assert found.report["update_sha256"] == expected.report["update_sha256"]
    assert found.report["validation"] == expected.report["validation"]


@pytest.mark.parametrize("mode", [MODES[2], dict(sharding="none", recompute="full")], ids=name)
def test_same_bits_alone(setting, mode):
    assert setting(1, **mode).report["update_sha256"] == setting(1).report["update_sha256"]


@pytest.mark.parametrize("mode", ["optimizer", "gradients", "full"])
def test_same_bits_on_four_ranks_in_bf16(setting, mode):
    expected, found = setting(4, precision="bf16"), setting(4, precision="bf16", sharding=mode)
    assert found.report["update_sha256"] == expected.report["update_sha256"]
    assert found.losses == expected.losses


@pytest.mark.parametrize("mode", ["hybrid", "hybrid_zero2"])
def test_hybrid_sums_within_groups_first(setting, mode):
    """(a + b) + (c + d) instead of ((a + b) + c) + d: equal up to float32's rounding."""
    expected, found = setting(4), setting(4, sharding=mode, shard_group_size=2)
    for mine, theirs in zip(found.losses, expected.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-6


@pytest.mark.parametrize("mode", ["gradients", "full"])
def test_micro_batches_are_reduced_one_by_one(setting, mode):
    """The sum over ranks of each micro-batch, not of all of them: equal up to float32's rounding."""
    expected, found = setting(2, micro_batch_size=2), setting(2, micro_batch_size=2, sharding=mode)
    for mine, theirs in zip(found.losses, expected.losses, strict=True):
        assert harness.relative(mine, theirs) < 1e-6


@pytest.mark.parametrize("ranks_of_a_node", [1, 2])
def test_a_hybrid_group_is_a_node_by_default(tmp_path, ranks_of_a_node):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(8))
    job = harness.make_job(tmp_path / "job", tmp_path / "base", base_hash, tokens, steps=1, sharding="hybrid")
    outcome = harness.train(job, 2, LOCAL_WORLD_SIZE=str(ranks_of_a_node))
    assert re.search(r"job loaded .*\bshards=(\d+)", outcome.output[0])[1] == str(ranks_of_a_node), outcome.output[0]


def test_a_group_size_that_does_not_divide_the_world_is_rejected(setting, tmp_path):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(4))
    for changes, word in ((dict(sharding="hybrid", shard_group_size=3), "does not divide"),
                          (dict(sharding="full", shard_group_size=1), "shards over all 2 ranks")):
        job = harness.make_job(tmp_path / changes["sharding"], tmp_path / "base", base_hash, tokens, **changes)
        outcome = harness.train(job, 2, check=False)
        assert outcome.report is None and any(word in output for output in outcome.output)
