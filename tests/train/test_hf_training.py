"""Training against Hugging Face's model with torch.optim's optimizers, step by step."""

import json

import pytest
import torch
from transformers import get_scheduler, get_wsd_schedule

import harness


def decayed_groups(model, decay):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return [dict(params=matrices, weight_decay=decay), dict(params=vectors, weight_decay=0.0)]


def hf_losses(folder, sequences, steps, learning_rate, decay, max_norm, schedule="constant", warmup=0, total=0):
    """Each step's batch is the whole data set, so the order does not matter."""
    model = harness.load(folder)
    optimizer = torch.optim.AdamW(decayed_groups(model, decay), lr=learning_rate, betas=(0.9, 0.95), eps=1e-8)
    if schedule == "wsd":  # xffl's default decay_ratio
        decay = round(total * 0.1)
        scheduler = get_wsd_schedule(optimizer, num_warmup_steps=warmup, num_decay_steps=decay, num_training_steps=total, decay_type="linear")
    else:
        scheduler = get_scheduler(schedule, optimizer, warmup, total)
    losses, norms, rates = [], [], []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        loss, norm = harness.hf_step(model, optimizer, list(model.parameters()), sequences, max_norm)
        losses.append(loss)
        norms.append(norm)
        scheduler.step()
    return losses, norms, rates, model


def compare(tmp_path, changes, schedule="constant", warmup=0, total=0, steps=20):
    base = tmp_path / "base"
    base_hash = harness.make_model(base, **changes)
    sequences = harness.make_sequences(12, lengths=(1, 30))
    tokens = harness.write_tokens(tmp_path / "t.tokens", sequences)
    losses, norms, rates, model = hf_losses(base, sequences, steps, 2e-3, 0.1, 1.0, schedule, warmup, total)
    job = harness.make_job(tmp_path / "job", base, base_hash, tokens, steps=steps, batch_size=12, micro_batch_size=5,
                           learning_rate=2e-3, weight_decay=0.1,
                           schedule=dict(kind=schedule, warmup_steps=warmup, total_steps=total, min_ratio=0.0))
    found = harness.train(job)
    assert len(found.losses) == steps
    assert losses[-1] < losses[0] - 0.3, "the reference itself should learn"
    for mine, theirs in zip(found.metrics, zip(losses, norms, rates)):
        assert harness.relative(mine["loss"], theirs[0]) < 2e-5
        assert harness.relative(mine["grad_norm"], theirs[1]) < 1e-3
        assert mine["lr"] == pytest.approx(theirs[2], rel=1e-12, abs=1e-18)
    trained = harness.load(job.parent / "update")
    for (name, mine), theirs in zip(trained.named_parameters(), model.parameters()):
        # A key's bias hardly affects the loss: Adam scales its rounding noise up to whole steps.
        tolerance = 2e-3 if name.endswith("k_proj.bias") else 2e-4
        assert (mine - theirs).norm() < tolerance * theirs.norm(), name


@pytest.mark.parametrize("name", ["plain", "everything", "mistral", "mistral_window", "qwen2", "qwen2_tied", "qwen3",
                                  "qwen3_tied", "yarn_rope"])
def test_twenty_steps(tmp_path, name):
    compare(tmp_path, harness.variants()[name])


def batched_hf_losses(folder, sequences, steps, learning_rate):
    """As hf_losses, with one padded forward pass per step: causal attention ignores padding on the right."""
    model = harness.load(folder)
    optimizer = torch.optim.AdamW(decayed_groups(model, 0.1), lr=learning_rate, betas=(0.9, 0.95), eps=1e-8)
    longest = max(map(len, sequences))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in sequences])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in sequences])
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


@pytest.mark.parametrize("name", ["plain", "grouped_queries_odd_head_dim", "tied", "biased", "llama3_rope"])
def test_hundred_steps(tmp_path, name):
    base = tmp_path / "base"
    base_hash = harness.make_model(base, **harness.variants()[name])
    sequences = harness.make_sequences(12, lengths=(2, 30))
    tokens = harness.write_tokens(tmp_path / "t.tokens", sequences)
    expected = batched_hf_losses(base, sequences, 100, 1e-3)
    job = harness.make_job(tmp_path / "job", base, base_hash, tokens, steps=100, batch_size=12, micro_batch_size=6,
                           learning_rate=1e-3, weight_decay=0.1)
    found = harness.train(job).losses
    assert expected[-1] < expected[0] - 1, "the reference itself should learn"
    assert len(found) == 100
    assert max(abs(mine - theirs) for mine, theirs in zip(found, expected)) < 1e-4


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules(tmp_path, schedule):
    compare(tmp_path, {}, schedule, warmup=3, total=12, steps=12)


