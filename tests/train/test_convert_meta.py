"""scripts/convert_meta.py on made-up checkpoints of Meta: the logits of Meta's model, in Hugging Face's and in xffl's.

The reference is the model as Meta's published code computes it: rotary embedding of neighbouring pairs, by complex numbers.
"""

import base64
import json
import math
import pathlib
import sys

import pytest
import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import convert_meta  # noqa: E402

LLAMA2 = dict(dim=48, n_layers=2, n_heads=4, norm_eps=1e-5, vocab_size=-1, multiple_of=16)
LLAMA3 = LLAMA2 | dict(n_kv_heads=2, rope_theta=500000.0)
INNER, VOCAB = 80, 320


def tensors(params, tied=False, seed=0):
    torch.manual_seed(seed)
    dim, keys = params["dim"], params.get("n_kv_heads", params["n_heads"]) * params["dim"] // params["n_heads"]
    shapes = {"tok_embeddings.weight": (VOCAB, dim), "norm.weight": (dim,), "output.weight": (VOCAB, dim)}
    for i in range(params["n_layers"]):
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in {
            "attention.wq": (dim, dim), "attention.wk": (keys, dim), "attention.wv": (keys, dim), "attention.wo": (dim, dim),
            "feed_forward.w1": (INNER, dim), "feed_forward.w2": (dim, INNER), "feed_forward.w3": (INNER, dim),
            "attention_norm": (dim,), "ffn_norm": (dim,)}.items()}
    found = {name: torch.randn(shape) * 0.15 + (len(shape) == 1) for name, shape in shapes.items()}
    if tied:
        found["output.weight"] = found["tok_embeddings.weight"].clone()
    return found


def scaled(frequency, factor=8.0, low=1.0, high=4.0, old=8192):
    wavelength = 2 * math.pi / frequency
    if wavelength < old / high:
        return frequency
    if wavelength > old / low:
        return frequency / factor
    smooth = (old / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def reference_logits(params, weights, ids, factor=8.0):
    weights = {name: tensor.double() for name, tensor in weights.items()}
    heads, head_dim = params["n_heads"], params["dim"] // params["n_heads"]
    kv_heads, length = params.get("n_kv_heads", heads), len(ids)
    frequencies = [params.get("rope_theta", 10000.0) ** (-i / head_dim) for i in range(0, head_dim, 2)]
    if params.get("use_scaled_rope"):
        frequencies = [scaled(frequency, factor) for frequency in frequencies]
    angles = torch.outer(torch.arange(length).double(), torch.tensor(frequencies).double())
    turns = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + params["norm_eps"]) * weights[name + ".weight"]

    def rotate(x):
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(2)

    x = weights["tok_embeddings.weight"][ids]
    for i in range(params["n_layers"]):
        def linear(y, name):
            return y @ weights[f"layers.{i}.{name}.weight"].T

        y = norm(x, f"layers.{i}.attention_norm")
        q = rotate(linear(y, "attention.wq").view(length, heads, head_dim)).transpose(0, 1)
        k = rotate(linear(y, "attention.wk").view(length, kv_heads, head_dim)).transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
        v = linear(y, "attention.wv").view(length, kv_heads, head_dim).transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
        scores = q @ k.transpose(1, 2) / math.sqrt(head_dim) + torch.full((length, length), -torch.inf).triu(1)
        x = x + linear((scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1), "attention.wo")
        y = norm(x, f"layers.{i}.ffn_norm")
        x = x + linear(torch.nn.functional.silu(linear(y, "feed_forward.w1")) * linear(y, "feed_forward.w3"), "feed_forward.w2")
    return norm(x, "norm") @ weights["output.weight"].T


