#!/usr/bin/env python3
"""Converts a checkpoint that Meta publishes (consolidated.*.pth, params.json, tokenizer.model) to a Hugging Face folder.

    scripts/convert_meta.py META_FOLDER OUTPUT_FOLDER [--tokenizer FILE] [--dtype bfloat16] [--max-positions N] [--rope-factor X]

Needs torch and safetensors, and not transformers. torch.load(weights_only=True) reads the pickles, so a file cannot run code. The
folder has LLaMA 1, 2, 3, 3.1, 3.2 (text) or 3.3, in any number of model-parallel files. The output has config.json, model.safetensors
or its shards with an index, and a tokenizer: a SentencePiece tokenizer.model as it is, a tiktoken one as tokenizer.json.
"""
import argparse
import base64
import json
import os
import pathlib
import re
import shutil
import sys

import torch
from safetensors.torch import save_file

# The dimension along which Meta's model parallelism splits a tensor; None: each file has the whole tensor.
SPLITS = {"attention.wq": 0, "attention.wk": 0, "attention.wv": 0, "attention.wo": 1, "feed_forward.w1": 0, "feed_forward.w2": 1,
          "feed_forward.w3": 0, "attention_norm": None, "ffn_norm": None}
NAMES = {"attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
         "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
         "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
IGNORED = re.compile(r"(layers\.\d+\.attention\.inner_attention\.)?rope\.freqs")
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                  r"|\s+(?!\S)|\s+")
LLAMA3_SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                   "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
                   "<|python_tag|>"]
NUM_SPECIALS = 256


class ConversionError(Exception):
    """The input is not a checkpoint that this program converts."""


def read_params(folder):
    path = folder / "params.json"
    if not path.exists():
        raise ConversionError(f"{path} does not exist: give the folder of Meta's checkpoint, with params.json and consolidated.*.pth")
    try:
        params = json.loads(path.read_text())
        params = {key: params[key] for key in ("dim", "n_layers", "n_heads", "norm_eps")} | params
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{path}: expected an object with dim, n_layers, n_heads and norm_eps ({error!r})") from error
    for key in ("moe", "vision_chunk_size", "quantization_args", "lora_args"):
        if params.get(key):
            raise ConversionError(f"{path}: '{key}' is set; this program converts dense text models in float types only")
    return params


