#!/usr/bin/env python3
"""Measures xffl-tokenize against HF's tokenizers on a tokenizer.json: tokenizer_vs_hf.py XFFL_TOKENIZE TEXT...

Trains a byte-level BPE with Llama 3's split pattern on the texts (with HF's library, not measured), then, turn by turn in
one run, encodes the same documents with one thread and with all:

  ours  the whole command: start, reading tokenizer.json and the text, encoding, writing the shard
  HF    encoding alone, of documents in memory: encode() one by one, encode_batch() and encode_batch_fast()

Medians of --repeats, as MB of text a second of wall time and of CPU time (which a busy machine disturbs less). The ids are
compared. Exit code 77: tokenizers is not installed.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tokenize"))
from hf_same_bpe import save, trained  # noqa: E402 (says why it skips)
from hf_same_ids import read_shard  # noqa: E402

HF = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8")]
way = sys.argv[3]
start, cpu = time.perf_counter(), time.process_time()
if way == "encode":
    for text in texts:
        tokenizer.encode(text)
else:
    getattr(tokenizer, way)(texts)
print(json.dumps([time.perf_counter() - start, time.process_time() - cpu]))
"""


def hf(folder, source, way, threads):
    env = {**os.environ, "RAYON_NUM_THREADS": str(threads), "RAYON_RS_NUM_CPUS": str(threads),
           "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}
    result = subprocess.run([sys.executable, "-c", HF, folder / "tokenizer.json", source, way], env=env, check=True,
                            stdout=subprocess.PIPE)
    return json.loads(result.stdout)


def ours(program, folder, source, threads):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([program, "encode", "--tokenizer", folder, "--input", source, "--output", folder / "out.tokens", "--no-pack",
                    "--sequence-length", "100000000", "--no-eos", "--threads", str(threads)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return [wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]


def documents(paths):
    return [text for path in paths for text in path.read_text(encoding="utf-8").split("\n\n") if text.strip()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--megabytes", type=float, default=20, help="the texts are repeated up to this size")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    texts = documents(options.texts)
    tokenizer = trained("llama3", texts, options.vocab_size)
    size = sum(len(text.encode("utf-8")) for text in texts)
    copies = max(1, round(options.megabytes * 1e6 / size))
    megabytes = size * copies / 1e6
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source = folder / "texts.jsonl"
        save(tokenizer, folder)
        source.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts) * copies,
                          encoding="utf-8")
        ours(options.program, folder, source, threads)
        if read_shard(folder / "out.tokens")[:len(texts)] != [one.ids for one in tokenizer.encode_batch(texts)]:
            sys.exit("the ids differ")
        runs = {("xffl-tokenize", n): lambda n=n: ours(options.program, folder, source, n) for n in (1, threads)}
        runs |= {(way, n): lambda way=way, n=n: hf(folder, source, way, n)
                 for way in ("encode", "encode_batch", "encode_batch_fast") for n in ((1,) if way == "encode" else (1, threads))}
        times = {run: [] for run in runs}
        for _ in range(options.repeats):
            for run, measure in runs.items():
                times[run].append(measure())
    print(f"{megabytes:.1f} MB in {len(texts) * copies} documents, vocabulary {tokenizer.get_vocab_size()}, "
          f"load {os.getloadavg()[0]:.0f}")
    print(f"{'':24} threads   MB/s wall   MB/s CPU")
    for (way, n), measured in times.items():
        wall, cpu = (megabytes / statistics.median(column) for column in zip(*measured))
        print(f"{way:24} {n:7}   {wall:9.2f}   {cpu:8.2f}")


if __name__ == "__main__":
    main()
