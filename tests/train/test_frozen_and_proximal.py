"""Frozen parameters and FedProx's proximal term, against Hugging Face's model with torch.optim.AdamW."""

import fnmatch

import pytest
import torch
from safetensors.torch import load_file

import harness


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    sequences = harness.make_sequences(12, lengths=(1, 30))
    tokens = harness.write_tokens(folder / "t.tokens", sequences)
    made = {}

    def job(name, variant="plain", dtype=torch.float32, **changes):
        base = f"{variant}-{dtype}"
        if base not in made:
            made[base] = harness.make_model(folder / base, dtype=dtype, **harness.variants()[variant])
        path = harness.make_job(folder / name, folder / base, made[base], tokens, [("it", tokens)],
                                **{**dict(batch_size=12, micro_batch_size=5, learning_rate=2e-3, weight_decay=0.1, steps=10),
                                   **changes})
        return path, folder / base

    return folder, sequences, job


def reference(base, sequences, steps, freeze=(), mu=0.0):
    model = harness.load(base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch.fnmatchcase(name, pattern) for pattern in freeze))
    trained = [p for p in model.parameters() if p.requires_grad]
    given = [p.detach().clone() for p in trained]
    groups = [dict(params=[p for p in trained if p.dim() == 2], weight_decay=0.1),
              dict(params=[p for p in trained if p.dim() != 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=2e-3, betas=(0.9, 0.95), eps=1e-8)

    def hold_near_the_given():
        with torch.no_grad():
            for parameter, anchor in zip(trained, given):
                parameter.grad += mu * (parameter - anchor)

    losses, norms = [], []
    for _ in range(steps):
        loss, norm = harness.hf_step(model, optimizer, trained, sequences, 1.0, hold_near_the_given)
        losses.append(loss)
        norms.append(norm)
    return losses, norms, model


def compare(found, losses, norms, model):
    assert len(found.losses) == len(losses)
    for mine, loss, norm in zip(found.metrics, losses, norms):
        assert harness.relative(mine["loss"], loss) < 2e-5
        assert harness.relative(mine["grad_norm"], norm) < 1e-3
    trained = harness.load(found.folder / "update")
    for (name, mine), theirs in zip(trained.named_parameters(), model.parameters()):
        tolerance = 2e-3 if name.endswith("k_proj.bias") else 2e-4
        assert (mine - theirs).norm() < tolerance * theirs.norm(), name


# The second list's last pattern matches only parameters that its first pattern matches, too.
FREEZE = [["model.embed_tokens.*"], ["model.layers.0.*", "*norm.weight", "model.layers.0.mlp.*"], ["*.mlp.*", "lm_head.weight", "*.bias"]]


@pytest.mark.parametrize("variant,freeze", [("plain", FREEZE[0]), ("everything", FREEZE[1]), ("biased", FREEZE[2]),
                                            ("tied", FREEZE[0])], ids=["embedding", "block", "mlp", "tied"])
def test_frozen_training_follows_hugging_face(setting, variant, freeze):
    _, sequences, job = setting
    path, base = job(f"hf-{variant}", variant, freeze=freeze)
    losses, norms, model = reference(base, sequences, 10, freeze)
    assert losses[-1] < losses[0] - 0.05, "the reference itself should learn"
    compare(harness.train(path), losses, norms, model)


@pytest.mark.parametrize("kind", ["weights", "delta"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_frozen_parameters_keep_their_bits(setting, kind, precision):
    _, _, job = setting
    freeze = FREEZE[1]
    path, base = job(f"exact-{kind}-{precision}", "biased", torch.bfloat16, freeze=freeze, update_kind=kind,
                     precision=precision, update_dtype="bf16")
    found = harness.train(path)
    given, update = load_file(base / "model.safetensors"), load_file(found.folder / "update" / "model.safetensors")
    assert sorted(given) == sorted(update)
    for name, value in update.items():
        frozen = any(fnmatch.fnmatchcase(name, pattern) for pattern in freeze)
        same = (value == 0).all() if kind == "delta" else torch.equal(value.view(torch.int16), given[name].view(torch.int16))
        assert bool(same) == frozen, name


@pytest.mark.parametrize("mode", [dict(sharding="optimizer"), dict(sharding="gradients"), dict(sharding="full"),
                                  dict(sharding="full", offload="parameters", recompute="full"),
                                  dict(offload="optimizer")], ids=lambda mode: "_".join(mode.values()))
@pytest.mark.parametrize("what", [dict(freeze=FREEZE[1]), dict(proximal=0.5), dict(proximal=0.1, freeze=FREEZE[2])],
                         ids=["frozen", "proximal", "both"])
def test_same_bits_in_every_sharding(setting, mode, what):
    _, _, job = setting
    name = "-".join(map(str, what))
    expected = harness.train(job(f"none-{name}", "biased", steps=4, micro_batch_size=6, **what)[0], 2)
    found = harness.train(job(f"{name}-{'-'.join(mode.values())}", "biased", steps=4, micro_batch_size=6, **what, **mode)[0], 2)
    assert found.losses == expected.losses
    assert found.report["update_sha256"] == expected.report["update_sha256"]


def test_a_pattern_that_matches_nothing_is_an_error(setting):
    _, _, job = setting
    for number, (freeze, text) in enumerate([(["model.norm.weight", "model.layers.7.*"], "'model.layers.7.*' matches no parameter"),
                                             (["*"], "all parameters are frozen")]):
        outcome = harness.train(job(f"nothing-{number}", freeze=freeze)[0], check=False)
        assert outcome.codes[0] != 0 and text in outcome.output[0] and outcome.report is None


@pytest.mark.parametrize("variant", ["plain", "everything"])
def test_proximal_training_follows_the_reference(setting, variant):
    _, sequences, job = setting
    path, base = job(f"prox-{variant}", variant, proximal=2.0, steps=20)
    losses, norms, model = reference(base, sequences, 20, mu=2.0)
    found = harness.train(path)
    compare(found, losses, norms, model)
    free = harness.train(job(f"free-{variant}", variant, steps=20)[0])
    assert abs(free.losses[-1] - found.losses[-1]) > 1e-3, "the term should matter"
    assert free.losses[0] == found.losses[0], "the loss is reported without the term"


def test_a_resumed_job_stays_near_its_input_model(setting):
    """The proximal term uses the input model, not the checkpoint's."""
    _, _, job = setting
    whole = harness.train(job("anchor", proximal=2.0, steps=80)[0])
    path = job("anchor-stopped", proximal=2.0, steps=80, checkpoint_interval=5)[0]
    ranks = harness.start_ranks(path)
    state, metrics = path.parent / "state", path.parent / "metrics.jsonl"
    while ranks[0].poll() is None and not list(state.glob("step-????????")):
        pass
    ranks[0].kill()
    ranks[0].communicate()
    assert not (path.parent / "report.json").exists(), "ended before it could be killed"
    found = harness.train(path)
    assert any("resumed from a checkpoint" in text for text in found.output)
    assert found.report["update_sha256"] == whole.report["update_sha256"]