def test_wsd(tmp_path):
    compare(tmp_path, {}, "wsd", warmup=3, total=20, steps=20)


def test_bf16_stays_near_float32(tmp_path):
    base = tmp_path / "base"
    base_hash = harness.make_model(base)
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(16))
    losses = {}
    for precision in ("fp32", "bf16"):
        job = harness.make_job(tmp_path / precision, base, base_hash, tokens, steps=30, batch_size=16,
                               learning_rate=2e-3, precision=precision)
        losses[precision] = harness.train(job).losses
    assert losses["bf16"][-1] < losses["bf16"][0] - 0.5
    for mine, theirs in zip(losses["bf16"], losses["fp32"]):
        assert harness.relative(mine, theirs) < 0.02


def test_small_updates_survive_in_bf16(tmp_path):
    """At this learning rate a step is far below a bf16 weight's spacing: only float32 masters keep it."""
    base = tmp_path / "base"
    base_hash = harness.make_model(base)
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(8))
    job = harness.make_job(tmp_path / "job", base, base_hash, tokens, steps=10, learning_rate=1e-6, precision="bf16",
                           update_kind="delta")
    harness.train(job)
    from safetensors.torch import load_file

    delta = load_file(job.parent / "update" / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    assert (delta != 0).float().mean() > 0.9
    assert 1e-7 < delta.abs().mean() < 1.1e-5


OPTIMIZERS = {
    "adam": (dict(optimizer="adam"), lambda groups, rate: torch.optim.Adam(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)),
    "sgd": (dict(optimizer="sgd"), lambda groups, rate: torch.optim.SGD(groups, lr=rate)),
    "momentum": (dict(optimizer="sgd", momentum=0.9), lambda groups, rate: torch.optim.SGD(groups, lr=rate, momentum=0.9)),
    "nesterov": (dict(optimizer="sgd", momentum=0.9, nesterov=True),
                 lambda groups, rate: torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)),
}


def job_of(tmp_path, name, rate, **changes):
    """A job of 20 steps on the whole data set, and the keys of its optimizer."""
    base, sequences = tmp_path / "base", harness.make_sequences(12, lengths=(1, 30))
    base_hash = harness.make_model(base)
    tokens = harness.write_tokens(tmp_path / "t.tokens", sequences)
    job = harness.make_job(tmp_path / "job", base, base_hash, tokens, steps=20, batch_size=12, micro_batch_size=3,
                           learning_rate=rate, weight_decay=0.1, **changes)
    return job, sequences


def set_training(job, **keys):
    """Adds keys of `training` that job.json omits by default."""
    document = json.loads(job.read_text())
    document["training"].update(keys)
    job.write_text(json.dumps(document))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_optimizers(tmp_path, name):
    keys, make = OPTIMIZERS[name]
    rate = 2e-3 if name == "adam" else 0.05
    job, sequences = job_of(tmp_path, name, rate)
    set_training(job, **keys)
    found = harness.train(job)
    model = harness.load(tmp_path / "base")
    optimizer = make(decayed_groups(model, 0.1), rate)
    losses = [harness.hf_step(model, optimizer, list(model.parameters()), sequences, 1.0)[0] for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1, "the reference itself should learn"
    assert found.losses == pytest.approx(losses, rel=2e-5)
    trained = harness.load(job.parent / "update")
    for (parameter, mine), theirs in zip(trained.named_parameters(), model.parameters()):
        assert (mine - theirs).norm() < (2e-4 if name == "adam" else 2e-5) * theirs.norm(), parameter


@pytest.mark.parametrize("name", ["adam", "sgd", "momentum"])
def test_other_optimizers_resume_with_sharded_states(tmp_path, name):
    """A job killed at step 15 continues from step 10 with the bits of an undisturbed job."""
    job, _ = job_of(tmp_path, name, 2e-3, checkpoint_interval=5, sharding="full", **harness.SAME_BITS)
    set_training(job, **OPTIMIZERS[name][0])
    harness.kill_at(15, job, world_size=2)
    resumed = harness.train(job, world_size=2)
    assert "resumed from a checkpoint" in resumed.output[0]
    whole, _ = job_of(tmp_path / "whole", name, 2e-3, sharding="full", **harness.SAME_BITS)
    set_training(whole, **OPTIMIZERS[name][0])
    harness.train(whole, world_size=2)
    bits = [(path.parent / "update" / "model.safetensors").read_bytes() for path in (job, whole)]
    assert bits[0] == bits[1]
