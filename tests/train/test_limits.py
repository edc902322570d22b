"""Early ends of a training by max_tokens and early stopping; and mid-training validation."""

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
def test_mid_training_validation(setting, world_size):
    folder, job = setting
    outcome = harness.train(job(f"mid-training{world_size}", validation_interval=5, first_step=100), world_size)
    steps, validations = steps_of(outcome)
    assert [m["step"] for m in steps] == list(range(101, 113))
    assert [m["step"] for m in validations] == [105, 110], "the last is the report's"
    five = harness.train(job(f"five{world_size}", steps=5, first_step=100), world_size)
    assert validations[0]["validation"] == {r["name"]: r["nll_after"] for r in five.report["validation"]}
    plain = harness.train(job(f"plain{world_size}", first_step=100), world_size)
    assert plain.report["update_sha256"] == outcome.report["update_sha256"], "measuring changes nothing"


STOPPED = dict(steps=400, learning_rate=5e-3, validation_interval=2, early_stop_patience=3)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_early_stop(setting, keep):
    """Targets are random: training does not improve the loss on other sequences."""
    folder, job = setting
    outcome = harness.train(job("early-" + keep, early_stop_keep=keep, **STOPPED), 2)
    steps, validations = steps_of(outcome)
    report = outcome.report
    assert len(steps) < 400 and len(steps) % 2 == 0 and not report["stopped_early"]
    means = [sum(m["validation"].values()) / 2 for m in validations]
    best = sum(r["nll_before"] for r in report["validation"]) / 2
    worse = 0
    for i, mean in enumerate(means):
        worse = 0 if mean < best else worse + 1
        best = min(best, mean)
        assert (worse == 3) == (i == len(means) - 1)
    left = validations[means.index(min(means))] if keep == "best" else validations[-1]
    assert report["steps"] == left["step"]
    assert {r["name"]: r["nll_after"] for r in report["validation"]} == left["validation"]
    assert report["tokens"] == sum(m["tokens"] for m in steps[:report["steps"]])
    assert report["samples"] == 8 * report["steps"] and report["train_loss_last"] == steps[report["steps"] - 1]["loss"]
    same = harness.train(job("same-" + keep, steps=report["steps"], learning_rate=5e-3), 2)
    assert same.report["update_sha256"] == report["update_sha256"]
    assert not (folder / ("early-" + keep) / "state").exists()


