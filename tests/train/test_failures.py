"""A failed job writes no report, on one rank and on several."""

import pathlib
import re
import signal
import time

import pytest
from safetensors.torch import load_file, save_file

import harness
from test_fp16 import GROUPS


@pytest.fixture
def setting(tmp_path):
    base_hash = harness.make_model(tmp_path / "base")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(30))
    return tmp_path, tmp_path / "base", base_hash, tokens


def expect_failure(job, world_size, code, *texts):
    outcome = harness.train(job, world_size, check=False)
    assert outcome.codes == [code] * world_size, outcome.output
    for text in texts:
        assert text in outcome.output[0]
    assert outcome.report is None and not (job.parent / "update").exists()
    return outcome


def with_nan(base, name="model.layers.1.mlp.down_proj.weight", place=(3, 5)):
    """Makes a part of a weight NaN; returns the model's root hash."""
    path = base / "model.safetensors"
    weights = load_file(path)
    weights[name][place] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    return harness.write_manifest(base)


@pytest.mark.parametrize("world_size,precision", [(1, "fp32"), (2, "fp32"), (1, "fp16")])
def test_a_nan_weight_stops_before_the_step(setting, world_size, precision):
    folder, base, _, tokens = setting
    job = harness.make_job(folder / "job", base, with_nan(base), tokens, precision=precision)
    outcome = expect_failure(job, world_size, 9, "step 1", "loss is nan", "stopped before the update")
    assert outcome.metrics == []


def test_a_nan_validation_loss_is_no_result(setting):
    folder, base, _, tokens = setting
    job = harness.make_job(folder / "job", base, with_nan(base), tokens, [("it", tokens)], steps=0)
    expect_failure(job, 1, 9, "the validation loss on 'it' (before) is")


def test_a_nan_of_one_group_ends_the_others_with_the_reason(setting):
    """Only the first group's sequences have the token whose embedding is NaN."""
    folder, base, _, _ = setting
    base_hash = with_nan(base, "model.embed_tokens.weight", 96)
    paths = [harness.write_tokens(folder / "damaged.tokens", [[1, 96, 2]] * 8),
             harness.write_tokens(folder / "sound.tokens", harness.make_sequences(8, vocab_size=96))]
    job = harness.make_job(folder / "job", base, base_hash, paths[0], train_paths=[str(path) for path in paths], groups=GROUPS)
    outcome = expect_failure(job, 2, 9, "step 1", "loss is nan")
    assert "rank 0 stopped the job" in outcome.output[1]


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_explosion_stops_all_ranks(setting, world_size):
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, base_hash, tokens, learning_rate=1000.0, weight_decay=1000.0,
                           max_grad_norm=0.0, steps=50)
    outcome = expect_failure(job, world_size, 9, "stopped before the update")
    assert 1 <= len(outcome.metrics) < 50


def test_another_base_model_is_rejected(setting):
    folder, base, base_hash, tokens = setting
    job = harness.make_job(folder / "job", base, "a" * 64, tokens)
    expect_failure(job, 1, 5, "not the model that the job names", base_hash)
    config = base / "config.json"
    config.write_text(config.read_text() + " ")
    expect_failure(harness.make_job(folder / "job2", base, base_hash, tokens), 1, 5, "config.json")


def test_a_rejected_base_stops_every_rank(setting):
    folder, base, _, tokens = setting
    outcome = harness.train(harness.make_job(folder / "job", base, "a" * 64, tokens), 2, check=False)
    assert outcome.codes == [5, 9]
    assert "rank 0 stopped the job" in outcome.output[1]


def test_a_larger_vocabulary_is_rejected(setting):
    folder, base, base_hash, _ = setting
    tokens = harness.write_tokens(folder / "large.tokens", [[1, 2, 98]], vocab_size=99)
    expect_failure(harness.make_job(folder / "job", base, base_hash, tokens), 1, 5, "vocabulary of 99 tokens")


def test_a_missing_tensor_is_named(setting):
    folder, base, _, tokens = setting
    path = base / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    job = harness.make_job(folder / "job", base, harness.write_manifest(base), tokens)
    expect_failure(job, 1, 5, "model.layers.1.mlp.down_proj.weight is missing")


def test_sequences_longer_than_the_model_are_rejected(setting):
    folder, base, base_hash, _ = setting
    tokens = harness.write_tokens(folder / "long.tokens", [[1] * 300])
    expect_failure(harness.make_job(folder / "job", base, base_hash, tokens), 1, 5, "sequences of up to 300 tokens",
                   "max_position_embeddings 256")


def most_virtual_memory(process):
    """Waits for a process and returns its peak memory in KiB."""
    peak = 0
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPeak:"))])
        time.sleep(0.01)
    return peak


def test_a_rank_out_of_memory_ends_the_job_at_once(setting):
    """Rank 1 may take 150 MB more than a small batch needs; activations of a large one take 400 MB. Rank 0 has no limit and waits
    in a collective with the default timeout of 600 s."""
    folder, base, base_hash, _ = setting
    tokens = harness.write_tokens(folder / "long.tokens", harness.make_sequences(600, lengths=(250, 250)))
    small = harness.start_ranks(harness.make_job(folder / "small", base, base_hash, tokens, steps=1, batch_size=2, micro_batch_size=1), 2)
    peak = most_virtual_memory(small[1])
    assert [rank.wait(timeout=60) for rank in small] == [0, 0] and peak > 0
    limited = f'if [ "$RANK" = 1 ]; then ulimit -v {peak + 150_000}; fi; exec "$0" "$@"'
    job = harness.make_job(folder / "large", base, base_hash, tokens, steps=3, batch_size=512, micro_batch_size=256)
    ranks = harness.start_ranks(job, 2, program=("bash", "-c", limited, harness.BIN / "xffl-train"))
    alone = ranks[1].communicate(timeout=120)[0]
    ended = time.monotonic()
    assert ranks[1].returncode == 9 and "out of memory" in alone and alone.count("xffl-train: failed error") == 1, alone
    waiting = ranks[0].communicate(timeout=120)[0]
    assert time.monotonic() - ended < 10 and ranks[0].returncode == 9, waiting
    assert re.search("-r0001-alba-a1: step [123]: out of memory", alone) and "job loaded" not in alone
    assert "job loaded" in waiting and "rank 0 of 2" in waiting and "a rank died" in waiting and not (folder / "large" / "report.json").exists()
