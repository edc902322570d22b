"""Whole jobs in a pipeline of stages: the same bits as the same data ranks without a pipeline."""

import json
import signal
import time

import pytest

import harness


def pipeline(stages, schedule="1f1b"):
    return dict(stages=stages, schedule=schedule)


class Setting:
    def __init__(self, folder):
        self.folder, self.done = folder, {}
        changes = {**harness.variants()["grouped_queries_odd_head_dim"], "num_hidden_layers": 4, "attention_bias": True}
        self.hash = harness.make_model(folder / "base", **changes)
        self.tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(40))
        self.validation = harness.write_tokens(folder / "v.tokens", harness.make_sequences(23, seed=5))

    def job(self, name, attempt=1, **changes):
        path = harness.make_job(self.folder / name / f"a{attempt}", self.folder / "base", self.hash, self.tokens,
                                [("it", self.validation)],
                                **{**dict(steps=6, batch_size=8, micro_batch_size=2, weight_decay=0.1, state_path="../state"),
                                   **changes})
        text = json.loads(path.read_text())
        text["key"]["attempt"] = attempt
        path.write_text(json.dumps(text))
        return path

    def train(self, world_size, **changes):
        key = json.dumps([world_size, changes], sort_keys=True)
        if key not in self.done:
            self.done[key] = harness.train(self.job(f"job{len(self.done)}", **changes), world_size)
        return self.done[key]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    return Setting(tmp_path_factory.mktemp("pipeline"))


def expect_same(found, expected):
    assert found.losses == expected.losses
    assert [m["grad_norm"] for m in found.metrics] == [m["grad_norm"] for m in expected.metrics]
    for key in ("steps", "samples", "tokens", "validation", "update_sha256", "train_loss", "stopped_early"):
        assert found.report[key] == expected.report[key], key


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [2, 4])
def test_same_bits_as_one_stage(setting, stages, schedule):
    found = setting.train(stages, pipeline=pipeline(stages, schedule))
    assert found.report["world_size"] == stages
    expect_same(found, setting.train(1))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_same_bits_with_data_parallelism(setting, schedule, sharding):
    expect_same(setting.train(4, pipeline=pipeline(2, schedule), sharding=sharding), setting.train(2))


@pytest.mark.parametrize("changes", [dict(batch_size=7, micro_batch_size=2), dict(batch_size=2, micro_batch_size=2),
                                     dict(batch_size=6, micro_batch_size=6), dict(precision="bf16"), dict(precision="fp16"),
                                     dict(recompute="full"), dict(update_kind="delta", update_dtype="bf16"),
                                     dict(offload="optimizer"), dict(proximal=0.1)],
                         ids=["uneven", "one_micro_batch", "one_of_all", "bf16", "fp16", "recompute", "delta", "offload", "proximal"])
def test_same_bits_in_other_settings(setting, changes):
    expect_same(setting.train(2, pipeline=pipeline(2), **changes), setting.train(1, **changes))


def test_data_ranks_without_a_sequence(setting):
    changes = dict(batch_size=3, micro_batch_size=1)
    expect_same(setting.train(4, pipeline=pipeline(2), **changes), setting.train(2, **changes))


def test_evaluation_only(setting):
    expect_same(setting.train(4, pipeline=pipeline(2), steps=0), setting.train(2, steps=0))


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapters(**changes):
    return dict(learning_rate=1e-2, lora=dict(rank=3, alpha=6.0, dropout=0.0, target_modules=ALL) | changes)


DROPOUT = adapters(dropout=0.3)
WHOLE = adapters(dropout=0.2, weight_decomposed=True, modules_to_save=["embed_tokens", "lm_head"])
LORA = {
    "two_stages": (2, 2, {}),
    "stages_without_adapters": (6, 6, {}),  # the embedding's, and the head's
    "data_ranks_sharded": (4, 2, dict(sharding="optimizer")),
    "dropout": (2, 2, DROPOUT),
    "dropout_gpipe_recompute": (4, 4, dict(schedule="gpipe", recompute="full") | DROPOUT),
    "dropout_cheap_sharded": (4, 2, dict(recompute="cheap", sharding="optimizer") | DROPOUT),
    "bf16": (2, 2, dict(precision="bf16")),
    "fp16": (2, 2, dict(precision="fp16")),
    "delta": (2, 2, dict(update_kind="delta", update_dtype="bf16")),
    "offload": (2, 2, dict(offload="optimizer")),
    "proximal": (2, 2, dict(proximal=0.1)),
    "frozen": (4, 4, dict(freeze=["model.layers.0.*", "model.layers.3.*", "*.lora_A.weight"]) | DROPOUT),
    "dora_and_whole_modules": (6, 6, WHOLE),
    "dora_and_whole_modules_sharded": (4, 2, dict(sharding="optimizer", recompute="full") | WHOLE),
    "frozen_magnitudes_and_head": (4, 4, dict(freeze=["*.lora_magnitude_vector", "lm_head.weight", "model.layers.0.*"],
                                              update_kind="delta") | WHOLE),
    "evaluation_only": (2, 2, dict(steps=0)),
}


