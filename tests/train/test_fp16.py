"""fp16: results are near float32; overflows skip a step; also with groups, adapters and a restart."""

import json
import time

import pytest

import harness

GROUPS = dict(count=2, interval=1, exchange="weights", weighting="equal",
              outer=dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99, epsilon=1e-8))
ADAPTER = dict(rank=4, alpha=8.0, dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"])


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fp16")
    base_hash = harness.make_model(folder / "base", **harness.variants()["everything"])
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(24))
    # The gradient of one target's logits, times the first scale, is above what fp16 holds.
    few = harness.write_tokens(folder / "few.tokens", [[5, 17]])

    def job(name, train=(tokens,), **changes):
        return harness.make_job(folder / name, folder / "base", base_hash, tokens, [("it", tokens)],
                                **{**dict(precision="fp16", steps=4, train_paths=[str(path) for path in train]), **changes})

    return tokens, few, job


@pytest.mark.parametrize("changes", [dict(), dict(lora=ADAPTER), dict(groups=GROUPS)], ids=["alone", "lora", "groups"])
def test_stays_near_float32(setting, changes):
    _, _, job = setting
    ranks = 2 if "groups" in changes else 1
    name = "near" + "".join(changes)
    found, wide = harness.train(job(name, **changes), ranks), harness.train(job(name + "32", precision="fp32", **changes), ranks)
    assert found.losses != wide.losses
    for mine, theirs in zip(found.losses, wide.losses, strict=True):
        assert harness.relative(mine, theirs) < 2e-3
    assert all(m["grad_norm"] for m in found.metrics), "no step was skipped"


def test_unscales_then_clips_then_steps(setting):
    """AdamW's step depends on the gradients' scale only where epsilon exceeds them; reference: float32."""
    _, _, job = setting
    large = dict(epsilon=1.0, learning_rate=5.0, max_grad_norm=0.5, steps=6)
    found, wide = harness.train(job("unscaled", **large)), harness.train(job("unscaled32", precision="fp32", **large))
    assert wide.losses[0] - wide.losses[-1] > 0.05, "else nothing was tested"
    for mine, theirs in zip(found.metrics, wide.metrics, strict=True):
        assert harness.relative(mine["grad_norm"], theirs["grad_norm"]) < 2e-2 and theirs["grad_norm"] > 0.5
        assert harness.relative(mine["loss"], theirs["loss"]) < 2e-3


def test_the_proximal_term_is_scaled_like_the_loss(setting):
    _, _, job = setting
    held = dict(proximal=20.0, learning_rate=5e-3, steps=12)
    found, wide = harness.train(job("held", **held)), harness.train(job("held32", precision="fp32", **held))
    free = harness.train(job("free32", precision="fp32", **held | dict(proximal=0.0)))
    assert harness.relative(free.losses[-1], wide.losses[-1]) > 2e-2, "the term should matter"
    for mine, theirs in zip(found.losses, wide.losses, strict=True):
        assert harness.relative(mine, theirs) < 5e-3


def test_an_overflow_skips_a_step(setting):
    _, few, job = setting
    found = harness.train(job("overflow", train=[few], learning_rate=1e-2))
    skipped = [m["grad_norm"] is None for m in found.metrics]
    assert skipped[0] and not skipped[-1], "the scale was halved until it fitted"
    first = skipped.index(False)
    assert len(set(found.losses[:first + 1])) == 1 and found.losses[-1] < found.losses[0]
    # A skipped step does not count for the weight of the update: a step has 8 times the one sequence, with one target.
    good = skipped.count(False)
    assert [m["tokens"] for m in found.metrics] == [0 if left_out else 8 for left_out in skipped]
    assert (found.report["steps"], found.report["samples"], found.report["tokens"]) == (4, 8 * good, 8 * good)
    limited = harness.train(job("limited", train=[few], learning_rate=1e-2, max_tokens=1))
    assert (limited.report["steps"], limited.report["tokens"]) == (first + 1, 8)


def test_a_job_with_skipped_steps_only_writes_no_update(setting):
    _, few, job = setting
    found = harness.train(job("nothing", train=[few], steps=1), check=False)
    assert found.codes == [9] and "overflowed fp16: nothing was trained" in found.output[0]
    assert found.report is None and not (found.folder / "update").exists()


@pytest.mark.parametrize("exchange", ["weights", "gradients"])
def test_one_group_overflows(setting, exchange):
    tokens, few, job = setting
    found = harness.train(job("one-" + exchange, train=[tokens, few], groups=GROUPS | dict(exchange=exchange), steps=6), 2)
    skipped = [m["grad_norm"] is None for m in found.metrics]
    assert skipped[0] and not skipped[-1]
    assert found.report["tokens"] == sum(m["tokens"] for m in found.metrics)
    good, left_out = skipped.count(False), skipped.count(True)
    if exchange == "gradients":  # one model: all groups skip the step
        assert found.report["samples"] == 2 * 8 * good and found.metrics[0]["tokens"] == 0
    else:
        assert found.report["samples"] == 2 * 8 * good + 8 * left_out and found.metrics[0]["tokens"] > 0


def test_a_group_that_skipped_its_step_has_no_weight(setting):
    tokens, few, job = setting
    found = harness.train(job("weighed", train=[tokens, few], groups=GROUPS | dict(weighting="tokens"), steps=1), 2)
    alone = harness.train(job("weighed-alone", steps=1))
    assert found.metrics[0]["grad_norm"] is None and alone.metrics[0]["grad_norm"]
    assert found.report["update_sha256"] == alone.report["update_sha256"]
    assert found.report["tokens"] == alone.report["tokens"] and found.report["samples"] == 8


def test_a_killed_job_resumes_with_its_loss_scale_and_dropout(setting):
    tokens, few, job = setting
    many = dict(train=[few, tokens], steps=150, batch_size=2, micro_batch_size=1, lora=ADAPTER | dict(dropout=0.3))
    whole = harness.train(job("whole", **many))
    path = job("killed", **many, checkpoint_interval=4)
    rank, metrics = harness.start_ranks(path)[0], path.parent / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < 10:
        assert time.monotonic() < deadline and rank.poll() is None
        time.sleep(0.002)
    rank.kill()
    rank.communicate()
    state = json.loads(max((path.parent / "state").glob("step-????????")).joinpath("state.json").read_text())
    assert state["counts"][0][0] > 0
    found = harness.train(path)
    assert any("resumed from a checkpoint" in output for output in found.output)
    assert found.report["update_sha256"] == whole.report["update_sha256"] and found.losses == whole.losses


def test_adapters_in_hybrid_shards(setting):
    """A float32 adapter's gradient is summed within groups first; same tolerance as without an adapter."""
    _, _, job = setting
    kinds = dict(precision="fp32", lora=ADAPTER, micro_batch_size=8)
    expected = harness.train(job("flat", **kinds), 4)
    for mode in ("hybrid", "hybrid_zero2"):
        found = harness.train(job(mode, **kinds, sharding=mode, shard_group_size=2), 4)
        for mine, theirs in zip(found.losses, expected.losses, strict=True):
            assert harness.relative(mine, theirs) < 1e-6
