#!/usr/bin/env python3
"""Checks that tokenizer.json gives the ids of HF's tokenizers: hf_same_bpe.py XFFL_TOKENIZE KIND TEXT...

Trains a byte-level BPE of the KIND (llama3, llama4, qwen, gpt2, roberta, splits, digits, smollm), or one with byte fallback
(llama2, replace, first, always, never), on the texts and seeded mixed text with HF's own
library, and compares: masks of prompts, edge cases, about 1 MB of mixed text in one document and in many, every assigned character of
Unicode between letters, the texts of the ids, and texts of ids in no order. Exit code 77: tokenizers is not installed.

hf_same_bpe.py golden FOLDER TEXT... writes the data files of the unit tests; a folder .../llama2 gets a tokenizer of that kind.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hf_same_ids import read_shard, read_targets
from mixed_text import EDGES, mixed_text

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
LLAMA4 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
          r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


PRE_TOKENIZERS = {
    "llama3": pre_tokenizers.Sequence([split(LLAMA3), byte_level()]),
    "llama4": pre_tokenizers.Sequence([split(LLAMA4), byte_level()]),
    "qwen": pre_tokenizers.Sequence([split(QWEN), byte_level()]),
    "gpt2": byte_level(use_regex=True),
    "roberta": byte_level(use_regex=True, add_prefix_space=True),
    "splits": pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split(r"[一-龥぀-ヿ]+"), pre_tokenizers.Split("::", "isolated"),
                                       byte_level(use_regex=True)]),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(use_regex=True)]),
}
PRE_TOKENIZERS["smollm"] = PRE_TOKENIZERS["digits"]


def special_tokens():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|padding|>"]
    return [AddedToken(name, special=True, normalized=False) for name in names] + [
        AddedToken("<|left|>", special=True, lstrip=True, normalized=False),
        AddedToken("<|right|>", special=True, rstrip=True, normalized=False)]


def trained(kind, texts, vocab_size=3000):
    """A byte-level tokenizer; qwen has a normalizer, which takes no added token that is normalized, and no BOS; smollm has no
    token for a byte that the texts lack."""
    qwen = kind == "qwen"
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind.startswith("llama")))
    tokenizer.normalizer = normalizers.NFC() if qwen else None
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[kind]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                                  initial_alphabet=[] if kind == "smollm" else pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(special_tokens())
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=not qwen), AddedToken("Norm", normalized=not qwen),
                          AddedToken("<tool>", normalized=False)])
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
                                      special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    return tokenizer


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
NORMALIZERS = {"llama2": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}, "replace": REPLACE}


def trained_with_byte_fallback(kind, texts, vocab_size=3000):
    """A tokenizer like Llama 2's: llama2 and replace have a normalizer; first, always and never are Metaspace's prepend_scheme."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # splits the training text into words
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, limit_alphabet=200,
                                  special_tokens=["<unk>", "<s>", "</s>"])
    tokenizer.train_from_iterator(texts, trainer)
    file = json.loads(tokenizer.to_str())
    vocab = file["model"]["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    file["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    file["normalizer"] = NORMALIZERS.get(kind)
    file["pre_tokenizer"] = None if kind in NORMALIZERS else {"type": "Metaspace", "replacement": "▁", "prepend_scheme": kind, "split": False}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    file["decoder"] = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}] + [strip] * (kind != "never")}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_special_tokens(special_tokens())
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def save(tokenizer, folder):
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|end_of_text|>"}}))


def run(program, *arguments):
    return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE).stdout


def ours(program, folder, texts):
    source, shard = folder / "texts.jsonl", folder / "texts.tokens"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    run(program, "encode", "--tokenizer", folder, "--input", source, "--output", shard, "--no-pack", "--no-eos",
        "--sequence-length", "100000000")
    return read_shard(shard)


UNICODE17_DIGITS = {*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)}


def missing_bytes(tokenizer):
    """The bytes that a byte-level tokenizer cannot spell."""
    if json.loads(tokenizer.to_str())["model"]["byte_fallback"]:
        return []
    return [byte for byte in pre_tokenizers.ByteLevel.alphabet() if tokenizer.token_to_id(byte) is None]


def every_character(kind):
    """Each character between a letter, a digit and a space: the split shows its class."""
    blocks = [range(1, 0xD800), range(0xE000, 0x32400), range(0xE0000, 0xE0200), range(0x10FF00, 0x110000)]
    codes = [code for block in blocks for code in block if kind not in ("digits", "smollm") or code not in UNICODE17_DIGITS]
    for at in range(0, len(codes), 5000):
        yield "".join(f"a{chr(code)}1{chr(code)}{chr(code)} " for code in codes[at:at + 5000])
    if kind == "qwen":  # marks of all classes before and after each character
        for marks in ("\u0334\u0301", "\u0323", "\u0345", "\u3099", "\u0338"):
            for at in range(0, len(codes), 5000):
                yield "".join(f"e{marks}{chr(code)}{marks} {chr(code)}{chr(code + 1) if code + 1 in blocks[0] else ''}{marks}"
                              for code in codes[at:at + 5000] if unicodedata.combining(chr(code)) or unicodedata.decomposition(chr(code)))


