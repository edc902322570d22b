"""Exchanges files between xffl and Python's safetensors and transformers, in both directions.

Usage: interop.py PROGRAM MAJOR, where PROGRAM is tests/checkpoint/interop.cc and MAJOR the transformers version.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

PROGRAM, MAJOR = sys.argv[1], sys.argv[2]
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
CONFIGS = {
    "llama2": {},
    "gqa": {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 14, "tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True, "pad_token_id": 0, "rms_norm_eps": 1e-5},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}, "rope_theta": 20000.0},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 64},
               "rope_theta": 500000.0, "eos_token_id": [5, 6], "bos_token_id": 4},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 48, "head_dim": 10},
    "mistral_without_window": {"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": None, "head_dim": 8},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True, "eos_token_id": 7},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "attention_bias": True},
}
KEYS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "mlp_bias",
        "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act", "attention_dropout", "sliding_window",
        "use_sliding_window", "layer_types"]


def run(*arguments):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, f"{arguments}: {result.stderr}"
    return result.stdout


def describe(tensors):
    """The lines that the program prints for these tensors."""
    lines = set()
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        lines.add(f"{name} {DTYPES[tensor.dtype]} {list(tensor.shape)} {hashlib.sha256(raw).hexdigest()}")
    return lines


def check_cpp_to_python(folder):
    path = folder / "cpp.safetensors"
    run("write", path)
    found = load_file(path)
    values = torch.arange(60, dtype=torch.float32) * torch.tensor(0.37) - 11.0
    assert torch.equal(found["f32"], values.reshape(3, 4, 5))
    assert found["scalar"].shape == () and found["scalar"] == values[-1]
    assert found["empty"].shape == (0, 3) and found["empty"].dtype == torch.float16
    assert torch.equal(found["f16"], values.half())
    assert torch.equal(found["bf16"], values.bfloat16())
    assert found["odd"].tolist() == [1, 2, 255] and found["i64"].tolist() == [-5]
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "by": "xffl"}


def check_python_to_cpp(folder):
    torch.manual_seed(1)
    tensors = {str(dtype).split(".")[1]: (torch.randn(5, 3) * 50).to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "one": torch.ones(1, dtype=torch.uint8)}
    save_file(tensors, folder / "python.safetensors", {"format": "pt"})
    lines = set(run("dump", folder / "python.safetensors").splitlines())
    assert lines == describe(tensors) | {"# format=pt"}, lines ^ describe(tensors)


def rope(config):
    """(theta, scaling) in either dialect of transformers."""
    settings = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    theta = settings.pop("rope_theta", None) or config.rope_theta
    settings.pop("type", None)
    return theta, {key: value for key, value in settings.items() if value != "default"}


def make_config(changes):
    base = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 512}
    changes = json.loads(json.dumps(changes))
    return transformers.AutoConfig.for_model(**({"model_type": "llama"} | base | changes))


def check_config(name, folder):
    theirs = make_config(CONFIGS[name])
    theirs.save_pretrained(folder / "theirs")
    ours = folder / "ours"
    ours.mkdir()
    (ours / "config.json").write_text(run("config", folder / "theirs"))
    read = transformers.AutoConfig.from_pretrained(ours)
    assert type(read) is type(theirs)
    for key in (key for key in KEYS if hasattr(theirs, key)):
        assert getattr(read, key) == getattr(theirs, key), f"{name}: {key}: {getattr(read, key)} != {getattr(theirs, key)}"
    assert rope(read) == rope(theirs), f"{name}: {rope(read)} != {rope(theirs)}"
    assert run("config", ours) == (ours / "config.json").read_text()


def check_model(folder):
    torch.manual_seed(2)
    model = transformers.LlamaForCausalLM(make_config(CONFIGS["llama2"])).bfloat16()
    model.save_pretrained(folder / "one", safe_serialization=True)
    model.save_pretrained(folder / "many", max_shard_size="20KB", safe_serialization=True)
    expected = describe(model.state_dict())
    assert (folder / "many" / "model.safetensors.index.json").exists()
    for source in ("one", "many"):
        assert set(run("model", folder / source).splitlines()) == expected
        split = folder / (source + "-split")
        run("split", folder / source, split)
        (split / "config.json").write_text(run("config", folder / source))
        index = json.loads((split / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(t.numel() * 2 for t in model.state_dict().values())
        loaded = transformers.LlamaForCausalLM.from_pretrained(split, **{
            "dtype" if MAJOR == "5" else "torch_dtype": "auto"})
        assert loaded.dtype == torch.bfloat16
        assert describe(loaded.state_dict()) == expected


def main():
    assert transformers.__version__.split(".")[0] == MAJOR, transformers.__version__
    with tempfile.TemporaryDirectory() as temp:
        root = pathlib.Path(temp)
        check_cpp_to_python(root)
        check_python_to_cpp(root)
        for name in CONFIGS:
            (root / name).mkdir()
            check_config(name, root / name)
        check_model(root)
    print(f"checked against transformers {transformers.__version__}, torch {torch.__version__}")


main()
