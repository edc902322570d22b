"""Text generation: xffl-tokenize generate, which `xffl generate` executes, against HF's generate and tokenizer."""

import json
import pathlib
import shutil

import pytest
import torch
from transformers import AutoTokenizer

import harness
from test_generate import hf_generate

DATA = pathlib.Path(__file__).parents[1] / "tokenize" / "data"
PROMPT = "Il comune di Brno"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not (harness.BIN / "xffl-tokenize").exists():
        pytest.skip("xffl-tokenize is not built here")
    path = tmp_path_factory.mktemp("text") / "m"
    harness.make_model(path, vocab_size=500)
    tokenizer = path.parent / "tokenizer"
    harness.run([harness.BIN / "xffl-tokenize", "train", "--input", DATA / "it.txt", DATA / "cs.txt", "--output", tokenizer,
                 "--vocab-size", 500])
    for file in tokenizer.iterdir():
        shutil.copy(file, path)
    return path


def generate(folder, *arguments, check=True):
    return harness.run([harness.BIN / "xffl-tokenize", "generate", "--model", folder, *arguments], check=check)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_text_equals_hf(folder, tmp_path, penalty):
    """Includes the broken characters of a random model: streamed text equals the text of all ids at once."""
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT).input_ids
    expected = ids + hf_generate(folder, ids, count=40, repetition_penalty=penalty)
    (tmp_path / "ids.jsonl").write_text(json.dumps(expected) + "\n")
    whole = harness.run([harness.BIN / "xffl-tokenize", "decode", "--tokenizer", folder, "--input", tmp_path / "ids.jsonl"]).stdout
    found = generate(folder, "--prompt", PROMPT, "--max-new-tokens", 40, "--ignore-eos", "--repetition-penalty", penalty).stdout
    assert (PROMPT + found).strip("\n") == whole.strip("\n")


def test_json_output_and_prompt_file_give_the_same_text(folder, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    arguments = ["--max-new-tokens", 12, "--temperature", 0.8, "--seed", 3]
    text = generate(folder, "--prompt", PROMPT, *arguments).stdout[:-1]
    found = json.loads(generate(folder, "--prompt-file", tmp_path / "prompt.txt", "--json", *arguments).stdout)
    assert found["text"] == text and found["new_tokens"] <= 12


def test_several_sequences_are_those_of_the_following_seeds(folder):
    arguments = ["--prompt", PROMPT, "--max-new-tokens", 8, "--temperature", 0.9]
    found = [json.loads(line) for line in generate(folder, *arguments, "--json", "--seed", 5, "--sequences", 3).stdout.splitlines()]
    alone = [json.loads(generate(folder, *arguments, "--json", "--seed", seed).stdout) for seed in (5, 6, 7)]
    assert [{**each, "seconds": 0} for each in found] == [{**each, "seconds": 0} for each in alone]
    assert len({each["text"] for each in found}) == 3
    plain = generate(folder, *arguments, "--seed", 5, "--sequences", 3).stdout
    assert plain == "\n---\n".join(each["text"] for each in found) + "\n"
    refused = generate(folder, "--prompt", PROMPT, "--sequences", 2, check=False)
    assert refused.returncode == 2 and "--temperature 0" in refused.stderr
    refused = generate(folder, "--prompt", PROMPT, "--sequences", 0, check=False)
    assert refused.returncode != 0 and "--sequences" in refused.stderr


def test_xffl_generate_executes_xffl_tokenize(folder):
    """Arguments, output and exit code are passed through."""
    if not (harness.BIN / "xffl").exists():
        pytest.skip("xffl is not built here")
    arguments = ["--prompt", PROMPT + " --prompt 'x'", "--max-new-tokens", 10, "--temperature", 0.7, "--seed", 5, "--json"]
    found = json.loads(harness.run([harness.BIN / "xffl", "generate", "--model", folder, *arguments]).stdout)
    expected = json.loads(generate(folder, *arguments).stdout)
    assert {**found, "seconds": 0} == {**expected, "seconds": 0} and 0 < found["new_tokens"] <= 10
    refused = harness.run([harness.BIN / "xffl", "generate", "--model", folder], check=False)
    assert refused.returncode == 2 and "--prompt" in refused.stderr
    help_text = harness.run([harness.BIN / "xffl", "generate", "--help"]).stdout
    assert "--max-new-tokens" in help_text, "of xffl-tokenize generate, not of xffl"


def test_the_trainers_errors_are_passed_on(folder):
    result = generate(folder, "--prompt", PROMPT * 100, check=False)
    assert result.returncode == 2 and "max_position_embeddings" in result.stderr and result.stdout == ""
    result = generate(folder, check=False)
    assert result.returncode == 2 and "--prompt" in result.stderr
    result = generate(folder, "--prompt", "a", "--trainer", "/nowhere/xffl-train", check=False)
    assert result.returncode != 0 and "cannot start /nowhere/xffl-train" in result.stderr
