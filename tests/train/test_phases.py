"""The phase times of a step in metrics.jsonl."""

import pytest

import harness

PHASES = ["forward", "head", "backward", "norm", "adamw"]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases")
    base_hash = harness.make_model(folder / "base", hidden_size=96, intermediate_size=256, vocab_size=1000)
    tokens = harness.write_tokens(folder / "t.tokens", harness.make_sequences(64, 1000, lengths=(100, 125)), 1000)

    def metrics(name, world_size=1, **changes):
        job = harness.make_job(folder / name, folder / "base", base_hash, tokens, **{**dict(steps=4, batch_size=16), **changes})
        return harness.train(job, world_size).metrics

    return metrics


def check(lines):
    assert len(lines) == 4
    for line in lines:
        phases = line["phase_seconds"]
        assert list(phases) == PHASES and all(seconds >= 0 for seconds in phases.values()), line
        assert sum(phases.values()) <= line["seconds"], line


@pytest.mark.parametrize("world_size, changes", [(1, dict()), (1, dict(micro_batch_size=16, recompute="full")), (2, dict()), (2, dict(sharding="full", precision="bf16"))],
                         ids=["micro_batches", "recompute", "ranks", "sharded"])
def test_the_phases_of_a_data_parallel_step_are_most_of_it(setting, world_size, changes):
    lines = setting(f"job{world_size}{len(changes)}", world_size, **changes)
    check(lines)
    for line in lines:
        assert all(line["phase_seconds"][phase] > 0 for phase in PHASES), line
    assert sum(sum(line["phase_seconds"].values()) for line in lines) >= sum(line["seconds"] for line in lines) / 2, lines


def test_a_pipelines_first_stage_has_no_head(setting):
    lines = setting("pipeline", 2, pipeline=dict(stages=2, schedule="1f1b"))
    check(lines)
    for line in lines:
        assert line["phase_seconds"]["head"] == 0 and line["phase_seconds"]["backward"] > 0, line


def test_a_step_that_fp16_skips_has_no_adamw(setting):
    lines = setting("skipped", precision="fp16")
    check(lines)
    assert all((line["tokens"] == 0) == (line["phase_seconds"]["adamw"] == 0) for line in lines), lines
