#!/usr/bin/env python3
"""Checks that the tokenizers of HF transformers and xffl give the same ids: hf_same_ids.py XFFL_TOKENIZE bpe|unigram VOCAB_SIZE TEXT...

Trains a model on the texts, loads its folder as HF would load a model folder, and compares the ids of every
paragraph and of texts with unusual white space, digits and characters that the training text lacks.
Exit code 77: transformers is not installed, or does not begin with XFFL_TRANSFORMERS.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import transformers
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)
WANTED, FOUND = os.environ.get("XFFL_TRANSFORMERS", ""), transformers.__version__
if not FOUND.startswith(WANTED):
    print(f"SKIPPED: transformers is {FOUND}, expected {WANTED}; scripts/bootstrap.sh test installs it")
    sys.exit(77)

ODD = [
    "Ciao  mondo,\tè già\nora!",
    "spazi dietro  ",
    "Příliš žluťoučký kůň úpěl ďábelské ódy: 1234567890.",
    "漢字 and emoji 🙂, never seen in training",
]


def documents(path):
    return [text for text in path.read_text(encoding="utf-8").strip().split("\n\n")]


def ours(program, folder, texts):
    source, shard = folder / "texts.jsonl", folder / "texts.tokens"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    subprocess.run([program, "encode", "--tokenizer", folder / "tokenizer.model", "--input", source, "--output", shard,
                    "--no-pack", "--no-eos", "--sequence-length", "1000000"], check=True, stdout=subprocess.DEVNULL)
    return read_shard(shard)


def read_shard(path):
    """The sequences of an unpacked shard (docs/reference/token_shards.md)."""
    data = path.read_bytes()
    assert data[:8] == b"XFFLTOK1"
    width = int.from_bytes(data[12:16], "little")
    num_tokens, num_sequences = (int.from_bytes(data[at:at + 8], "little") for at in (32, 40))
    tokens = [int.from_bytes(data[at:at + width], "little") for at in range(64, 64 + num_tokens * width, width)]
    table = (64 + num_tokens * width + 7) // 8 * 8
    begins = [int.from_bytes(data[table + 8 * i:table + 8 * i + 8], "little") for i in range(num_sequences + 1)]
    return [tokens[a:b] for a, b in zip(begins, begins[1:])]


def read_targets(path):
    """For each sequence of an unpacked shard with targets, a list of 0 and 1 (docs/reference/token_shards.md)."""
    data = path.read_bytes()
    assert data[8] == 2
    lengths = [len(ids) for ids in read_shard(path)]
    words = data[len(data) - (sum(lengths) + 63) // 64 * 8:]
    bits = [words[token // 8] >> token % 8 & 1 for token in range(sum(lengths))]
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    return [bits[begin:begin + length] for begin, length in zip(begins, lengths)]


def check(program, kind, vocab_size, sources, folder):
    subprocess.run([program, "train", "--input", *sources, "--output", folder, "--vocab-size", vocab_size, "--model-type", kind],
                   check=True, stdout=subprocess.DEVNULL)
    texts = [text for source in sources for text in documents(source)] + ODD
    expected_ids = ours(program, folder, texts)
    assert len(expected_ids) == len(texts) > len(ODD)
    wrong = 0
    loaders = (transformers.LlamaTokenizer, transformers.AutoTokenizer)
    for loader in loaders if kind == "bpe" else loaders[1:]:
        tokenizer = loader.from_pretrained(folder)
        for text, expected in zip(texts, expected_ids):
            found = tokenizer(text)["input_ids"]
            if found != expected:
                wrong += 1
                print(f"{loader.__name__}: {text[:80]!r}\n  ours {expected[:20]}\n  HF   {found[:20]}")
            elif tokenizer.decode(found, skip_special_tokens=True) != text:
                wrong += 1
                print(f"{loader.__name__}: decodes another text: {text[:80]!r}")
        print(f"{loader.__name__}: {len(texts)} texts compared")
    return wrong


def main(program, kind, vocab_size, *paths):
    print("transformers", transformers.__version__)
    with tempfile.TemporaryDirectory() as folder:
        wrong = check(program, kind, vocab_size, [pathlib.Path(path) for path in paths], pathlib.Path(folder))
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