def random_marks(count, rng):
    """Texts of characters that decompose, compose or have a combining class, in random order."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000
             and (unicodedata.combining(chr(code)) or unicodedata.decomposition(chr(code)) or 0x1100 <= code < 0x1200)]
    for _ in range(count):
        yield "".join(chr(rng.choice(codes) if rng.random() < 0.7 else rng.randrange(0x20, 0x250)) for _ in range(rng.randint(1, 40)))


def compare(program, folder, tokenizer, texts, what):
    texts = [text for text in texts if text.strip(" \t\r\n\f\v")]  # the program skips blank documents
    found = ours(program, folder, texts)
    assert len(found) == len(texts) > 0, (len(found), len(texts))
    wrong = 0
    for text, ids in zip(texts, found):
        expected = tokenizer.encode(text).ids
        if ids != expected:
            at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
            wrong += 1
            print(f"{what}: differs at token {at} of {text[:60]!r}: ours {ids[at:at + 8]}, HF {expected[at:at + 8]}: "
                  f"{[tokenizer.id_to_token(i) for i in expected[max(0, at - 2):at + 4]]}")
    print(f"{what}: {len(texts)} texts, {sum(map(len, found))} tokens, {wrong} wrong")
    return wrong


def compare_decoded(program, folder, tokenizer, texts, rng):
    ids = [tokenizer.encode(text).ids for text in texts]
    ids += [[rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 30))] for _ in range(500)]
    source = folder / "ids.txt"
    source.write_text("".join(json.dumps(line) + "\n" for line in ids))
    found = run(program, "decode", "--tokenizer", folder / "tokenizer.json", "--input", source).decode("utf-8")
    expected = "\n".join(tokenizer.decode(line, skip_special_tokens=True) + "\n" for line in ids)
    print(f"decode: {len(ids)} lines, {'equal' if found == expected else 'DIFFERENT'}")
    return found != expected


def write_golden(folder, texts, words):
    """Writes the files in data/bpe: a small tokenizer, and texts with their ids, without BOS, and the decoded ids."""
    folder.mkdir(exist_ok=True)
    llama2 = folder.name == "llama2"
    tokenizer = trained_with_byte_fallback("llama2", texts, 420) if llama2 else trained("llama3", texts, 420)
    save(tokenizer, folder)
    cases = ["", "   "] + [text for text in EDGES if len(text) < 1000] + [mixed_text(80, seed, words) for seed in range(60)]
    cases += ["a" * 300, " " * 200 + "x", "ab" * 100]
    with open(folder / "cases.jsonl", "w", encoding="utf-8") as file:
        for text in cases:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=True)
            file.write(json.dumps({"text": text, "ids": ids, "decoded": decoded}) + "\n")


def compare_masks(program, folder, tokenizer, words, rng):
    """The targets are the tokens that, by HF's offsets, have a character of the completion.

    HF's offsets in a word lack the bytes without a token that precede: with such bytes the completion begins a word."""
    pairs = [(mixed_text(rng.randint(1, 60), seed, words), mixed_text(rng.randint(1, 60), 1000 + seed, words)) for seed in range(1, 500)]
    if missing_bytes(tokenizer):
        pairs = [(prompt.rstrip(), " " + text.lstrip()) for prompt, text in pairs]
    pairs = [(prompt, text) for prompt, text in pairs if text.strip(" \t\r\n\f\v")]
    if tokenizer.normalizer is not None:  # HF gives some changed characters at the border to the prompt
        pairs = [(prompt, text) for prompt, text in pairs if not unicodedata.category(text[0]).startswith("M")
                 and unicodedata.normalize("NFC", text[0]) == text[0]]
    source, shard = folder / "pairs.jsonl", folder / "pairs.tokens"
    source.write_text("".join(json.dumps({"p": prompt, "c": text}) + "\n" for prompt, text in pairs), encoding="utf-8")
    run(program, "encode", "--tokenizer", folder, "--input", source, "--output", shard, "--no-pack", "--no-eos", "--mask-prompt",
        "--prompt-field", "p", "--text-field", "c", "--sequence-length", "100000")
    expected = []
    for prompt, text in pairs:
        encoding = tokenizer.encode(prompt + text)
        targets = [int(end > len(prompt)) for _, end in encoding.offsets]
        if any(targets[1:]):  # the encoder drops documents without a target
            expected.append((prompt, text, encoding.ids, targets))
    found = list(zip(read_shard(shard), read_targets(shard)))
    wrong = abs(len(found) - len(expected))
    for (prompt, text, ids, targets), (our_ids, our_targets) in zip(expected, found):
        if (our_ids, our_targets) != (ids, targets):
            wrong += 1
            print(f"masks: {prompt!r} + {text!r}: ours {our_targets}, HF {targets}")
    print(f"masks: {len(pairs)} pairs, {wrong} wrong")
    return wrong


def main(program, kind, *paths):
    print("tokenizers", tokenizers.__version__, kind)
    texts = [pathlib.Path(path).read_text(encoding="utf-8") for path in paths]
    words = " ".join(texts).split()
    if program == "golden":
        return write_golden(pathlib.Path(kind), texts, words)
    train = trained if kind in PRE_TOKENIZERS else trained_with_byte_fallback
    mixed = [] if kind == "smollm" else [mixed_text(300_000, 1, words)]
    tokenizer = train(kind, texts * 20 + mixed)
    assert bool(missing_bytes(tokenizer)) == (kind == "smollm")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save(tokenizer, folder)
        wrong = compare(program, folder, tokenizer, EDGES, "edge cases")
        wrong += compare(program, folder, tokenizer, [mixed_text(1_000_000, 2, words)], "1 MB in one document")
        wrong += compare(program, folder, tokenizer, [mixed_text(200, seed, words) for seed in range(5000)], "1 MB in 5000 documents")
        wrong += compare(program, folder, tokenizer, every_character(kind), "every character")
        if kind == "qwen":
            wrong += compare(program, folder, tokenizer, random_marks(3000, random.Random(5)), "marks")
        wrong += compare_masks(program, folder, tokenizer, words, random.Random(4))
        wrong += compare_decoded(program, folder, tokenizer, EDGES, random.Random(3))
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