@pytest.mark.parametrize("name", LORA)
def test_adapters_have_the_bits_of_one_stage(setting, name):
    world_size, stages, changes = LORA[name]
    changes = adapters() | changes
    schedule = changes.pop("schedule", "1f1b")
    expected = setting.train(world_size // stages, **{**changes, "sharding": "none"})
    expect_same(setting.train(world_size, pipeline=pipeline(stages, schedule), **changes), expected)
    validation = expected.report["validation"][0]
    assert changes.get("steps") == 0 or abs(validation["nll_after"] - validation["nll_before"]) > 1e-3, "the adapter should matter"


FROZEN = {
    "embedding": (2, 2, dict(freeze=["model.embed_tokens.*"])),
    "a_whole_stage": (2, 2, dict(freeze=["model.embed_tokens.*", "model.layers.0.*", "model.layers.1.*"])),
    "the_last_stage_sharded": (4, 2, dict(freeze=["model.layers.2.*", "model.layers.3.*", "model.norm.*", "lm_head.*"],
                                          sharding="optimizer")),
    "delta": (4, 4, dict(freeze=["*.mlp.*", "*norm*"], update_kind="delta", precision="bf16")),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_parameters_have_the_bits_of_one_stage(setting, name):
    world_size, stages, changes = FROZEN[name]
    expected = setting.train(world_size // stages, **{**changes, "sharding": "none"})
    assert expected.losses[-1] < expected.losses[0] - 0.01
    expect_same(setting.train(world_size, pipeline=pipeline(stages), **changes), expected)


def steps_done(job):
    metrics = job.parent / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait_for_steps(ranks, job, steps):
    deadline = time.monotonic() + 240
    while steps_done(job) < steps:
        assert time.monotonic() < deadline
        assert all(rank.poll() is None for rank in ranks), [rank.communicate()[0] for rank in ranks]
        time.sleep(0.01)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_stop_of_one_rank_stops_all(setting, rank):
    job = setting.job(f"stop{rank}", steps=100000, pipeline=pipeline(2))
    ranks = harness.start_ranks(job, 4)
    wait_for_steps(ranks, job, 3)
    ranks[rank].send_signal(signal.SIGUSR1)
    output = harness.outputs(ranks, 240)
    assert [one.returncode for one in ranks] == [0] * 4, output
    report = json.loads((job.parent / "report.json").read_text())
    assert report["stopped_early"] and report["steps"] == steps_done(job) >= 3
    expected = setting.train(2, steps=report["steps"])
    assert report["update_sha256"] == expected.report["update_sha256"]


@pytest.mark.parametrize("first,second,more", [((2, 2), (2, 2), {}), ((2, 2), (2, 1), {}), ((2, 1), (4, 2), {}), ((4, 2), (2, 2), {}),
                                               ((2, 2), (2, 1), DROPOUT), ((2, 1), (4, 2), DROPOUT)],
                         ids=["same", "fewer_stages", "more_stages", "other_ranks", "adapters_fewer_stages", "adapters_more_stages"])
def test_a_killed_job_resumes_with_any_number_of_stages(setting, first, second, more):
    """(ranks, stages) of the attempts."""
    steps = 24
    name = f"killed{first}{second}".translate(str.maketrans("", "", "(), ")) + "-".join(more)
    changes = dict(steps=steps, checkpoint_interval=5, sharding="optimizer", **more)
    job = setting.job(name, pipeline=pipeline(first[1]), **changes)
    harness.kill_at(15, job, first[0])
    done = max(int(folder.name[5:]) for folder in (job.parent.parent / "state").glob("step-????????"))
    assert done in (5, 10)
    again = harness.train(setting.job(name, attempt=2, pipeline=pipeline(second[1]), **changes), second[0])
    assert any(f"resumed from a checkpoint  steps={done}" in output for output in again.output)
    if first[0] // first[1] == second[0] // second[1]:  # the same data ranks: the same sums
        expect = setting.train(first[0] // first[1], steps=steps, **more)
        assert again.losses == expect.losses[-len(again.losses):] and len(again.losses) == steps - done
        assert again.report["update_sha256"] == expect.report["update_sha256"]


INVALID = {
    "stages": (2, dict(pipeline=pipeline(3)), "which does not divide the 2 ranks"),
    "units": (8, dict(pipeline=pipeline(8)), "the model has 6 units"),
    "full": (2, dict(pipeline=pipeline(2), sharding="full"), "with sharding 'full'"),
    "gradients": (2, dict(pipeline=pipeline(2), sharding="gradients"), "with sharding 'gradients'"),
}


@pytest.mark.parametrize("name", INVALID)
def test_unsupported_settings_are_rejected_by_name(setting, name):
    world_size, changes, expected = INVALID[name]
    outcome = harness.train(setting.job(f"refused_{name}", **changes), world_size, check=False)
    assert outcome.report is None and 0 not in outcome.codes
    assert all(expected in output for output in outcome.output), outcome.output


TIED = {
    "two_stages": (2, dict(pipeline=pipeline(2))),
    "four_stages_gpipe": (4, dict(pipeline=pipeline(4, "gpipe"))),
    "data_ranks_sharded": (4, dict(pipeline=pipeline(2), sharding="optimizer")),
    "one_micro_batch": (2, dict(pipeline=pipeline(2), micro_batch_size=12)),
    "data_ranks_with_one_micro_batch": (4, dict(pipeline=pipeline(2), micro_batch_size=6)),
    "data_ranks_sharded_with_one_micro_batch": (4, dict(pipeline=pipeline(2), sharding="optimizer", micro_batch_size=6)),
    "recompute_offload": (2, dict(pipeline=pipeline(2), recompute="full", offload="optimizer")),
}


@pytest.fixture(scope="module")
def tied(setting):
    """A tied model, a job of it, and its training without a pipeline."""
    folder = setting.folder / "tied"
    base_hash = harness.make_model(folder / "base", **{**harness.variants()["qwen3_tied"], "num_hidden_layers": 4})

    def train(name, world_size, **changes):
        path = harness.make_job(folder / name, folder / "base", base_hash, setting.tokens, [("it", setting.validation)],
                                **{**dict(steps=20, batch_size=12, micro_batch_size=2, learning_rate=2e-3, weight_decay=0.1), **changes})
        return harness.train(path, world_size)

    return train, train("alone", 1)


@pytest.mark.parametrize("name", TIED)
def test_a_tied_head_has_the_losses_of_one_stage(tied, name):
    """Head and embedding add their gradients in another order: equal up to float32's rounding."""
    train, expected = tied
    world_size, changes = TIED[name]
    found = train(name, world_size, **changes)
    assert expected.losses[-1] < expected.losses[0] - 0.3
    for mine, theirs in zip(found.metrics, expected.metrics, strict=True):
        assert harness.relative(mine["loss"], theirs["loss"]) < 1e-5
        assert harness.relative(mine["grad_norm"], theirs["grad_norm"]) < 1e-4
    for mine, theirs in zip(found.report["validation"], expected.report["validation"], strict=True):
        assert harness.relative(mine["nll_before"], theirs["nll_before"]) < 1e-6
        assert harness.relative(mine["nll_after"], theirs["nll_after"]) < 1e-5
    from safetensors.torch import load_file
    mine, theirs = (load_file(each.folder / "update" / "model.safetensors") for each in (found, expected))
    assert mine.keys() == theirs.keys() and "lm_head.weight" not in mine
    for key, value in mine.items():
        tolerance = 2e-3 if key.endswith("k_proj.bias") else 2e-4
        assert (value - theirs[key]).norm() < tolerance * theirs[key].norm(), key


@pytest.mark.parametrize("more", [adapters(), dict(freeze=["model.embed_tokens.*"])], ids=["adapters", "frozen"])
def test_a_tied_head_that_is_not_trained_has_the_bits_of_one_stage(tied, more):
    train, _ = tied
    name = "-".join(more)
    expected = train(f"alone-{name}", 1, **more)
    for number, changes in enumerate([dict(), dict(recompute="full", offload="optimizer")]):
        expect_same(train(f"two-{name}-{number}", 2, pipeline=pipeline(2), **more, **changes), expected)


def test_a_tied_head_is_near_in_bf16(tied):
    train, expected = tied
    found = train("bf16", 2, precision="bf16", pipeline=pipeline(2))
    for mine, theirs in zip(found.losses, expected.losses, strict=True):
        assert harness.relative(mine, theirs) < 0.02
