"""xffl-train generate against Hugging Face's generate: the same tokens."""

import collections
import json

import pytest
import torch

import harness

PROMPT = [5, 17, 3, 96, 41]
NEW = 48


def generate(folder, ids, *arguments, check=True):
    result = harness.run(harness.xffl_train("generate", "--model", folder, "--ids", ",".join(map(str, ids)), *arguments),
                         check=check)
    if not check:
        return result
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(list(line) == ["id"] for line in lines[:-1])
    assert lines[-1]["prompt_tokens"] == len(ids) and lines[-1]["new_tokens"] == len(lines) - 1
    return [line["id"] for line in lines[:-1]], lines[-1]["finish"]


def hf_generate(folder, ids, count=NEW, eos=None, **options):
    model = harness.load(folder).eval()
    model.generation_config.eos_token_id = eos
    model.generation_config.pad_token_id = 0
    tokens = torch.tensor([ids])
    with torch.no_grad():
        found = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, **options)
    return found[0, len(ids):].tolist()


@pytest.mark.parametrize("name", harness.on_gpu(harness.variants(), "everything", "plain"))
def test_greedy_is_token_exact(tmp_path, name):
    harness.make_model(tmp_path / "m", **harness.variants()[name])
    found = generate(tmp_path / "m", PROMPT, "--max-new-tokens", NEW, "--ignore-eos")
    assert found == (hf_generate(tmp_path / "m", PROMPT), "length")
    # Random models soon repeat one token; a penalty varies the text.
    expected = hf_generate(tmp_path / "m", PROMPT, repetition_penalty=1.4)
    assert len(set(expected)) > 3
    found = generate(tmp_path / "m", PROMPT, "--max-new-tokens", NEW, "--ignore-eos", "--repetition-penalty", 1.4)
    assert found == (expected, "length")


def test_several_stop_ids(tmp_path):
    harness.make_model(tmp_path / "m")
    free = hf_generate(tmp_path / "m", PROMPT)
    stops = [next(i for i in range(97) if i not in free), free[9]]  # the first never occurs
    expected = hf_generate(tmp_path / "m", PROMPT, eos=stops)
    assert len(expected) < NEW
    flag = ",".join(map(str, stops))
    assert generate(tmp_path / "m", PROMPT, "--max-new-tokens", NEW, "--ignore-eos", "--stop-ids", flag) == (expected, "stop")
    # The same with the list in config.json, and with generation_config.json, which takes precedence as in HF.
    config, generation = tmp_path / "m" / "config.json", tmp_path / "m" / "generation_config.json"
    plain = json.loads(config.read_text())
    generation.unlink()
    config.write_text(json.dumps({**plain, "eos_token_id": [*stops, 5000]}))
    assert generate(tmp_path / "m", PROMPT, "--max-new-tokens", NEW) == (expected, "stop")
    config.write_text(json.dumps({**plain, "eos_token_id": free[2]}))
    generation.write_text(json.dumps({"eos_token_id": stops}))
    assert generate(tmp_path / "m", PROMPT, "--max-new-tokens", NEW) == (expected, "stop")
    generation.write_text(json.dumps({"temperature": 0.6}))
    assert generate(tmp_path / "m", PROMPT, "--max-new-tokens", NEW)[1] == "stop"


def test_draws_follow_the_reference_probabilities(tmp_path):
    """A model whose next token does not depend on the text: one long sample is many draws."""
    harness.make_model(tmp_path / "m", num_hidden_layers=1, max_position_embeddings=4096)
    from safetensors.torch import load_file, save_file

    path = tmp_path / "m" / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][:] = weights["model.embed_tokens.weight"][:1]
    weights["model.layers.0.self_attn.o_proj.weight"].zero_()
    save_file(weights, path, metadata={"format": "pt"})
    with torch.no_grad():
        logits = harness.load(tmp_path / "m")(torch.tensor([PROMPT])).logits[0, -1].double() / 1.5
    top, ids = logits.topk(6)
    expected = dict(zip(ids.tolist(), torch.softmax(top, 0).tolist()))
    draws = 2000
    found, _ = generate(tmp_path / "m", PROMPT, "--max-new-tokens", draws, "--temperature", 1.5, "--top-k", 6, "--seed", 5,
                        "--ignore-eos")
    counts = collections.Counter(found)
    assert set(counts) <= set(expected)
    chi_squared = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    assert chi_squared < 22.1  # 5 degrees of freedom: beyond this once in 2,000 seeds


def test_the_seed_decides(tmp_path):
    harness.make_model(tmp_path / "m")
    text = lambda seed: generate(tmp_path / "m", PROMPT, "--max-new-tokens", 20, "--temperature", 1, "--ignore-eos", "--seed", seed)
    assert text(3) == text(3)
    assert text(3) != text(4)


def test_ends_at_max_position_embeddings(tmp_path):
    harness.make_model(tmp_path / "m", max_position_embeddings=16)
    ids, finish = generate(tmp_path / "m", PROMPT, "--max-new-tokens", 100, "--ignore-eos")
    assert (len(ids), finish) == (11, "context")


@pytest.mark.parametrize("ids, more, texts", [
    ([1] * 16, [], ["16 tokens", "max_position_embeddings is 16"]),
    ([97], [], ["id 97", "0 to 96"]),
    ([-1], [], ["id -1"]),
    (["x"], [], ["'x' is not a token id"]),
    ([1], ["--top-p", 0], ["--top-p", "found 0"]),
    ([1], ["--max-new-tokens", 0], ["--max-new-tokens"]),
    ([1], ["--stop-ids", 100], ["--stop-ids", "id 100"]),
    ([], [], ["--ids"]),
])
def test_rejects(tmp_path, ids, more, texts):
    harness.make_model(tmp_path / "m", max_position_embeddings=16)
    result = generate(tmp_path / "m", ids, *more, check=False)
    assert result.returncode == 2 and result.stdout == ""
    for text in texts:
        assert text in result.stderr


def test_bf16_generates(tmp_path):
    harness.make_model(tmp_path / "m")
    ids, _ = generate(tmp_path / "m", PROMPT, "--max-new-tokens", 8, "--ignore-eos", "--precision", "bf16")
    assert len(ids) == 8
