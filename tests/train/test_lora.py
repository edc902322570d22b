"""LoRA against Hugging Face's PEFT: files, logits and training; adapters in shards and checkpoints."""

import json
import time

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WEIGHTS = "adapter_model.safetensors"


def lora(rank=4, alpha=8.0, modules=("q_proj", "v_proj"), **more):
    return dict(rank=rank, alpha=alpha, dropout=0.0, target_modules=list(modules), **more)


def make_adapter(folder, base, settings, seed=7, spread=0.1):
    """Saves an adapter with PEFT, with a nonzero B; returns its root hash."""
    torch.manual_seed(seed)
    model = peft.get_peft_model(harness.load(base), peft.LoraConfig(
        r=settings["rank"], lora_alpha=settings["alpha"], lora_dropout=0.0, task_type="CAUSAL_LM",
        target_modules=settings["target_modules"], use_rslora=settings.get("rank_stabilized", False),
        use_dora=settings.get("weight_decomposed", False), modules_to_save=settings.get("modules_to_save")))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, spread)
            elif "lora_magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "modules_to_save" in name:
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.02))
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return harness.write_manifest(folder)


def load_with(base, adapter, trainable=False):
    return peft.PeftModel.from_pretrained(harness.load(base), adapter, is_trainable=trainable)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    sequences = harness.make_sequences(12, lengths=(1, 30))
    tokens = harness.write_tokens(folder / "t.tokens", sequences)
    made = {}

    def job(name, variant="plain", settings=None, adapter=True, **changes):
        settings = settings or lora()
        if variant not in made:
            made[variant] = harness.make_model(folder / variant, **harness.variants()[variant])
        if adapter:
            adapter = folder / f"{name}-input"
            changes = dict(adapter_path=str(adapter), adapter_sha256=make_adapter(adapter, folder / variant, settings)) | changes
        return harness.make_job(folder / name, folder / variant, made[variant], tokens, [("it", tokens)],
                                **{**dict(lora=settings, batch_size=12, micro_batch_size=5, learning_rate=2e-3, steps=8),
                                   **changes})

    return folder, sequences, tokens, job


