#!/usr/bin/env python3
"""Checks --truncate and --pad-id against truncation and padding in HF transformers: hf_truncation.py XFFL_TOKENIZE TOKENIZER_FOLDER TEXT...

The records equal those of tokenizer(texts, truncation=True, max_length=N, padding="max_length") for several N, with BOS alone and with
BOS and EOS, and the targets equal the attention mask. Exit code 77: transformers is not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import transformers
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

from hf_same_ids import documents, read_shard, read_targets

BOS, EOS, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"


def with_eos(source, folder):
    """The tokenizer with a post-processor that also adds EOS."""
    file = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in file["added_tokens"]}
    file["post_processor"] = {
        "type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": EOS, "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (BOS, EOS)}}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    return folder


def compare(program, tokenizer_folder, eos, texts, length, folder):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_folder / "tokenizer.json"), pad_token=PAD)
    expected = tokenizer(texts, truncation=True, max_length=length, padding="max_length")
    source, shard = folder / "texts.jsonl", folder / "texts.tokens"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    command = [program, "encode", "--tokenizer", tokenizer_folder, "--input", source, "--output", shard, "--truncate",
               "--sequence-length", str(length), "--eos" if eos else "--no-eos"]
    subprocess.run(command + ["--pad-id", str(tokenizer.pad_token_id)], check=True, stdout=subprocess.DEVNULL)
    padded = read_shard(shard) == expected["input_ids"] and read_targets(shard) == expected["attention_mask"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    cut = read_shard(shard) == tokenizer(texts, truncation=True, max_length=length)["input_ids"]
    longer = sum(len(ids) > length for ids in tokenizer(texts)["input_ids"])
    print(f"length {length}, {'BOS and EOS' if eos else 'BOS'}: {len(texts)} records, {longer} cut: "
          f"{'equal' if padded and cut else 'DIFFERENT'}")
    assert 0 < longer < len(texts) or length != 24
    return not (padded and cut)


def main(program, source, *paths):
    print("transformers", transformers.__version__)
    source = pathlib.Path(source)
    texts = [text for path in paths for text in documents(pathlib.Path(path))]
    texts += [" ".join(texts[:count]) for count in range(2, 8)] + ["a", "é"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        both = with_eos(source, folder / "both")
        wrong = sum(compare(program, tokenizer, eos, texts, length, folder)
                    for length in (3, 8, 24, 100) for tokenizer, eos in ((source, False), (both, True)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
