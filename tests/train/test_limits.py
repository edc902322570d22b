"""What ends a training before its steps: tokens, validation that no longer improves; and validation amid it."""

import json

import pytest

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    base_hash = harness.make_model(folder / "base")
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(8))
    sets = [(name, harness.write_tokens(folder / f"{name}.tokens", harness.make_sequences(5, seed=seed)))
            for name, seed in (("it", 5), ("cs", 6))]

    def job(name, sets=sets, **changes):
        return harness.make_job(folder / name, folder / "base", base_hash, tokens, sets,
                                **{**dict(steps=12, batch_size=8, micro_batch_size=8), **changes})

    return folder, job


def steps_of(outcome):
    return [m for m in outcome.metrics if "loss" in m], [m for m in outcome.metrics if "validation" in m]


@pytest.mark.parametrize("world_size", [1, 2])
def test_validation_amid_the_training(setting, world_size):
    folder, job = setting
    outcome = harness.train(job(f"amid{world_size}", validation_interval=5, first_step=100), world_size)
    steps, validations = steps_of(outcome)
    assert [m["step"] for m in steps] == list(range(101, 113))
    assert [m["step"] for m in validations] == [105, 110], "the last is the report's"
    five = harness.train(job(f"five{world_size}", steps=5, first_step=100), world_size)
    assert validations[0]["validation"] == {r["name"]: r["nll_after"] for r in five.report["validation"]}
    plain = harness.train(job(f"plain{world_size}", first_step=100), world_size)
    assert plain.report["update_sha256"] == outcome.report["update_sha256"], "measuring changes nothing"


def test_early_stop(setting):
    """Random targets: what is learnt does not help on other sequences."""
    folder, job = setting
    changes = dict(steps=400, learning_rate=5e-3, validation_interval=2, early_stop_patience=3)
    outcome = harness.train(job("early", **changes), 2)
    steps, validations = steps_of(outcome)
    report = outcome.report
    assert report["steps"] == len(steps) < 400 and report["steps"] % 2 == 0 and not report["stopped_early"]
    means = [sum(m["validation"].values()) / 2 for m in validations]
    best = sum(r["nll_before"] for r in report["validation"]) / 2
    worse = 0
    for i, mean in enumerate(means):
        worse = 0 if mean < best else worse + 1
        best = min(best, mean)
        assert (worse == 3) == (i == len(means) - 1)
    assert len(report["validation"]) == 2
    same = harness.train(job("same", steps=report["steps"], learning_rate=5e-3), 2)
    assert same.report["update_sha256"] == report["update_sha256"]


def test_early_stop_goes_on_counting_after_a_restart(setting):
    folder, job = setting
    long = harness.write_tokens(folder / "long.tokens", harness.make_sequences(300, seed=8))  # time to be killed in
    changes = dict(steps=400, learning_rate=5e-3, validation_interval=2, early_stop_patience=3,
                   sets=[("it", long)])
    whole = harness.train(job("counted", **changes))
    last = whole.report["steps"]
    changes |= dict(checkpoint_interval=last - 1, state_path="../counted-state")
    first = job("first", **changes)
    ranks = harness.start_ranks(first)
    states = folder / "counted-state"
    while not list(states.glob("step-????????/state.json")):
        assert ranks[0].poll() is None
    ranks[0].kill()
    ranks[0].communicate()
    assert not (first.parent / "report.json").exists(), "ended before it could be killed"
    state = json.loads(next(states.glob("step-????????/state.json")).read_text())
    assert state["worse_validations"] == 2
    found = harness.train(job("second", **changes))
    assert any("resumed from a checkpoint" in output for output in found.output)
    assert found.report["steps"] == last and found.report["update_sha256"] == whole.report["update_sha256"]


@pytest.mark.parametrize("groups", [1, 2])
def test_max_tokens(setting, groups):
    folder, job = setting
    settings = dict(count=groups, interval=3, exchange="weights", weighting="equal",
                    outer=dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99, epsilon=1e-8))
    changes = dict(batch_size=4, groups=settings)
    whole = harness.train(job(f"all{groups}", **changes), 2)
    tokens = [m["tokens"] for m in whole.metrics]
    limit = sum(tokens[:4]) - 1
    outcome = harness.train(job(f"limited{groups}", max_tokens=limit, **changes), 2)
    assert outcome.report["steps"] == 4 and not outcome.report["stopped_early"]
    assert outcome.report["tokens"] == sum(tokens[:4]) >= limit
    assert outcome.losses == whole.losses[:4]


def test_patience_without_validation_is_refused(setting):
    folder, job = setting
    outcome = harness.train(job("refused", early_stop_patience=2), check=False)
    assert outcome.report is None and "needs training.validation_interval" in outcome.output[0]