def peft_training(base, adapter, sequences, steps, learning_rate, decay, max_norm, freeze=lambda name: False):
    model = load_with(base, adapter, trainable=True)
    for name, parameter in model.named_parameters():
        if freeze(name):
            parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    # Magnitudes do not decay.
    groups = [dict(params=[p for p in trained if p.dim() == 2]), dict(params=[p for p in trained if p.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=decay)
    losses, norms = [], []
    for _ in range(steps):
        loss, norm = harness.hf_step(model, optimizer, trained, sequences, max_norm)
        losses.append(loss)
        norms.append(norm)
    return losses, norms, model


@pytest.mark.gpu
def test_rank_stabilized_adapters(setting):
    folder, sequences, tokens, job = setting
    path = job("rslora", "plain", lora(alpha=30.0, rank_stabilized=True), steps=5)
    losses, _, _ = peft_training(folder / "plain", folder / "rslora-input", sequences, 5, 2e-3, 0.0, 1.0)
    found = harness.train(path).losses
    assert found == pytest.approx(losses, abs=harness.TOLERANCE["lora_loss"])
    rank_scaled = harness.train(job("no-rslora", "plain", lora(alpha=30.0), steps=5)).losses
    assert max(abs(a - b) for a, b in zip(rank_scaled, losses)) > 5 * harness.TOLERANCE["lora_loss"], "the factor should matter"
    update, merged = path.parent / "update", folder / "merged-rslora"
    harness.run([harness.BIN / "xffl-train", "merge", "--model", folder / "plain", "--adapter", update, "--out", merged])
    theirs = load_with(folder / "plain", update).merge_and_unload()
    for (name, mine), other in zip(harness.load(merged).named_parameters(), theirs.parameters()):
        assert (mine - other).abs().max() < 1e-6, name


def test_each_round_step_and_micro_batch_has_its_own_dropout(setting):
    folder, sequences, _, job = setting
    one = harness.write_tokens(folder / "one.tokens", [max(sequences, key=len)])
    # The weights stay as they are: losses differ by what is dropped only.
    settings = dict(settings=lora(modules=ALL) | dict(dropout=0.3), train_paths=[str(one)], learning_rate=0.0, steps=3,
                    batch_size=1, micro_batch_size=1)
    first = harness.train(job("dropped-first", **settings)).losses
    later = harness.train(job("dropped-later", **settings, first_step=3)).losses
    assert len(set(first + later)) == 6
    twice = harness.train(job("dropped-twice", **settings | dict(batch_size=2))).losses
    assert twice[0] != first[0], "the second micro-batch drops others"


def check_twenty_steps(setting, name, variant, settings, stages=1):
    folder, sequences, tokens, job = setting
    path = job(name, variant, settings, steps=20, weight_decay=0.1, pipeline=dict(stages=stages, schedule="1f1b"))
    losses, norms, model = peft_training(folder / variant, folder / f"{name}-input", sequences, 20, 2e-3, 0.1, 1.0)
    assert losses[-1] < losses[0] - 0.05, "the reference itself should learn"
    found = harness.train(path, stages)
    assert len(found.losses) == 20
    for mine, loss, norm in zip(found.metrics, losses, norms):
        assert abs(mine["loss"] - loss) < harness.TOLERANCE["lora_loss"]
        assert harness.relative(mine["grad_norm"], norm) < harness.TOLERANCE["lora_norm"]
    update = path.parent / "update"
    assert sorted(p.name for p in update.iterdir()) == ["adapter_config.json", WEIGHTS, "manifest.json"]
    theirs = {name.replace(".modules_to_save", "").replace(".default", "").replace("vector.weight", "vector"): value
              for name, value in model.named_parameters() if value.requires_grad}
    mine = load_file(update / WEIGHTS)
    assert sorted(mine) == sorted(theirs)
    for name, value in mine.items():
        assert (value - theirs[name]).norm() < harness.TOLERANCE["adapter"] * theirs[name].norm(), name
    return mine, losses


@pytest.mark.parametrize("variant,modules,stages", [
    ("plain", ["q_proj", "v_proj"], 1), ("everything", ALL, 1), ("biased", ALL[3:], 1), ("mistral_window", ALL, 1),
    ("qwen2_tied", ALL, 1), ("qwen3", ALL, 1), ("plain", ALL, 2), ("qwen3_tied", ALL, 4)],
    ids=["plain", "everything", "biased", "mistral_window", "qwen2_tied", "qwen3", "two_stages", "four_stages"])
def test_twenty_steps(setting, variant, modules, stages):
    check_twenty_steps(setting, f"peft-{variant}-{stages}", variant, lora(modules=modules), stages)


@pytest.mark.parametrize("variant", harness.on_gpu(["plain", "everything", "biased", "qwen3_tied"], "everything"))
def test_twenty_steps_of_dora(setting, variant):
    """DoRA's magnitudes are trained, too, also in a pipeline; the same job without them has other losses."""
    folder, _, _, job = setting
    stages = dict(biased=2, qwen3_tied=4).get(variant, 1)
    modules = dict(plain=["q_proj", "v_proj"], biased=ALL[3:]).get(variant, ALL)
    settings = lora(modules=modules, weight_decomposed=True)
    mine, losses = check_twenty_steps(setting, f"dora-{variant}", variant, settings, stages)
    given = load_file(folder / f"dora-{variant}-input" / WEIGHTS)
    magnitudes = [name for name in mine if name.endswith(".lora_magnitude_vector")]
    assert len(magnitudes) == len(mine) / 3
    for name in magnitudes:
        assert (mine[name] - given[name]).abs().max() > 1e-3, name
    without = harness.train(job(f"no-dora-{variant}", variant, lora(modules=modules), steps=1)).losses
    assert abs(without[0] - losses[0]) > 5 * harness.TOLERANCE["lora_loss"], "the magnitudes should matter"


EMBEDDING, HEAD = "base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"


@pytest.mark.parametrize("variant,modules,dora", [("plain", ["embed_tokens", "lm_head"], False), ("biased", ["lm_head"], False),
                                                  ("qwen3", ["embed_tokens"], True)], ids=["both", "head", "embedding"])
def test_twenty_steps_with_whole_modules(setting, variant, modules, dora):
    folder, _, _, job = setting
    settings = lora(weight_decomposed=dora, modules_to_save=modules)
    mine, losses = check_twenty_steps(setting, f"whole-{variant}", variant, settings, stages=2 if variant == "plain" else 1)
    given = load_file(folder / f"whole-{variant}-input" / WEIGHTS)
    whole = [name for name in (EMBEDDING, HEAD) if name in mine]
    assert len(whole) == len(modules)
    for name in whole:
        assert (mine[name] - given[name]).abs().max() > 1e-3, name
    without = harness.train(job(f"no-whole-{variant}", variant, lora(weight_decomposed=dora), steps=1)).losses
    assert abs(without[0] - losses[0]) > 5 * harness.TOLERANCE["lora_loss"], "the adapter's own modules should matter"


def test_whole_modules_travel_merge_and_shard(setting):
    """A fresh adapter has the model's own values; the same bits in shards; PEFT and the merged model give the same NLL."""
    folder, sequences, tokens, job = setting
    kinds = dict(settings=lora(modules_to_save=["lm_head", "embed_tokens"]), adapter=False, steps=4, micro_batch_size=6)
    expected = harness.train(job("whole-none", **kinds), 2)
    base = harness.load(folder / "plain")
    unchanged = harness.train(job("whole-unchanged", **kinds | dict(learning_rate=0.0, steps=1)))
    values = load_file(unchanged.folder / "update" / WEIGHTS)
    assert torch.equal(values[EMBEDDING], base.model.embed_tokens.weight) and torch.equal(values[HEAD], base.lm_head.weight)
    assert unchanged.report["validation"][0]["nll_before"] == pytest.approx(
        harness.evaluate(folder / "plain", tokens)["nll"], rel=1e-6)
    for number, mode in enumerate(MODES):
        found = harness.train(job(f"whole-{number}", **kinds, **mode), 2)
        assert found.losses == expected.losses and found.report["update_sha256"] == expected.report["update_sha256"], mode
    update, merged = expected.folder / "update", folder / "whole-merged"
    harness.run([harness.BIN / "xffl-train", "merge", "--model", folder / "plain", "--adapter", update, "--out", merged])
    beside = harness.evaluate(folder / "plain", tokens, "--adapter", update)["nll"]
    assert harness.relative(harness.evaluate(merged, tokens)["nll"], beside) < 1e-6
    assert harness.relative(harness.hf_evaluate(load_with(folder / "plain", update), sequences)[1], beside) < 1e-5
    theirs = load_with(folder / "plain", update).merge_and_unload()
    for (name, mine), other in zip(harness.load(merged).named_parameters(), theirs.parameters()):
        assert (mine - other).abs().max() < 1e-6, name


def test_whole_modules_of_a_tied_model_are_rejected(setting):
    _, _, _, job = setting
    check_rejected(job("whole-tied", "tied", lora(modules_to_save=["embed_tokens"]), adapter=False),
                   "modules_to_save names embed_tokens", "tie_word_embeddings")


def test_a_fresh_adapter_of_dora_has_the_magnitudes_of_pefts(setting):
    folder, _, tokens, job = setting
    settings = lora(modules=ALL, weight_decomposed=True)
    fresh = dict(variant="everything", settings=settings, adapter=False, learning_rate=0.0, steps=1)
    found = harness.train(job("fresh-dora", **fresh))
    sharded = harness.train(job("fresh-dora-full", sharding="full", **fresh), 2)
    assert found.report["update_sha256"] == sharded.report["update_sha256"]
    values = load_file(found.folder / "update" / WEIGHTS)
    theirs = peft.get_peft_model(harness.load(folder / "everything"), peft.LoraConfig(
        r=4, task_type="CAUSAL_LM", target_modules=ALL, use_dora=True)).named_parameters()
    compared = 0
    for name, value in theirs:
        if "lora_magnitude_vector" in name:
            mine = values[name.replace(".default.weight", "")]
            assert ((mine - value).abs() <= 1e-6 * value).all(), name
            compared += 1
    assert compared == len(ALL) * 2
    assert found.report["validation"][0]["nll_before"] == pytest.approx(
        harness.evaluate(folder / "everything", tokens)["nll"], rel=1e-6), "a fresh adapter changes nothing"
    trained = harness.train(job("fresh-dora-trained", **fresh | dict(learning_rate=2e-3, steps=8)))
    assert trained.losses[-1] < trained.losses[0] - 0.01


FREEZE = {
    "layer": (["model.layers.0.*"], lambda name: ".layers.0." in name),
    "lora_a": (["*.lora_A.weight"], lambda name: ".lora_A." in name),
    "some": (["model.norm.weight", "*.q_proj.weight", "*.layers.1.mlp.up_proj.*", "*.layers.0.*o_proj.lora_B.*"],
             lambda name: ".q_proj." in name or ".layers.1.mlp.up_proj." in name or ".layers.0.self_attn.o_proj.lora_B." in name),
}


@pytest.mark.parametrize("changes", [dict(), dict(pipeline=dict(stages=2, schedule="1f1b"))], ids=["alone", "pipeline"])
@pytest.mark.parametrize("what", FREEZE)
def test_frozen_adapters_keep_their_values(setting, what, changes):
    """The trained ones follow PEFT's; the update has all tensors, and PEFT loads it with the same losses of sequences."""
    folder, sequences, tokens, job = setting
    patterns, freeze = FREEZE[what]
    name = f"frozen-{what}-{'-'.join(changes)}"
    path = job(name, "biased", lora(modules=ALL), steps=10, weight_decay=0.1, freeze=patterns, **changes)
    losses, norms, model = peft_training(folder / "biased", folder / f"{name}-input", sequences, 10, 2e-3, 0.1, 1.0, freeze)
    found = harness.train(path, 2 if changes else 1)
    for mine, loss, norm in zip(found.metrics, losses, norms, strict=True):
        assert abs(mine["loss"] - loss) < harness.TOLERANCE["lora_loss"]
        assert harness.relative(mine["grad_norm"], norm) < harness.TOLERANCE["lora_norm"]
    given, update = (load_file(where / WEIGHTS) for where in (folder / f"{name}-input", found.folder / "update"))
    theirs = {each.replace(".default", ""): value for each, value in model.named_parameters()}
    assert sorted(given) == sorted(update)
    for tensor, value in update.items():
        assert torch.equal(value, given[tensor]) == freeze(tensor), tensor
        assert (value - theirs[tensor]).norm() < harness.TOLERANCE["adapter"] * theirs[tensor].norm(), tensor
    _, _, means = harness.hf_evaluate(load_with(folder / "biased", found.folder / "update"), sequences)
    evaluated = harness.evaluate(folder / "biased", tokens, "--adapter", found.folder / "update")
    for mine, expected in zip(evaluated["per_sequence"], means, strict=True):
        assert expected is None or abs(mine - expected) <= harness.TOLERANCE["sequence"]


def test_frozen_magnitudes_and_whole_modules_keep_their_values(setting):
    """By the name of the matrix; a pattern for magnitudes alone leaves A and B in training."""
    folder, _, _, job = setting
    settings = lora(weight_decomposed=True, modules_to_save=["embed_tokens", "lm_head"])
    patterns = ["*.layers.0.*q_proj.weight", "*.layers.1.*.lora_magnitude_vector", "lm_head.weight"]
    found = harness.train(job("frozen-dora", "plain", settings, steps=4, freeze=patterns))
    given, update = (load_file(where / WEIGHTS) for where in (folder / "frozen-dora-input", found.folder / "update"))
    kept = {name for name, value in update.items() if torch.equal(value, given[name])}
    assert kept == {name for name in given if ".layers.0.self_attn.q_proj." in name or name == HEAD
                    or (".layers.1." in name and "magnitude" in name)}


def test_a_frozen_fresh_adapter_does_nothing(setting):
    """Its B is zero; its A has the values of a trained adapter before training, as all facilities' have."""
    folder, sequences, _, job = setting
    fresh = load_file(harness.train(job("fresh-frozen-0", adapter=False, learning_rate=0.0, steps=1)).folder / "update" / WEIGHTS)
    for kind in ("weights", "delta"):
        found = harness.train(job(f"fresh-frozen-{kind}", adapter=False, steps=4, freeze=["model.layers.1.*"], update_kind=kind))
        update = load_file(found.folder / "update" / WEIGHTS)
        for tensor, value in update.items():
            untouched = torch.zeros_like(value) if kind == "delta" else fresh[tensor]
            assert torch.equal(value, untouched) == (".layers.1." in tensor), tensor


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_frozen_adapters_have_the_same_bits_in_every_sharding(setting, precision):
    _, _, _, job = setting
    kinds = dict(steps=4, micro_batch_size=6, variant="everything", precision=precision, freeze=FREEZE["some"][0],
                 settings=lora(modules=ALL) | dict(dropout=0.2))
    expected = harness.train(job(f"frozen-{precision}", **kinds), 2)
    for number, mode in enumerate(MODES):
        found = harness.train(job(f"frozen-{precision}-{number}", **kinds, **mode), 2)
        assert found.losses == expected.losses, mode
        assert found.report["update_sha256"] == expected.report["update_sha256"], mode


@pytest.mark.parametrize("dora", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("variant", harness.on_gpu(["plain", "everything"], "everything"))
def test_peft_loads_a_trained_adapter_with_the_same_logits(setting, variant, dora):
    folder, sequences, tokens, job = setting
    path = job(f"logits-{variant}-{dora}", variant, lora(modules=ALL, weight_decomposed=dora))
    harness.train(path)
    update = path.parent / "update"
    model = load_with(folder / variant, update)
    expected, nll, means = harness.hf_evaluate(model, sequences)
    found = harness.evaluate(folder / variant, tokens, "--adapter", update)
    assert found["tokens"] == expected
    for mine, theirs in zip(found["per_sequence"], means):
        assert theirs is None or abs(mine - theirs) <= harness.TOLERANCE["sequence"]
    # The most likely next token by xffl-train generate.
    prompt = sequences[1][:8] or [5]
    with torch.no_grad():
        theirs = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0, len(prompt):]
    lines = harness.run(harness.xffl_train("generate", "--model", folder / variant, "--adapter", update,
                                           "--ids", " ".join(map(str, prompt)), "--max-new-tokens", 12, "--temperature", 0)).stdout
    mine = [json.loads(line)["id"] for line in lines.splitlines() if "id" in json.loads(line)]
    assert mine == [i for i in theirs.tolist() if i != 2][:len(mine)] and len(mine) > 0


@pytest.mark.parametrize("dora", [False, True])
def test_a_merged_model_equals_the_model_with_its_adapter(setting, dora):
    folder, sequences, tokens, job = setting
    path = job(f"merged-{dora}", "everything", lora(modules=ALL, weight_decomposed=dora))
    harness.train(path)
    update, merged = path.parent / "update", folder / f"merged-model-{dora}"
    (folder / "everything" / "tokenizer.json").write_text("{}")
    killed = folder / f"{merged.name}.tmp"  # left by a merge that was killed
    killed.mkdir()
    (killed / "model.safetensors.index.json").write_text("{}")
    harness.run([harness.BIN / "xffl-train", "merge", "--model", folder / "everything", "--adapter", update, "--out", f"{merged}/"])
    (folder / "everything" / "tokenizer.json").unlink()
    assert (merged / "tokenizer.json").exists() and (merged / "manifest.json").exists()
    assert not killed.exists() and not (merged / "model.safetensors.index.json").exists()
    beside = harness.evaluate(folder / "everything", tokens, "--adapter", update)["nll"]
    assert harness.relative(harness.evaluate(merged, tokens)["nll"], beside) < 1e-6
    assert harness.relative(harness.hf_evaluate(harness.load(merged), sequences)[1], beside) < 1e-5
    assert abs(harness.evaluate(folder / "everything", tokens)["nll"] - beside) > 1e-3, "the adapter should matter"
    theirs = load_with(folder / "everything", update).merge_and_unload()
    for (name, mine), other in zip(harness.load(merged).named_parameters(), theirs.parameters()):
        assert (mine - other).abs().max() < 1e-6, name
    bf16 = folder / f"merged-bf16-{dora}"
    harness.run([harness.BIN / "xffl-train", "merge", "--model", folder / "everything", "--adapter", update, "--out", bf16,
                 "--dtype", "bf16"])
    assert harness.load(bf16, "auto").dtype == torch.bfloat16
    again = folder / f"merged-again-{dora}"
    harness.run([harness.BIN / "xffl-train", "merge", "--model", bf16, "--adapter", update, "--out", again])
    assert harness.load(again, "auto").dtype == torch.bfloat16, "the model's type"
    refused = harness.run([harness.BIN / "xffl-train", "merge", "--model", folder / "plain", "--adapter", update,
                           "--out", folder / "never"], check=False)
    assert refused.returncode != 0 and not (folder / "never").exists()


def test_an_adapter_of_a_deeper_model_is_not_merged(setting):
    """Its tensors of the first layers would fit."""
    folder, _, _, _ = setting
    base, deeper, adapter, merged = (folder / name for name in ("shallow", "deeper", "deeper-adapter", "shallow-merged"))
    harness.make_model(base)
    harness.make_model(deeper, num_hidden_layers=3)
    make_adapter(adapter, deeper, lora())
    refused = harness.run([harness.BIN / "xffl-train", "merge", "--model", base, "--adapter", adapter, "--out", merged], check=False)
    assert refused.returncode == 5 and "layers.2" in refused.stderr and not merged.exists()


def test_a_merged_row_of_zeros_stays(tmp_path):
    """A pruned or padded row has no direction that a magnitude could scale."""
    base, merged, name = tmp_path / "base", tmp_path / "merged", "model.layers.0.mlp.up_proj.weight"
    harness.make_model(base)
    weights = load_file(base / "model.safetensors")
    weights[name][5] = 0
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(8))
    job = harness.make_job(tmp_path / "job", base, harness.write_manifest(base), tokens, steps=1, learning_rate=0.0,
                           lora=lora(modules=["up_proj"], weight_decomposed=True))
    harness.run([harness.BIN / "xffl-train", "merge", "--model", base, "--adapter", harness.train(job).folder / "update",
                 "--out", merged])
    assert torch.allclose(load_file(merged / "model.safetensors")[name], weights[name])


def test_a_fresh_adapter_has_the_distribution_of_pefts(setting):
    """A is uniform within 1 / sqrt(in), B is zero; equal on every rank, different with another seed."""
    folder, _, _, job = setting
    first = harness.train(job("fresh", adapter=False, learning_rate=0.0, steps=1, update_dtype="fp32"))
    two = harness.train(job("fresh2", adapter=False, learning_rate=0.0, steps=1, sharding="full"), 2)
    other = harness.train(job("fresh3", adapter=False, learning_rate=0.0, steps=1, seed=99))
    assert first.report["update_sha256"] == two.report["update_sha256"] != other.report["update_sha256"]
    values = load_file(first.folder / "update" / WEIGHTS)
    bound = 48 ** -0.5
    for name, value in values.items():
        if "lora_B" in name:
            assert (value == 0).all(), name
        else:
            assert value.abs().max() <= bound and value.abs().max() > 0.9 * bound
            assert value.std() == pytest.approx(bound / 3 ** 0.5, rel=0.15)
    trained = harness.train(job("fresh4", adapter=False, steps=8))
    assert trained.losses[-1] < trained.losses[0] - 0.01
    assert trained.report["validation"][0]["nll_before"] == pytest.approx(
        harness.evaluate(folder / "plain", folder / "t.tokens")["nll"], rel=1e-6), "B is zero at first"


MODES = [dict(sharding="optimizer"), dict(sharding="gradients"), dict(sharding="full"), dict(sharding="full", recompute="full"),
         dict(sharding="none", offload="optimizer"), dict(sharding="full", offload="parameters")]


@pytest.mark.parametrize("precision,dora", [("fp32", False), ("bf16", False), ("fp32", True), ("bf16", True)])
def test_same_bits_in_every_sharding(setting, precision, dora):
    folder, _, _, job = setting
    kinds = dict(steps=4, micro_batch_size=6, variant="everything", settings=lora(modules=ALL, weight_decomposed=dora), precision=precision)
    expected = harness.train(job(f"shard-{precision}-{dora}", **kinds), 2)
    assert expected.losses[-1] < expected.losses[0]
    for number, mode in enumerate(MODES):
        found = harness.train(job(f"shard-{precision}-{dora}-{number}", **kinds, **mode), 2)
        assert found.losses == expected.losses, mode
        assert found.report["update_sha256"] == expected.report["update_sha256"], mode
        assert found.report["validation"] == expected.report["validation"], mode
    alone = harness.train(job(f"shard-{precision}-{dora}-alone", **kinds))
    for mine, theirs in zip(alone.losses, expected.losses):
        assert harness.relative(mine, theirs) < (1e-5 if precision == "fp32" else 1e-2)


@pytest.mark.parametrize("dora", [False, True])
def test_dropout_depends_on_seed_step_and_rank(setting, dora):
    folder, _, tokens, given_job = setting

    def job(name, **changes):
        return given_job(f"{name}-{dora}", **changes)

    dropped = dict(settings=lora(modules=ALL, weight_decomposed=dora) | dict(dropout=0.3), steps=6, micro_batch_size=6)
    first, again = harness.train(job("dropped", **dropped), 2), harness.train(job("again", **dropped), 2)
    sharded = harness.train(job("dropped-full", **dropped, sharding="full", recompute="full"), 2)
    other = harness.train(job("other", **dropped, seed=5), 2)
    without = harness.train(job("without", settings=lora(modules=ALL, weight_decomposed=dora), steps=6, micro_batch_size=6), 2)
    for run in (again, sharded):
        assert run.losses == first.losses and run.report["update_sha256"] == first.report["update_sha256"]
    assert other.losses[0] != first.losses[0] != without.losses[0]
    assert first.losses[0] != first.report["validation"][0]["nll_before"]
    assert first.report["validation"][0]["nll_before"] == without.report["validation"][0]["nll_before"], "not in validation"
    found = harness.evaluate(folder / "plain", tokens, "--adapter", first.folder / "update")["nll"]
    assert harness.relative(first.report["validation"][0]["nll_after"], found) < 1e-5, "not after the training's steps either"
    assert abs(first.losses[0] - without.losses[0]) < 0.3
    config = json.loads((first.folder / "update" / "adapter_config.json").read_text())
    assert config["lora_dropout"] == 0.3


def test_trains_with_groups_and_cheap_recomputation(setting):
    _, _, _, job = setting
    groups = dict(count=2, interval=2, exchange="weights", weighting="equal",
                  outer=dict(kind="average", learning_rate=1.0, momentum=0.9, beta1=0.9, beta2=0.99, epsilon=1e-8))
    kinds = dict(settings=lora(modules=ALL) | dict(dropout=0.2), steps=4)
    grouped = harness.train(job("grouped", groups=groups, **kinds), 2)
    assert grouped.losses[-1] < grouped.losses[0]
    cheap, plain = harness.train(job("cheap", recompute="cheap", **kinds)), harness.train(job("kept", **kinds))
    assert cheap.report["update_sha256"] == plain.report["update_sha256"]


def test_delta_plus_input_adapter_is_the_trained_adapter(setting):
    folder, _, _, job = setting
    weights = harness.train(job("weights"))
    delta = harness.train(job("delta", update_kind="delta"))
    initial, trained, added = (load_file(path / WEIGHTS)
                             for path in (folder / "weights-input", weights.folder / "update", delta.folder / "update"))
    for name, value in trained.items():
        assert torch.equal(added[name], value - initial[name]), name
        assert (added[name] != 0).any(), name


def test_a_checkpoint_holds_only_the_adapter(setting):
    folder, _, _, job = setting
    whole = harness.train(job("whole", steps=60))
    path = job("stopped", steps=60, on_stop="checkpoint", checkpoint_interval=7, adapter=False,
               adapter_path=str(folder / "whole-input"), adapter_sha256=harness.write_manifest(folder / "whole-input"))
    ranks = harness.start_ranks(path)
    state = path.parent / "state"
    deadline = time.monotonic() + 120
    while not list(state.glob("step-????????")) and ranks[0].poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    ranks[0].kill()
    ranks[0].communicate()
    if not (path.parent / "report.json").exists():
        parts = [p for p in state.glob("step-????????/part-*") if ".tmp" not in str(p)]
        assert parts and all(p.stat().st_size < (folder / "plain" / "model.safetensors").stat().st_size for p in parts)
    found = harness.train(path)
    assert found.report["update_sha256"] == whole.report["update_sha256"]


def check_rejected(job, *texts, code=None):
    outcome = harness.train(job, check=False)
    assert outcome.codes[0] not in (0, -11, -6), outcome.output
    for text in texts:
        assert text in outcome.output[0], outcome.output[0]
    assert outcome.report is None


@pytest.mark.parametrize("change,text", [
    (dict(r=5), "rank (5, not 4)"), (dict(lora_alpha=9), "alpha differs"), (dict(use_dora=True), "use_dora differs"), (dict(use_dora="x"), "use_dora"),
    (dict(modules_to_save=["lm_head"]), "modules_to_save differs"), (dict(modules_to_save=["norm"]), "'norm'"),
    (dict(use_rslora=True), "use_rslora differs"), (dict(use_rslora=3), "use_rslora"), (dict(target_modules="all-linear"), "target_modules"),
    (dict(target_modules=["q_proj"]), "target_modules differs"), (dict(target_modules=["q_proj", "lm_head"]), "lm_head"),
    (dict(rank_pattern={"q_proj": 2}), "rank_pattern"), (dict(bias="all"), "bias"), (dict(peft_type="LOHA"), "peft_type"),
    (dict(init_lora_weights="pissa"), "init_lora_weights"), (dict(r=10 ** 9), "r"), (dict(lora_alpha="x"), "lora_alpha")],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "")
def test_an_adapter_with_other_settings_is_rejected(setting, change, text):
    folder, _, _, job = setting
    path = job("refused-config")
    config = folder / "refused-config-input" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    text_of_job = json.loads(path.read_text()) | dict(adapter_sha256=harness.write_manifest(config.parent))
    path.write_text(json.dumps(text_of_job))
    check_rejected(path, text)


@pytest.mark.parametrize("what", ["missing", "extra", "shape", "nan", "hash"])
def test_damaged_adapters_are_rejected(setting, what):
    folder, _, _, job = setting
    path = job(f"damaged-{what}")
    file = folder / f"damaged-{what}-input" / WEIGHTS
    values = load_file(file)
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    text = name
    if what == "missing":
        del values[name]
    elif what == "extra":
        text = "base_model.model.model.layers.9.self_attn.v_proj.lora_B.weight"
        values[text] = values[name].clone()
    elif what == "shape":
        values[name] = values[name][:, :2].clone()
    else:
        values[name][3, 1] = float("nan") if what == "nan" else 0.5
    save_file(values, file, metadata={"format": "pt"})
    if what == "hash":
        text = "adapter_model.safetensors"
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(adapter_sha256=harness.write_manifest(file.parent))))
    check_rejected(path, text)


def test_unsupported_settings_are_rejected_by_name(setting):
    _, _, _, job = setting
    for number, (changes, text) in enumerate([
            (dict(freeze=["*.q_proj.weight", "*.v_proj.lora_?.weight"]), "all parameters of the adapter are frozen"),
            (dict(freeze=["*.lora_A.weight", "model.layers.7.*"]), "'model.layers.7.*' matches no parameter"),
            (dict(settings=lora() | dict(target_modules=["lm_head"])), "target_modules"),
            (dict(settings=lora(rank=0)), "adapter_path")]):
        changes = dict(changes)
        settings = changes.pop("settings", None)
        path = job(f"unsupported-{number}")
        document = json.loads(path.read_text())
        document["training"] |= changes | (dict(lora=settings) if settings else {})
        path.write_text(json.dumps(document))
        check_rejected(path, text)
