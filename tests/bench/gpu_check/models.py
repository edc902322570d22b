"""Random models and token shards, made once and reused by later stages.

A model's folder is named by the hash of its shape; made.json in it is written last, so a creation that was killed is made anew.
"""
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct

from trainer_job import SEED

from .runner import Failed, OutOfTime, Process

VERSION = 1  # of the procedure that makes models and data


def hash_of(description):
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def write_whole(path, data):
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def size_bytes(config, dtype):
    hidden, heads = config["hidden_size"], config["head_dim"]
    block = hidden * heads * (2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"])
    block += 3 * hidden * config["intermediate_size"] + 2 * hidden
    return (2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * block + hidden) * (4 if dtype == "fp32" else 2)


def available_memory_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


def roomy_folder(wanted, needed_bytes, otherwise):
    """`wanted` (a file system in memory) if the model fits and half of the memory stays free, else `otherwise`."""
    fits = wanted is not None and wanted.parent.is_dir() and os.access(wanted.parent, os.W_OK)
    if fits and needed_bytes * 1.1 < shutil.disk_usage(wanted.parent).free and needed_bytes * 2 < available_memory_bytes():
        return wanted
    return otherwise


class Models:
    def __init__(self, programs, in_memory, on_disk, log_folder, threads):
        self.programs, self.in_memory, self.on_disk = programs, in_memory, on_disk
        self.log_folder, self.threads = log_folder, threads
        self.making = {}

    def folder(self, config, dtype):
        name = hash_of(dict(version=VERSION, config=config, dtype=dtype, seed=SEED))
        for base in (self.in_memory, self.on_disk):
            if base is not None and (base / name / "made.json").exists():
                return base / name
        return roomy_folder(self.in_memory, size_bytes(config, dtype), self.on_disk) / name

    def begin(self, config, dtype):
        """Starts making the model, unless it exists or is being made."""
        folder = self.folder(config, dtype)
        if (folder / "made.json").exists() or folder in self.making:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        argv = [self.programs.path("xffl-train"), "init", "--config", folder / "config.json", "--seed", SEED, "--output",
                folder / "model", "--dtype", dtype, "--threads", self.threads]
        self.making[folder] = Process(argv, self.log_folder / f"model-{folder.name}", self.programs.environment)
        return folder

    def ready(self, config, dtype, limit_s):
        """Waits for the model; returns (path, seconds to make it or None)."""
        folder = self.begin(config, dtype)
        process = self.making.get(folder)
        if process is None:
            return folder / "model", None
        finished = process.finish(limit_s)
        del self.making[folder]
        finished.check("xffl-train init")
        if not (folder / "model" / "manifest.json").exists():
            raise Failed("xffl-train init left no manifest")
        seconds = (folder / "model" / "manifest.json").stat().st_mtime - (folder / "config.json").stat().st_mtime
        write_whole(folder / "made.json", json.dumps(dict(seconds=seconds)).encode())
        return folder / "model", seconds

    def stop(self):
        """Removes unfinished models, which may occupy memory."""
        for folder, process in self.making.items():
            process.end()
            shutil.rmtree(folder, ignore_errors=True)
        self.making.clear()

    def tokens(self, folder, vocab_size, length, count, documents, limit_s):
        """`count` sequences of length + 1 random ids with `documents` documents each: (token shard, ids as int32, name)."""
        name = "data-" + hash_of(dict(version=VERSION, vocab=vocab_size, length=length, count=count, documents=documents, seed=SEED))
        shard, ids = folder / f"{name}.tokens", folder / f"{name}.ids"
        if shard.exists() and ids.exists():
            return shard, ids, name
        folder.mkdir(parents=True, exist_ok=True)
        generator = random.Random(SEED)
        rows = [generator.choices(range(vocab_size), k=length + 1) for _ in range(count)]
        write_whole(ids, b"".join(struct.pack(f"<{length + 1}i", *row) for row in rows))
        temporary, text = folder / f".{name}.tokens.tmp", folder / f".{name}.txt"
        text.write_text("".join(" ".join(map(str, part)) + "\n" for row in rows for part in cut(row, documents)))
        argv = [self.programs.path("xffl_test_tool"), "packed" if documents > 1 else "tokens", vocab_size, length + 1, temporary]
        with open(text) as stdin:
            finished = Process(argv, self.log_folder / name, self.programs.environment, stdin=stdin).finish(limit_s)
        text.unlink()
        if finished.timed_out:
            raise OutOfTime("making the token shard took too long")
        finished.check("xffl_test_tool")
        os.replace(temporary, shard)
        return shard, ids, name


def cut(row, parts):
    ends = [len(row) * part // parts for part in range(parts + 1)]
    return [row[first:end] for first, end in zip(ends, ends[1:])]
