"""The command line: info, init, evaluate, and error messages."""

import json
import os
import pathlib
import socket
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import harness

TRAIN = harness.BIN / "xffl-train"


def test_version_and_info():
    assert harness.run([TRAIN, "--version"]).stdout.startswith("xffl-train ")
    info = json.loads(harness.run([TRAIN, "info", "--json"]).stdout)
    assert info["torch"].startswith("2.") and info["threads"] >= 1 and info["world_size"] == 1
    assert isinstance(info["gpus"], list) and isinstance(info["has_gloo"], bool) and isinstance(info["has_nccl"], bool)
    assert info["host"] == socket.gethostname() and 1 <= info["cpus"] <= len(os.sched_getaffinity(0))
    shm = os.statvfs("/dev/shm")
    assert info["shm_bytes"] == shm.f_blocks * shm.f_frsize
    up = {name for _, name in socket.if_nameindex() if name != "lo"}
    assert set(info["addresses"]) <= up and len(info["interfaces"]) == len(info["addresses"])
    for key in ("cuda", "driver", "cudnn", "nccl"):
        assert isinstance(info[key], str)
    assert isinstance(info["architectures"], list)
    assert "cpu_capability" in harness.run([TRAIN, "info"]).stdout


def test_usage_errors_are_named():
    assert harness.run([TRAIN], check=False).returncode == 2
    assert harness.run([TRAIN, "--no-such-option"], check=False).returncode == 2
    missing = harness.run([TRAIN, "--job", "/nowhere/job.json"], check=False)
    assert missing.returncode == 4 and "/nowhere/job.json" in missing.stderr
    wrong = harness.run([TRAIN, "info"], check=False, env={"RANK": "0"})
    assert wrong.returncode == 3 and "WORLD_SIZE is not set" in wrong.stderr


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["plain", "tied", "everything"])
def test_init_makes_a_model_that_transformers_loads(tmp_path, name, dtype):
    harness.make_model(tmp_path / "pattern", initializer_range=0.05, **harness.variants()[name])
    (tmp_path / "spm.model").write_bytes(b"pieces")
    arguments = ["--config", tmp_path / "pattern" / "config.json", "--dtype", dtype, "--seed"]
    harness.run([TRAIN, "init", *arguments, 4, "--output", tmp_path / "a", "--tokenizer", tmp_path / "spm.model"])
    harness.run([TRAIN, "init", *arguments, 4, "--output", tmp_path / "b"])
    harness.run([TRAIN, "init", *arguments, 5, "--output", tmp_path / "c"])
    one, two, other = (load_file(tmp_path / x / "model.safetensors") for x in "abc")
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"]), "the seed decides"
    model = harness.load(tmp_path / "a", dtype="auto")
    assert model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    assert 0.045 < model.model.embed_tokens.weight.float().std() < 0.055
    assert torch.all(model.model.norm.weight == 1)
    assert (tmp_path / "a" / "tokenizer.model").read_bytes() == b"pieces"
    assert (tmp_path / "a" / "manifest.json").exists()
    sequences = harness.make_sequences(4)
    tokens = harness.write_tokens(tmp_path / "t.tokens", sequences)
    nll = harness.hf_evaluate(model.float(), sequences)[1]
    assert harness.relative(harness.evaluate(tmp_path / "a", tokens)["nll"], nll) < 2e-6
    assert harness.run([TRAIN, "init", *arguments, 4, "--output", tmp_path / "a"], check=False).returncode == 2


def test_evaluate_prints_a_table(tmp_path):
    harness.make_model(tmp_path / "m")
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(4))
    text = harness.run([TRAIN, "evaluate", "--model", tmp_path / "m", "--tokens", tokens]).stdout
    found = harness.evaluate(tmp_path / "m", tokens)
    for line in ("sequences         4\n", f"predicted tokens  {found['tokens']}\n", f"loss (nats)       {found['nll']:.6f}\n",
                 f"perplexity        {found['perplexity']:.4f}\n", f"accuracy          {found['accuracy']:.4f}\n"):
        assert line in text, text


def test_a_damaged_model_is_no_success(tmp_path):
    """Its loss and its logits are not numbers."""
    harness.make_model(tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    tokens = harness.write_tokens(tmp_path / "t.tokens", harness.make_sequences(4))
    for command, text in ((["evaluate", "--tokens", tokens], "expected a finite number"),
                          (["generate", "--ids", 5], "not finite")):
        result = harness.run([TRAIN, *command, "--model", tmp_path / "m"], check=False)
        assert result.returncode == 9 and result.stdout == "" and text in result.stderr, result


def test_out_of_memory_is_one_line(tmp_path):
    huge = dict(model_type="llama", vocab_size=1 << 24, hidden_size=1 << 20, num_attention_heads=16, num_hidden_layers=2)
    (tmp_path / "config.json").write_text(json.dumps(huge))
    result = harness.run([TRAIN, "init", "--config", tmp_path / "config.json", "--output", tmp_path / "m"], check=False)
    assert result.returncode == 9 and "out of memory" in result.stderr and "internal" not in result.stderr
    assert result.stderr.count("\n") == 1 and "frame #" not in result.stderr


def test_a_mapped_file_that_is_truncated_is_reported(tmp_path):
    harness.make_model(tmp_path / "m")
    tokens = harness.write_tokens(tmp_path / "t.tokens", [[i % 97 for i in range(250)]] * 3000)
    program = subprocess.Popen([TRAIN, "evaluate", "--model", tmp_path / "m", "--tokens", tokens],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while str(tokens) not in pathlib.Path(f"/proc/{program.pid}/maps").read_text():
        assert program.poll() is None
    os.truncate(tokens, 100)
    output = program.communicate(timeout=60)[0]
    assert program.returncode == 6 and f"{tokens} cannot be read" in output, output
