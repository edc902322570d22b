"""A tiny LLaMA and sequences for it, made by the real programs: BIN_FOLDER and SOURCE_FOLDER are the script's arguments."""
import json
import pathlib
import random
import subprocess
import sys

BIN, SOURCE = map(pathlib.Path, sys.argv[1:3])
VOCAB, LENGTH = 64, 32
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": VOCAB,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}


def run(*argv, code=0, env=None):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, env=env)
    assert done.returncode == code, f"{argv}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_sequences(path, seed, count):
    """Sequences with something to learn: each id follows from the one before, but for some noise."""
    source = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(count):
            ids = [source.randrange(3, VOCAB)]
            while len(ids) < LENGTH:
                ids.append(3 + (ids[-1] * 5 + seed) % (VOCAB - 3) if source.random() < 0.9 else source.randrange(3, VOCAB))
            file.write(json.dumps(ids) + "\n")


def encode(folder, name, seed, count):
    write_sequences(folder / f"{name}.jsonl", seed, count)
    run(BIN / "xffl-tokenize", "encode", "--format", "ids", "--no-pack", "--vocab-size", VOCAB, "--sequence-length",
        LENGTH, "--input", folder / f"{name}.jsonl", "--output", folder / f"{name}.tokens")


def make_model(folder):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run(BIN / "xffl-train", "init", "--config", folder / "config.json", "--seed", 1, "--output", folder / "model")