def write_meta(folder, params, weights, files=1, embedding_dim=1):
    """Splits the tensors as Meta's model parallelism; more files than key/value heads repeat the heads."""
    folder.mkdir(parents=True)
    (folder / "params.json").write_text(json.dumps(params))
    dims = {"tok_embeddings": embedding_dim, "output": 0, **convert_meta.SPLITS}
    for rank in range(files):
        part = {"rope.freqs": torch.ones(4)}
        for name, tensor in weights.items():
            key = name.removesuffix(".weight").split(".", 2)[-1] if name.startswith("layers") else name.removesuffix(".weight")
            dim = dims.get(key)
            kv_heads = params.get("n_kv_heads", params["n_heads"])
            copies = max(1, files // kv_heads) if key in ("attention.wk", "attention.wv") else 1
            part[name] = tensor.clone() if dim is None else tensor.chunk(files // copies, dim)[rank // copies].clone()
        torch.save(part, folder / f"consolidated.{rank:02}.pth")


def write_sentencepiece(path):
    text = path.parent / "text.txt"
    text.write_text("\n".join(f"the quick brown fox {i} jumps over the lazy dog {i * i}" for i in range(300)))
    sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=VOCAB,
                                             byte_fallback=True, model_type="bpe", minloglevel=2)
    text.unlink()


def byte_level():
    """A byte-level tokenizer of VOCAB - 16 tokens, as Hugging Face's library trains it, and its ranks as tiktoken writes them."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(convert_meta.LLAMA3_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 16, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([f"the quick brown fox {i} jumps over the lazy dog, però più {i * i}" for i in range(300)], trainer)
    letters = {letter: byte for byte, letter in convert_meta.byte_alphabet().items()}
    lines = [base64.b64encode(bytes(letters[c] for c in token)).decode() + f" {rank}\n"
             for token, rank in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    return tokenizer, "".join(lines)


CASES = {
    "llama2": (LLAMA2, dict()),
    "llama2_two_files": (LLAMA2, dict(files=2)),
    "llama3": (LLAMA3, dict(files=2, embedding_dim=0)),
    "more_files_than_kv_heads": (LLAMA3, dict(files=4, embedding_dim=0)),
    "llama31": (LLAMA3 | dict(use_scaled_rope=True, vocab_size=VOCAB), dict(embedding_dim=0)),
}


def expect_same_logits(folder, params, weights, factor=8.0):
    ids = [1, 5, 17, 200, 33, 33, 4, 250, 99, 7, 8, 9, 311]
    expected = reference_logits(params, weights, ids, factor)
    with torch.no_grad():
        found = harness.load(folder)(torch.tensor([ids])).logits[0]
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()
    nll = torch.nn.functional.cross_entropy(expected[:-1], torch.tensor(ids[1:])).item()
    tokens = harness.write_tokens(folder.parent / "t.tokens", [ids], vocab_size=VOCAB)
    assert harness.relative(harness.evaluate(folder, tokens)["nll"], nll) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_metas_model(tmp_path, name):
    params, layout = CASES[name]
    weights = tensors(params)
    write_meta(tmp_path / "meta", params, weights, **layout)
    write_sentencepiece(tmp_path / "meta" / "tokenizer.model")
    assert convert_meta.main([str(tmp_path / "meta"), str(tmp_path / "hf"), "--dtype", "float32"]) == 0
    assert (tmp_path / "hf" / "tokenizer.model").read_bytes() == (tmp_path / "meta" / "tokenizer.model").read_bytes()
    expect_same_logits(tmp_path / "hf", params, weights)


def test_a_tied_head_is_stored_once_and_the_factor_is_that_of_llama32(tmp_path):
    params = LLAMA3 | dict(use_scaled_rope=True)
    weights = tensors(params, tied=True)
    write_meta(tmp_path / "meta", params, weights)
    tokenizer, ranks = byte_level()
    (tmp_path / "tokenizer.model").write_text(ranks)
    arguments = [str(tmp_path / "meta"), str(tmp_path / "hf"), "--dtype", "float32", "--tokenizer", str(tmp_path / "tokenizer.model"),
                 "--max-file-bytes", "60000"]
    assert convert_meta.main(arguments) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["tie_word_embeddings"] and config["max_position_embeddings"] == 131072
    assert config["bos_token_id"] == VOCAB - 16 and len(list((tmp_path / "hf").glob("model-*.safetensors"))) > 2
    expect_same_logits(tmp_path / "hf", params, weights, factor=32.0)


def test_a_tiktoken_tokenizer_gives_the_same_ids(tmp_path):
    tokenizer, ranks = byte_level()
    path = tmp_path / "tokenizer.model"
    path.write_text(ranks)
    convert_meta.convert_tokenizer(path, tmp_path, VOCAB)
    converted = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["the quick brown fox", "  jumps over 12345 dogs,\n\n però più", "x" * 50, "日本語 quick", "I'll they're"]
    for text in texts:
        assert converted.encode(text, add_special_tokens=False).ids == tokenizer.encode(text).ids, text
        assert converted.encode(text).ids[0] == VOCAB - 16
    assert converted.token_to_id("<|eot_id|>") == VOCAB - 16 + 9
    source, shard = tmp_path / "texts.jsonl", tmp_path / "texts.tokens"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    harness.run([harness.BIN / "xffl-tokenize", "encode", "--tokenizer", tmp_path / "tokenizer.json", "--input", source, "--output", shard,
                 "--no-pack", "--no-eos", "--sequence-length", "1000"])
    sys.path.insert(0, str(ROOT / "tests" / "tokenize"))
    from hf_same_ids import read_shard
    assert read_shard(shard) == [converted.encode(text).ids for text in texts]


class Runs:
    """Unpickling it would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def expect_refused(tmp_path, capsys, message, name="meta"):
    assert convert_meta.main([str(tmp_path / name), str(tmp_path / "hf")]) == 2
    assert message in capsys.readouterr().err


def test_other_files_are_refused(tmp_path, capsys):
    weights = tensors(LLAMA3)
    expect_refused(tmp_path, capsys, "params.json does not exist")
    write_meta(tmp_path / "meta", LLAMA3, weights)
    expect_refused(tmp_path, capsys, "name the tokenizer's file by --tokenizer")
    write_sentencepiece(tmp_path / "meta" / "tokenizer.model")
    path = tmp_path / "meta" / "consolidated.00.pth"

    torch.save({"x": Runs(tmp_path / "ran")}, path)
    expect_refused(tmp_path, capsys, "torch.load(weights_only=True) refuses the file")
    assert not (tmp_path / "ran").exists()
    torch.save({name: tensor for name, tensor in weights.items() if "wo" not in name}, path)
    expect_refused(tmp_path, capsys, "the tensor 'layers.0.attention.wo.weight' is missing")
    assert not (tmp_path / "hf").exists()
    torch.save(weights | {"layers.0.feed_forward.experts.w1": torch.ones(2)}, path)
    expect_refused(tmp_path, capsys, "'layers.0.feed_forward.experts.w1' and 0 more tensors are not those of a dense LLaMA")
    (tmp_path / "meta" / "consolidated.02.pth").write_bytes(path.read_bytes())
    expect_refused(tmp_path, capsys, "expected consolidated.00.pth to consolidated.01.pth")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "keep").touch()
    expect_refused(tmp_path, capsys, "already exists and is not empty")