class Meta:
    """The tensors of all model-parallel files; each file is mapped, not read as a whole."""

    def __init__(self, folder, params):
        self.paths = sorted(folder.glob("consolidated.*.pth"))
        if not self.paths:
            raise ConversionError(f"{folder}: no consolidated.*.pth")
        numbers = [path.name.split(".")[1] for path in self.paths]
        if numbers != [f"{i:02}" for i in range(len(numbers))]:
            raise ConversionError(f"{folder}: expected consolidated.00.pth to consolidated.{len(numbers) - 1:02}.pth, found {numbers}")
        self.params = params
        self.parts = [self._load(path) for path in self.paths]
        for path, part in zip(self.paths, self.parts):
            if part.keys() != self.parts[0].keys():
                odd = sorted(part.keys() ^ self.parts[0].keys())[0]
                raise ConversionError(f"{path}: has other tensors than {self.paths[0].name}: '{odd}' is in one of them only")
        self.used = set()

    @staticmethod
    def _load(path):
        try:
            part = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # torch raises UnpicklingError, RuntimeError and others
            raise ConversionError(f"{path}: torch.load(weights_only=True) refuses the file: {str(error).splitlines()[0]}") from error
        if not isinstance(part, dict) or not all(isinstance(each, torch.Tensor) for each in part.values()):
            raise ConversionError(f"{path}: expected a dictionary of tensors")
        return part

    def has(self, name):
        return name in self.parts[0]

    def take(self, name, dim, shape):
        """The whole tensor, from its parts along `dim`; its shape is checked."""
        if not self.has(name):
            raise ConversionError(f"{self.paths[0]}: the tensor '{name}' is missing")
        self.used.add(name)
        parts = [part[name] for part in self.parts]
        if dim is None:
            whole = parts[0]
        else:
            # With more files than key/value heads, several files in a row have the same heads.
            copies = max(1, sum(part.shape[dim] for part in parts) // shape[dim]) if parts[0].dim() > dim else 1
            whole = torch.cat(parts[::copies], dim)
        if tuple(whole.shape) != tuple(shape):
            raise ConversionError(f"{name}: {len(parts)} files make the shape {list(whole.shape)}, expected {list(shape)} by params.json")
        return whole

    def check_all_used(self):
        rest = sorted(name for name in self.parts[0] if name not in self.used and not IGNORED.fullmatch(name))
        if rest:
            raise ConversionError(f"{self.paths[0]}: '{rest[0]}' and {len(rest) - 1} more tensors are not those of a dense LLaMA")


def halves(weight, num_heads):
    """From Meta's rotary pairs (0, 1), (2, 3), ... to Hugging Face's pairs (i, i + head_dim / 2)."""
    rows, columns = weight.shape
    return weight.view(num_heads, rows // num_heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def embedding_split(meta, dim):
    """LLaMA 1 and 2 split the embedding by columns, LLaMA 3 by rows of the vocabulary."""
    return 0 if meta.parts[0]["tok_embeddings.weight"].shape[-1] == dim else 1


def sizes_of(meta, params):
    first = meta.parts[0]
    for name in ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight"):
        if name not in first or first[name].dim() != 2:
            raise ConversionError(f"{meta.paths[0]}: expected the matrix '{name}'")
    dim, heads = params["dim"], params["n_heads"]
    if dim % heads:
        raise ConversionError(f"params.json: dim {dim} is no multiple of n_heads {heads}")
    vocab_rows = first["tok_embeddings.weight"].shape[0]
    vocab = vocab_rows * len(meta.parts) if embedding_split(meta, dim) == 0 else vocab_rows
    if params.get("vocab_size", -1) not in (-1, vocab):
        raise ConversionError(f"params.json: vocab_size is {params['vocab_size']}, but the embedding has {vocab} rows")
    return dict(vocab=vocab, dim=dim, heads=heads, kv_heads=params.get("n_kv_heads") or heads, head_dim=dim // heads,
                inner=first["layers.0.feed_forward.w1.weight"].shape[0] * len(meta.parts))


def tensors_of(meta, params, sizes):
    """(name, tensor) in Hugging Face's names, one tensor at a time."""
    dim, head_dim = sizes["dim"], sizes["head_dim"]
    queries, keys, inner = sizes["heads"] * head_dim, sizes["kv_heads"] * head_dim, sizes["inner"]
    shapes = {"attention.wq": (queries, dim), "attention.wk": (keys, dim), "attention.wv": (keys, dim), "attention.wo": (dim, queries),
              "feed_forward.w1": (inner, dim), "feed_forward.w2": (dim, inner), "feed_forward.w3": (inner, dim),
              "attention_norm": (dim,), "ffn_norm": (dim,)}
    split = embedding_split(meta, dim)
    embedding = meta.take("tok_embeddings.weight", split, (sizes["vocab"], dim))
    yield "model.embed_tokens.weight", embedding
    for layer in range(params["n_layers"]):
        for name, dimension in SPLITS.items():
            weight = meta.take(f"layers.{layer}.{name}.weight", dimension, shapes[name])
            if name == "attention.wq":
                weight = halves(weight, sizes["heads"])
            if name == "attention.wk":
                weight = halves(weight, sizes["kv_heads"])
            yield f"model.layers.{layer}.{NAMES[name]}.weight", weight
    yield "model.norm.weight", meta.take("norm.weight", None, (dim,))
    if meta.has("output.weight"):
        head = meta.take("output.weight", 0, (sizes["vocab"], dim))
        if not torch.equal(head, embedding):  # LLaMA 3.2 stores its tied head twice
            yield "lm_head.weight", head
    meta.check_all_used()


class Writer:
    """Writes tensors in files of at most `limit` bytes, then the index of several files."""

    def __init__(self, folder, dtype, limit):
        self.folder, self.dtype, self.limit = folder, dtype, limit
        self.pending, self.pending_bytes, self.files, self.total = {}, 0, [], 0

    def add(self, name, tensor):
        tensor = tensor.to(self.dtype).contiguous()
        size = tensor.numel() * tensor.element_size()
        if self.pending and self.pending_bytes + size > self.limit:
            self._flush()
        self.pending[name] = tensor.clone()  # a mapped file's storage is larger than the tensor
        self.pending_bytes += size
        self.total += size

    def _flush(self):
        path = self.folder / f"part-{len(self.files)}.safetensors"
        save_file(self.pending, path, metadata={"format": "pt"})
        self.files.append((path, list(self.pending)))
        self.pending, self.pending_bytes = {}, 0

    def finish(self):
        self._flush()
        if len(self.files) == 1:
            os.replace(self.files[0][0], self.folder / "model.safetensors")
            return
        weight_map = {}
        for i, (path, names) in enumerate(self.files):
            name = f"model-{i + 1:05}-of-{len(self.files):05}.safetensors"
            os.replace(path, self.folder / name)
            weight_map |= {tensor: name for tensor in names}
        index = {"metadata": {"total_size": self.total}, "weight_map": dict(sorted(weight_map.items()))}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def config_of(params, sizes, tied, dtype, tokens, options):
    """config.json. params.json has neither the context length nor, in most releases, the factor of the RoPE scaling."""
    theta = float(params.get("rope_theta") or 10000.0)
    scaling, positions = None, 8192 if theta == 500000.0 else 4096
    if params.get("use_scaled_rope"):
        # Meta's code: 8 for LLaMA 3.1 and 3.3; 32 for LLaMA 3.2, whose heads are tied.
        factor = options.rope_factor or params.get("rope_scaling_factor") or (32.0 if tied else 8.0)
        scaling = dict(rope_type="llama3", factor=float(factor), low_freq_factor=1.0,
                       high_freq_factor=float(params.get("rope_high_freq_factor") or 4.0), original_max_position_embeddings=8192)
        positions = 131072
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", attention_bias=False, mlp_bias=False,
                attention_dropout=0.0, vocab_size=sizes["vocab"], hidden_size=sizes["dim"], intermediate_size=sizes["inner"],
                num_hidden_layers=params["n_layers"], num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv_heads"],
                head_dim=sizes["head_dim"], max_position_embeddings=options.max_positions or positions, rms_norm_eps=params["norm_eps"],
                rope_theta=theta, rope_scaling=scaling, initializer_range=0.02, tie_word_embeddings=tied, use_cache=True,
                torch_dtype=dtype, **tokens)


def read_ranks(path):
    """The tokens of a tiktoken file, lines of base64 and rank; None for another file, which SentencePiece reads."""
    ranks = {}
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
    except ValueError:  # not ASCII, not two words, not base64
        return None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ConversionError(f"{path}: expected each of the ranks 0 to {len(ranks) - 1} once")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ConversionError(f"{path}: no token for the byte {missing[0]}")
    return ranks


def byte_alphabet():
    """GPT-2's spelling of bytes by printable characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def merges_of(ranks):
    """tiktoken merges any neighbours whose bytes are a token, the smallest rank first: each split of a token in two tokens is a merge."""
    for token in sorted(ranks, key=ranks.get):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def tokenizer_json(ranks, num_specials):
    spelling = byte_alphabet()

    def spell(token):
        return "".join(spelling[byte] for byte in token)

    names = (LLAMA3_SPECIALS + [f"<|reserved_special_token_{i}|>" for i in range(2, NUM_SPECIALS)])[:num_specials]
    added = [dict(id=len(ranks) + i, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, name in enumerate(names)]
    bos = names[0]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
                pre_tokenizer=dict(type="Sequence", pretokenizers=[
                    dict(type="Split", pattern=dict(Regex=LLAMA3_PATTERN), behavior="Isolated", invert=False),
                    dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)]),
                post_processor=dict(type="Sequence", processors=[
                    dict(type="ByteLevel", add_prefix_space=True, trim_offsets=False, use_regex=True),
                    dict(type="TemplateProcessing", single=[dict(SpecialToken=dict(id=bos, type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
                         pair=[dict(SpecialToken=dict(id=bos, type_id=0)), dict(Sequence=dict(id="A", type_id=0)),
                               dict(SpecialToken=dict(id=bos, type_id=1)), dict(Sequence=dict(id="B", type_id=1))],
                         special_tokens={bos: dict(id=bos, ids=[len(ranks)], tokens=[bos])})]),
                decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                           fuse_unk=False, byte_fallback=False, ignore_merges=True, vocab={spell(token): rank for token, rank in sorted(ranks.items(), key=lambda item: item[1])},
                           merges=[[spell(left), spell(right)] for left, right in merges_of(ranks)]))


def convert_tokenizer(path, output, vocab_size):
    """Writes the tokenizer; returns the keys of config.json that name its tokens."""
    ranks = read_ranks(path)
    if ranks is None:
        shutil.copyfile(path, output / "tokenizer.model")
        return dict(bos_token_id=1, eos_token_id=2)
    num_specials = vocab_size - len(ranks)
    if not 2 <= num_specials <= NUM_SPECIALS:
        raise ConversionError(f"{path}: {len(ranks)} tokens, but the model has {vocab_size}: expected 2 to {NUM_SPECIALS} special tokens more")
    (output / "tokenizer.json").write_text(json.dumps(tokenizer_json(ranks, num_specials), ensure_ascii=False, indent=1) + "\n")
    config = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=LLAMA3_SPECIALS[0], eos_token=LLAMA3_SPECIALS[1],
                  clean_up_tokenization_spaces=False, model_input_names=["input_ids", "attention_mask"])
    (output / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return dict(bos_token_id=len(ranks), eos_token_id=len(ranks) + 1)


def convert(folder, output, options):
    params = read_params(folder)
    tokenizer = pathlib.Path(options.tokenizer) if options.tokenizer else folder / "tokenizer.model"
    if not tokenizer.exists():
        raise ConversionError(f"{tokenizer} does not exist: name the tokenizer's file by --tokenizer, often ../tokenizer.model")
    if output.exists() and any(output.iterdir()):
        raise ConversionError(f"{output} already exists and is not empty: choose a new folder")
    meta = Meta(folder, params)
    sizes = sizes_of(meta, params)
    part = output.with_name(output.name + ".part")  # renamed when it is complete
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tokens = convert_tokenizer(tokenizer, part, sizes["vocab"])
    writer = Writer(part, getattr(torch, options.dtype), options.max_file_bytes)
    names = []
    for name, tensor in tensors_of(meta, params, sizes):
        writer.add(name, tensor)
        names.append(name)
    writer.finish()
    config = config_of(params, sizes, "lm_head.weight" not in names, options.dtype, tokens, options)
    (part / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    part.replace(output)
    return config, writer.total


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--tokenizer", help="tokenizer.model, if it is not in the folder")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--max-positions", type=int, help="max_position_embeddings; default: 4096, LLaMA 3: 8192, with scaled RoPE: 131072")
    parser.add_argument("--rope-factor", type=float, help="of scaled RoPE; default: params.json, else 8, with a tied head (LLaMA 3.2) 32")
    parser.add_argument("--max-file-bytes", type=int, default=5_000_000_000, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        config, total = convert(options.folder, options.output, options)
    except ConversionError as error:
        print(f"convert_meta: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: {config['num_hidden_layers']} layers of width {config['hidden_size']}, {total / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
