"""xffl-train evaluate against Hugging Face's models in float32."""

import json
import os
import pathlib
import sys

import pytest
import torch

import harness

HERE = pathlib.Path(__file__).parent


def check(tmp_path, **changes):
    folder = tmp_path / "model"
    harness.make_model(folder, **changes)
    sequences = harness.make_sequences(11, lengths=(2, 120)) + [[5]]
    tokens = harness.write_tokens(tmp_path / "t.tokens", sequences)
    count, nll, means = harness.hf_evaluate(harness.load(folder), sequences)
    found = harness.evaluate(folder, tokens, "--batch-size", 4)
    assert sorted(found) == ["accuracy", "nll", "per_sequence", "perplexity", "tokens"]
    assert found["tokens"] == count
    assert harness.relative(found["nll"], nll) < harness.TOLERANCE["nll"]
    assert found["perplexity"] == pytest.approx(2.718281828459045 ** found["nll"], rel=1e-9)
    assert found["accuracy"] == harness.hf_accuracy(harness.load(folder), sequences)
    assert found["per_sequence"][-1] is None and means[-1] is None
    for mine, theirs in zip(found["per_sequence"][:-1], means[:-1]):
        assert harness.relative(mine, theirs) < harness.TOLERANCE["sequence"]


@pytest.mark.parametrize("name", harness.on_gpu(harness.variants(), "plain", "everything", "grouped_queries_odd_head_dim"))
def test_variant(tmp_path, name):
    check(tmp_path, **harness.variants()[name])


@pytest.mark.parametrize("dtype", harness.on_gpu([torch.bfloat16, torch.float16], torch.bfloat16))
def test_half_precision_files_are_read_exactly(tmp_path, dtype):
    check(tmp_path, dtype=dtype)


def test_sharded_checkpoint(tmp_path):
    check(tmp_path, max_shard_size="40KB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2


@pytest.mark.gpu
def test_bf16_is_near(tmp_path):
    folder = tmp_path / "model"
    harness.make_model(folder, **harness.variants()["everything"])
    sequences = harness.make_sequences(8)
    tokens = harness.write_tokens(tmp_path / "t.tokens", sequences)
    exact = harness.evaluate(folder, tokens)["nll"]
    assert 0 < harness.relative(harness.evaluate(folder, tokens, "--precision", "bf16")["nll"], exact) < harness.TOLERANCE["bf16"]


def test_transformers_4_dialect(tmp_path):
    """The same variants, made and measured by transformers 4, which writes rope_scaling and torch_dtype."""
    old = os.environ.get("XFFL_TRANSFORMERS4", "")
    if not os.path.isdir(old):
        pytest.skip(f"transformers 4 is not installed at '{old}' (XFFL_TRANSFORMERS4)")
    environment = {**os.environ, "PYTHONPATH": f"{old}:{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    probe = harness.run([sys.executable, "-c", "from transformers import LlamaForCausalLM"], check=False, env=environment)
    if probe.returncode != 0:
        pytest.skip(f"transformers 4 at '{old}' cannot be imported: {probe.stderr.strip().splitlines()[-1]}")
    script = "import test_hf_parity as t, pathlib, sys; t.check_all(pathlib.Path(sys.argv[1]))"
    result = harness.run([sys.executable, "-c", script, tmp_path], env=environment, timeout=500)
    assert result.stdout.startswith("transformers 4."), result.stdout


def check_all(folder):
    import transformers

    for name, changes in harness.variants().items():
        (folder / name).mkdir()
        check(folder / name, **changes)
        config = json.loads((folder / name / "model" / "config.json").read_text())
        assert "rope_theta" in config and "rope_parameters" not in config
    print("transformers " + transformers.__version__)