MODES = {
    "full": (2, dict(sharding="full")),
    "optimizer": (2, dict(sharding="optimizer", offload="optimizer")),
    "split": (2, dict(precision="bf16", masters="split", moment_dtype="bf16", sharding="gradients")),
    "pipeline": (2, dict(pipeline=dict(stages=2, schedule="1f1b"))),
    "lora": (2, dict(sharding="full", lora=dict(rank=4, alpha=8.0, dropout=0.0, target_modules=["q_proj", "v_proj"]))),
    "groups": (2, dict(groups=dict(count=2, interval=2, exchange="weights", weighting="equal",
                                   outer=dict(kind="nesterov", learning_rate=0.7, momentum=0.9, beta1=0.9, beta2=0.99,
                                              epsilon=1e-8)))),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_best_snapshot_is_restored_in_all_modes(setting, mode):
    """It equals a training that ends at the best step."""
    folder, job = setting
    ranks, changes = MODES[mode]
    rate = dict(learning_rate=5e-2) if mode == "lora" else {}
    outcome = harness.train(job(mode, **{**STOPPED, **changes, **rate}), ranks)
    steps, validations = steps_of(outcome)
    means = [sum(m["validation"].values()) / 2 for m in validations]
    report = outcome.report
    assert report["steps"] == validations[means.index(min(means))]["step"] < len(steps) < 400
    same = harness.train(job(mode + "-same", **{**changes, "learning_rate": 5e-3, **rate, "steps": report["steps"]}), ranks)
    assert same.report["update_sha256"] == report["update_sha256"]


def test_the_kept_optimizer_state_is_the_best_snapshots(setting):
    folder, job = setting
    left = {}
    for name, changes in (("stopped", STOPPED), ("ended", None)):
        changes = changes or dict(steps=left["stopped"][0], learning_rate=5e-3)
        path = job("kept-" + name, keep_optimizer=True, optimizer_path="../optimizer-" + name + "/none", **changes)
        outcome = harness.train(path)
        part = next((folder / ("optimizer-" + name)).glob("r0001-*/part-*"))
        left[name] = outcome.report["steps"], part.read_bytes(), outcome.report["update_sha256"]
    assert left["stopped"] == left["ended"]


def test_a_missing_best_snapshot_is_logged(setting):
    folder, job = setting
    path = job("gone", state_path="/proc/nothing-can-be-written-here", **STOPPED)
    outcome = harness.train(path)
    assert any("best snapshot not saved" in output for output in outcome.output)
    steps, _ = steps_of(outcome)
    assert outcome.report["steps"] == len(steps), "the last"


def test_an_unwritable_best_snapshot_falls_back_to_the_one_before(setting):
    """The disk is full for one of three snapshots, each better than the one before: the next best is restored."""
    folder, job = setting
    changes = STOPPED | dict(learning_rate=2e-3)
    whole = harness.train(job("kept-all", **changes))
    steps, validations = steps_of(whole)
    means = [sum(m["validation"].values()) / 2 for m in validations]
    best = means.index(min(means))
    better = [i for i, mean in enumerate(means) if mean == min(means[:i + 1])]
    assert best == better[-1] >= 1, "a best snapshot with another before it"
    failing = validations[best]["step"]
    outcome = harness.train(job("kept-one", **changes), **harness.path_faults(XFFL_FULL_FOR=f"best-{failing:08d}"))
    assert any("best snapshot not saved" in output for output in outcome.output)
    assert [m["loss"] for m in steps_of(outcome)[0]] == [m["loss"] for m in steps]
    left = validations[better[-2]]
    assert outcome.report["steps"] == left["step"]
    assert {r["name"]: r["nll_after"] for r in outcome.report["validation"]} == left["validation"]


def test_a_last_model_that_beats_the_best_snapshot_is_kept(setting):
    """Large steps make all models worse than the input model. The disk is full for the last snapshot."""
    folder, job = setting
    changes = STOPPED | dict(learning_rate=0.3, early_stop_patience=2)
    outcome = harness.train(job("last-is-best", **changes), **harness.path_faults(XFFL_FULL_FOR="best-00000004"))
    assert any("best snapshot not saved" in output for output in outcome.output)
    _, validations = steps_of(outcome)
    before = sum(r["nll_before"] for r in outcome.report["validation"]) / 2
    first, last = (sum(m["validation"].values()) / 2 for m in validations)
    assert before < last < first, "two worse ones, the last better than the first"
    assert outcome.report["steps"] == 4
    assert {r["name"]: r["nll_after"] for r in outcome.report["validation"]} == validations[-1]["validation"]


def test_a_full_disk_for_metrics_does_not_stop_training(setting):
    folder, job = setting
    outcome = harness.train(job("disk-full", metrics_path="/dev/full", validation_interval=2), 2)
    assert outcome.report["steps"] == 12 and outcome.output[0].count("metrics not written") == 1


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stop_keeps_its_count_after_a_restart(setting, patience):
    folder, job = setting
    # Long enough to kill the job. With sequences of the training data the loss falls before it rises.
    learned = harness.make_sequences(40) * 4 if patience == 1 else []
    long = harness.write_tokens(folder / f"long{patience}.tokens", learned + harness.make_sequences(300 - len(learned), seed=8))
    changes = dict(sets=[("it", long)], **{**STOPPED, "early_stop_patience": patience})
    whole = harness.train(job(f"counted{patience}", **changes))
    steps, validations = steps_of(whole)
    last = len(steps)
    if patience == 1:  # the best model counts, not the input model
        assert validations[-1]["validation"]["it"] < whole.report["validation"][0]["nll_before"]
    changes |= dict(checkpoint_interval=last - 1, state_path=f"../counted-state{patience}")
    first = job(f"first{patience}", **changes)
    ranks = harness.start_ranks(first)
    states = folder / f"counted-state{patience}"
    while not list(states.glob("step-????????/state.json")):
        assert ranks[0].poll() is None
    ranks[0].kill()
    ranks[0].communicate()
    assert not (first.parent / "report.json").exists(), "ended before it could be killed"
    state = json.loads(next(states.glob("step-????????/state.json")).read_text())
    assert state["worse_validations"] == patience - 1
    found = harness.train(job(f"second{patience}", **changes))
    assert any("resumed from a checkpoint" in output for output in found.output)
    assert found.report["steps"] == whole.report["steps"] < last
    assert steps_of(found)[0][-1]["step"] == steps[-1]["step"], "it stops at the same step"
    assert found.report["update_sha256"] == whole.report["update_sha256"], "the best model of the first attempt"


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


def test_patience_without_validation_is_rejected(setting):
    folder, job = setting
    outcome = harness.train(job("refused", early_stop_patience=2), check=False)
    assert outcome.report is None and "needs training.validation_interval" in outcome.output[0]
