#!/usr/bin/env python3
"""The job contract of xffl for training scripts in Python (docs/reference/job_json.md), in one file; needs numpy only.

A script of your own calls it:

    job = xffl_job.load(path)                   # job.json; checks the input model
    for step, sequences in job.batches():       # this rank's part of each step, in the order of xffl-train
        ...
        job.metric(step, loss=loss)
        if job.should_stop(): break             # the walltime ends
    job.finish(tensors, losses=..., samples=..., tokens=...)

torch is imported only where a call needs them.
"""
import argparse
import gc
import hashlib
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np

JOB_VERSIONS = (4, 5)
CANCELLED = 75  # the exit code of xffl-train, too
MAX_JOB_BYTES = 1 << 20
MAX_HEADER_BYTES = 100_000_000  # of a safetensors file
MASK = (1 << 64) - 1
WIDTHS = {"F32": 4, "BF16": 2, "F16": 2}
UPDATE_DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


class JobError(Exception):
    """The job cannot be done; the message says what, where, and what was expected."""


# Files.


def sha256_of(path, should_stop=lambda: False):
    """None if should_stop() became true before the end of the file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            if should_stop():
                return None
            digest.update(block)
    return digest.hexdigest()


def sync(path):
    """Brings a file or a folder's names to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path, text):
    """Readers see the whole file or none."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    sync(part)
    os.rename(part, path)
    sync(path.parent)


def root_of(files):
    """The root hash of a manifest's entries (docs/reference/formats.md)."""
    lines = "".join(f"{f['sha256']}  {f['size_bytes']}  {f['name']}\n" for f in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def write_manifest(folder):
    """Writes manifest.json over the files of the folder, and returns its root hash."""
    files = [{"name": p.name, "size_bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in sorted(folder.iterdir())]
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "files": files}))
    return root_of(files)


# Tensors.


def read_header(path):
    """Name -> (dtype, shape, position in the file) of a safetensors file. Checks every number against the file's size."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise JobError(f"{path}: is not a safetensors file: a header of {length} bytes in a file of {size} bytes")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            tensors = {}
            for name, entry in header.items():
                shape, (begin, end) = entry["shape"], entry["data_offsets"]
                if any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
                    raise ValueError(f"{name}: a shape or an offset is not a natural number")
                bytes_expected = math.prod(shape) * WIDTHS.get(entry["dtype"], 0)
                if entry["dtype"] not in WIDTHS or end - begin != bytes_expected or 8 + length + end > size:
                    raise ValueError(f"{name}: {entry['dtype']} {shape} does not fit the bytes {begin} to {end}")
                tensors[name] = (entry["dtype"], shape, 8 + length + begin)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise JobError(f"{path}: is not a safetensors file with F32, BF16 or F16 tensors: {problem}") from None
    return tensors


class Tensors:
    """The tensors of a model folder's safetensors files; each is read when it is asked for, as float32."""

    def __init__(self, folder):
        self.where = {}
        for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
            for name, entry in read_header(path).items():
                if name in self.where:
                    raise JobError(f"{path}: the tensor {name} is in another file, too")
                self.where[name] = (path, *entry)
        if not self.where:
            raise JobError(f"{folder}: expected *.safetensors files with tensors, found none")

    def keys(self):
        return self.where.keys()

    def shape(self, name):
        return tuple(self.where[name][2])

    def __getitem__(self, name):
        path, dtype, shape, position = self.where[name]
        words = np.fromfile(path, {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[dtype], math.prod(shape), offset=position)
        if dtype == "BF16":
            words = (words.astype(np.uint32) << 16).view(np.float32)
        return words.astype(np.float32).reshape(shape)


def encoded(values, dtype):
    """The bytes of a float32 array in a dtype of safetensors, rounded to the nearest value, ties to even."""
    values = np.ascontiguousarray(values, dtype="<f4")
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    bits = values.view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def as_numpy(tensor):
    if hasattr(tensor, "detach"):  # of torch
        tensor = tensor.detach().float().cpu().numpy()
    return np.asarray(tensor, dtype=np.float32)


# Data.


class Shard:
    """A token shard (docs/reference/token_shards.md): sequence i is `ids`, and a mask of the ids that the loss counts."""

    def __init__(self, path):
        try:
            if (size := os.path.getsize(path)) < 64:
                raise JobError(f"{path}: is not a token shard: it has {size} bytes")
            data = np.memmap(path, dtype=np.uint8, mode="r")
        except OSError as problem:
            raise JobError(f"{path}: cannot read the token shard: {problem.strerror}") from None
        magic, version, width, vocabulary, self.length, num_tokens, self.size, documents, flags, zero = struct.unpack(
            "<8sIIQQQQQII", data[:64].tobytes()
        )
        self.packed, self.vocabulary, self.path = bool(flags & 1), vocabulary, path
        if magic != b"XFFLTOK1" or version not in (1, 2) or width not in (2, 4) or flags >> 2 or zero or (flags >> 1) != version - 1:
            raise JobError(f"{path}: is not a token shard of version 1 or 2")
        offsets_at = 64 + (width * num_tokens + 7) // 8 * 8
        count = documents if self.packed else self.size + 1
        targets_at = offsets_at + 8 * count
        words = (num_tokens + 63) // 64 if version == 2 else 0
        if self.size < 1 or len(data) != targets_at + 8 * words or (self.packed and num_tokens != self.size * self.length):
            raise JobError(f"{path}: is damaged: its header does not fit its {len(data)} bytes")
        self.tokens = data[64 : 64 + width * num_tokens].view(f"<u{width}")
        self.offsets = data[offsets_at:targets_at].view("<u8")
        lengths = np.diff(self.offsets.astype(np.int64))
        ends_fit = self.packed or (self.offsets[0] == 0 and self.offsets[-1] == num_tokens and lengths.max() <= self.length)
        if (len(lengths) and lengths.min() < 1) or not ends_fit:
            raise JobError(f"{path}: is damaged: its offsets do not rise within the tokens")
        self.targets = data[targets_at:] if version == 2 else None

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        begin, end = (i * self.length, (i + 1) * self.length) if self.packed else map(int, self.offsets[i : i + 2])
        ids = self.tokens[begin:end].astype(np.int64)
        if ids.max() >= self.vocabulary:
            raise JobError(f"{self.path}: sequence {i} has the id {ids.max()}, above the vocabulary of {self.vocabulary}")
        counted = np.ones(len(ids), dtype=bool)
        if self.targets is not None:
            at = np.arange(begin, end)
            counted = (self.targets[at // 8] >> (at % 8).astype(np.uint8)) & 1 == 1
        counted[0] = False  # nothing precedes it
        return ids, counted


class Sequences:
    """The sequences of shards as one list; limit 0: all."""

    def __init__(self, paths, limit=0):
        self.shards = [Shard(path) for path in paths]
        self.begins = np.cumsum([0] + [len(shard) for shard in self.shards])
        self.size = int(min(limit, self.begins[-1]) if limit else self.begins[-1])

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if not 0 <= i < self.size:
            raise IndexError(i)
        shard = int(np.searchsorted(self.begins, i, side="right")) - 1
        return self.shards[shard][i - int(self.begins[shard])]


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def permutation(n, seed, epoch):
    """The order of an epoch, as in xffl-train: Fisher-Yates over SplitMix64."""
    state = mix((mix(seed) + epoch) & MASK)
    order = list(range(n))
    for left in range(n, 1, -1):
        reject_below = (1 << 64) % left
        draw = -1
        while draw < reject_below:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            draw = mix(state)
        order[left - 1], order[draw % left] = order[draw % left], order[left - 1]
    return order


class Sampler:
    """Indices of a step's sequences for one rank; the batch of a step does not depend on the number of ranks."""

    def __init__(self, size, batch_size, seed, rank=0, world_size=1):
        self.size, self.batch_size, self.seed, self.rank, self.world_size = size, batch_size, seed, rank, world_size
        self.epoch, self.order = -1, []

    def step_indices(self, step):
        chosen = []
        for position in range(step * self.batch_size, (step + 1) * self.batch_size):
            if position % self.world_size != self.rank:
                continue
            epoch, within = divmod(position, self.size)
            if epoch != self.epoch:
                self.epoch, self.order = epoch, permutation(self.size, self.seed, epoch)
            chosen.append(self.order[within])
        return chosen


def collate(sequences):
    """Right-padded input ids and labels of torch; -100 marks tokens that the loss leaves out."""
    import torch

    ids = torch.zeros(len(sequences), max(len(s) for s, _ in sequences), dtype=torch.long)
    labels = torch.full(ids.shape, -100)
    for row, (sequence, counted) in enumerate(sequences):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        labels[row, : len(sequence)] = torch.from_numpy(np.where(counted, sequence, -100))
    return ids, labels


def summed_loss(model, sequences):
    """Sum of the negative log-likelihood in nats of a model of transformers over the tokens that count."""
    import torch

    ids, labels = collate(sequences)
    logits = model(input_ids=ids.to(model.device)).logits.float()[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1).to(model.device), ignore_index=-100, reduction="sum"
    )


def num_targets(sequences):
    return sum(int(counted.sum()) for _, counted in sequences)


# The job.


def sees_one_gpu(environment):
    lists = [environment.get(name, "") for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")]
    return any("," not in devices for devices in lists if devices not in ("", "-1", "NoDevFiles"))


def ranks_of(environment):
    """Rank, number of ranks and rank on the node, of torch's variables or of a Slurm step.

    Scripts take the rank on the node as the index of their GPU: it is 0 for a rank that sees one GPU (slurm.visible_gpus: one).
    """
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")):
        if names[0] in environment and names[1] in environment:
            try:
                rank, size, local = (int(environment.get(name, environment[names[0]])) for name in names)
            except ValueError:
                raise JobError(f"{names[0]}, {names[1]} and {names[2]} should be integers") from None
            if not 0 <= rank < size:
                raise JobError(f"{names[0]}={rank} should be at least 0 and below {names[1]}={size}")
            return rank, size, 0 if sees_one_gpu(environment) else local
    return 0, 1, 0


# The keys of job.json that this file reads. A list with one entry stands for any number of them.
JOB_TYPES = {
    "key": {"project": str, "run": str, "round": int, "facility": str, "attempt": int, "nonce": str},
    **dict.fromkeys(("base_model_path", "base_model_sha256", "update_path", "report_path", "metrics_path"), str),
    **dict.fromkeys(("on_stop", "update_kind", "update_dtype"), str),
    "train_paths": [str],
    "validation": [{"name": str, "path": str}],
    "training": {
        **dict.fromkeys(("steps", "first_step", "batch_size", "micro_batch_size", "seed", "train_samples", "validation_samples"), int),
        **dict.fromkeys(("max_tokens", "validation_interval", "early_stop_patience"), int),
        **dict.fromkeys(("learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm", "proximal"), float),
        **dict.fromkeys(("masters", "moment_dtype", "gradient_dtype"), str),
        **dict.fromkeys(("document_mask", "keep_optimizer"), bool),
        "freeze": [str],
        "schedule": {"kind": str, "warmup_steps": int, "total_steps": int, "min_ratio": float},
        "lora": {"rank": int},
        "groups": {"count": int},
        "pipeline": {"stages": int},
    },
}


def check_type(value, expected, where):
    """Raises ValueError, with the place, for a value that does not have the expected type; more keys are accepted."""
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'the file'} should be an object")
        for name, inner in expected.items():
            path = f"{where}.{name}" if where else name
            if name not in value:
                raise ValueError(f"{path} is missing")
            check_type(value[name], inner, path)
    elif isinstance(expected, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} should be a list")
        for i, entry in enumerate(value):
            check_type(entry, expected[0], f"{where}[{i}]")
    elif expected is int:
        if type(value) is not int or value < 0:
            raise ValueError(f"{where} should be a natural number")
    elif expected is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{where} should be a number")
    elif type(value) is not expected:
        raise ValueError(f"{where} should be of the type {expected.__name__}")


class Job:
    """The members `key`, `training` and `document` are the parts of job.json; paths are resolved by path()."""

    def __init__(self, path):
        self.began, self.folder = time.monotonic(), pathlib.Path(path).resolve().parent
        try:
            with open(path, "rb") as file:
                text = file.read(MAX_JOB_BYTES + 1)
            if len(text) > MAX_JOB_BYTES:
                raise ValueError("the file has more than 1 MiB")
            document = json.loads(text)
            check_type(document, {"version": int}, "")
            version = document["version"]
            if type(version) is not int or version not in JOB_VERSIONS:
                raise JobError(f"{path}: version: should be one of {JOB_VERSIONS}, found {version!r}: use the xffl_job.py of the coordinator's release")
            check_type(document, JOB_TYPES, "")
            self.document, self.key, self.training = document, document["key"], document["training"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise JobError(f"{path}: is not a job.json: {problem}") from None
        self.rank, self.world_size, self.local_rank = ranks_of(os.environ)
        self.stopping, self.program = False, sys.argv[0]
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, *_):
        self.stopping = True

    def path(self, name):
        """The absolute path of a key of job.json."""
        return self.folder / self.document[name]

    @property
    def done(self):
        """A report exists: the job was requeued after its end."""
        return self.path("report_path").exists()

    def refuse_unsupported(self, honoured=()):
        """Raises JobError for a setting that plain AdamW on float32 weights does not honour, unless it is in `honoured`."""
        training = self.training
        asked = {"lora": training["lora"]["rank"], "groups": training["groups"]["count"] - 1, "pipeline": training["pipeline"]["stages"] - 1}
        for name in ("freeze", "proximal", "document_mask", "max_tokens", "validation_interval", "early_stop_patience", "keep_optimizer"):
            asked[name] = training[name]
        asked["masters"] = training["masters"] == "none"
        asked["epochs"] = training.get("epochs", 0)
        asked["optimizer"] = training.get("optimizer", "adamw") != "adamw"
        for name in ("moment_dtype", "gradient_dtype"):
            asked[name] = training[name] != "fp32"
        for name, value in asked.items():
            if value and name not in honoured:
                raise JobError(f"training.{name} is not done by this trainer: leave it out")
        if self.document["on_stop"] != "update" and "on_stop" not in honoured:
            raise JobError("this trainer leaves no checkpoints: leave out policy.on_walltime")
        if self.document["base_model_packed"] is not None:
            raise JobError("base_model_packed: this trainer needs the whole model: leave out transfer.pack")

    def verify_model(self, hash_files=False):
        """Compares the input model with the job's hash; damage goes to model.failure, and the coordinator sends the model again.

        The shipped job scripts have hashed the files before; hash_files hashes them here, too.
        """
        folder = self.path("base_model_path")
        try:
            files = json.loads((folder / "manifest.json").read_text())["files"]
            problem = "" if root_of(files) == self.document["base_model_sha256"] else f"a manifest with the root hash {root_of(files)}"
            for entry in files if not problem else []:
                found = folder / entry["name"]
                if not found.is_file() or found.stat().st_size != entry["size_bytes"]:
                    problem = f"{entry['name']} missing or of another size"
                elif hash_files and sha256_of(found) != entry["sha256"]:
                    problem = f"{entry['name']} with other bytes"
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = repr(error)
        if problem:
            reason = f"{folder}: expected a model with the root hash {self.document['base_model_sha256']}, found {problem}"
            if self.rank == 0:
                write_whole(self.path("report_path").with_name("model.failure"), reason + "\n")
            raise JobError(reason)

    def train_data(self):
        return Sequences([self.folder / p for p in self.document["train_paths"]], self.training["train_samples"])

    def validation_data(self):
        """Name -> sequences."""
        limit = self.training["validation_samples"]
        return {e["name"]: Sequences([self.folder / e["path"]], limit) for e in self.document["validation"]}

    def steps(self):
        if self.training.get("epochs"):
            raise JobError("training.epochs_per_round is not done by this trainer: use steps_per_round")
        return range(self.training["first_step"], self.training["first_step"] + self.training["steps"])

    def batches(self, all_ranks=False):
        """Yields (step, sequences) of this rank, or of all ranks; step counts over the federation from first_step."""
        data, training = self.train_data() if self.training["steps"] else None, self.training
        ranks = (0, 1) if all_ranks else (self.rank, self.world_size)
        sampler = Sampler(len(data), training["batch_size"], training["seed"], *ranks) if data else None
        for step in self.steps():
            yield step, [data[i] for i in sampler.step_indices(step)]

    def learning_rate(self, step):
        schedule, peak = self.training["schedule"], self.training["learning_rate"]
        kind, warmup, total = schedule["kind"], schedule["warmup_steps"], schedule["total_steps"]
        if step < warmup:
            return peak * step / warmup
        if kind == "constant":
            return peak
        begin = max(warmup, total - math.floor(schedule.get("decay_ratio", 0.1) * total + 0.5)) if kind == "wsd" else warmup
        progress = min(1.0, max(0, step - begin) / max(1, total - begin))
        shape = 1 - progress if kind in ("linear", "wsd") else 0.5 * (1 + math.cos(math.pi * progress))
        return peak * (schedule["min_ratio"] + (1 - schedule["min_ratio"]) * shape)

    def sum(self, value):
        """The sum of a number over all ranks; every rank calls it. With several ranks, torch.distributed must be initialized."""
        if self.world_size == 1:
            return value
        import torch

        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        total = torch.tensor(float(value), dtype=torch.float64, device=device)
        torch.distributed.all_reduce(total)
        return total.item()

    def should_stop(self):
        """Whether a batch system's warning has reached any rank; every rank calls it after the same step."""
        stop = self.sum(1 if self.stopping else 0) > 0
        if stop:  # rank 0 writes the report, and the signal may have reached another rank only
            self.stopping = True
        return stop

    def metric(self, step, **values):
        """Appends a line to metrics.jsonl (rank 0): `step` is counted from 0, as batches() yields it."""
        if self.rank == 0:
            with open(self.path("metrics_path"), "a") as file:
                file.write(json.dumps({"step": step + 1, **values}) + "\n")

    def evaluate(self, model, alone=False):
        """Name -> (mean loss, tokens) of a model of transformers on the validation sets, which the ranks share; `alone`: this
        rank measures them without the others. After a signal, sets that are not complete are left out."""
        rank, ranks = (0, 1) if alone else (self.rank, self.world_size)
        results, block = {}, self.training["micro_batch_size"] * ranks
        for name, data in self.validation_data().items():
            total, tokens = 0.0, 0
            for begin in range(0, len(data), block):  # the same blocks on every rank, because should_stop() waits for all ranks
                if self.stopping if alone else self.should_stop():
                    return results
                part = self.measure(model, data, range(begin + rank, min(begin + block, len(data)), ranks))
                total, tokens = total + part[0], tokens + part[1]
            if not alone:
                total, tokens = self.sum(total), int(self.sum(tokens))
            results[name] = (total / max(tokens, 1), tokens)
        return results

    def measure(self, model, data, indices):
        """(Sum of the loss, tokens) of some sequences, on this rank alone."""
        import torch

        total, tokens, size = 0.0, 0, self.training["micro_batch_size"]
        with torch.no_grad():
            for begin in range(0, len(indices), size):
                sequences = [data[i] for i in indices[begin : begin + size]]
                total, tokens = total + summed_loss(model, sequences).item(), tokens + num_targets(sequences)
        return total, tokens

    def _write_update(self, tensors):
        """Checks the tensors against the input model and writes the update's folder; returns its root hash."""
        base, target = Tensors(self.path("base_model_path")), self.path("update_path")
        extra = sorted(set(tensors.keys()) - set(base.keys()))
        # A tied output layer is a tensor of the program, not of the model's files.
        extra = [name for name in extra if not (name == "lm_head.weight" and "model.embed_tokens.weight" in base.keys())]
        missing = sorted(set(base.keys()) - set(tensors.keys()))
        if extra or missing:
            raise JobError(f"the update does not have the tensors of the input model: missing {missing[:3]}, unknown {extra[:3]}")
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            self._fill_update(part, base, tensors)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        root = write_manifest(part)
        for path in (*part.iterdir(), part):
            sync(path)
        shutil.rmtree(target, ignore_errors=True)  # of a run that was killed before its report
        os.rename(part, target)
        sync(target.parent)
        return root

    def _fill_update(self, part, base, tensors):
        dtype = UPDATE_DTYPES[self.document["update_dtype"]]
        header, position = {"__metadata__": {"format": "pt"}}, 0
        for name in base.keys():
            end = position + math.prod(base.shape(name)) * WIDTHS[dtype]
            header[name], position = {"dtype": dtype, "shape": list(base.shape(name)), "data_offsets": [position, end]}, end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(part / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in base.keys():
                values = as_numpy(tensors[name])
                if values.shape != base.shape(name):
                    raise JobError(f"the update's tensor {name} has the shape {values.shape}; the input model has {base.shape(name)}")
                if self.document["update_kind"] == "delta":
                    values = values - base[name]
                with np.errstate(over="ignore"):
                    data = encoded(values, dtype)
                largest = 65504 if dtype == "F16" else math.inf
                if not np.isfinite(values).all() or (values.size and np.abs(values).max() > largest):
                    raise JobError(f"the update's tensor {name} has NaN, infinity or a number beyond {dtype}; no update is written")
                file.write(data)
        shutil.copy(self.path("base_model_path") / "config.json", part)

    def finish(self, tensors, losses, samples, tokens, before=None, after=None, trainer="", seconds=0.0, checkpoint=False):
        """Writes the update (name -> tensor of torch or numpy, trained weights) and then report.json; rank 0 only.

        `losses`: of each step; `samples` and `tokens`: of all ranks; `before`, `after`: of evaluate(); after a
        signal, a set that `after` lacks has `nll_after` 0. Without a step, or without all results of a job that only evaluates,
        it exits with code 75 after a signal. `checkpoint`: after a signal, the trainer has left a checkpoint at `state_path`
        from which the next attempt continues; the report says so, and no update is written. Raises JobError, and writes no
        report, for a tensor that is missing, unknown, of another shape or not finite, and for a loss that is not finite.
        """
        planned, stopped = self.training["steps"], len(losses) < self.training["steps"]
        before, names = before or {}, [entry["name"] for entry in self.document["validation"]]
        if not losses and (planned or (self.stopping and len(before) < len(names))):
            work = "first step" if planned else "evaluation"
            print(f"stopped before the {work} was done: nothing was written", file=sys.stderr)
            sys.exit(CANCELLED)
        if not all(math.isfinite(loss) and loss >= 0 for loss in losses):
            raise JobError("a step's loss is not finite; no update is written")
        if self.rank != 0:
            return
        after = (after or {}) if planned else before
        results = [  # after a checkpoint the next attempt reports them
            {"name": n, "tokens": before[n][1], "nll_before": before[n][0], "nll_after": after[n][0] if n in after else 0.0}
            for n in names if n in before and not checkpoint
        ]
        complete = all(n in before and n in after for n in names)
        stopped = stopped or (self.stopping and not complete)
        if not complete and not stopped:
            raise JobError("expected the mean losses of every validation set, before and after the training")
        root = self._write_update(tensors) if planned and not checkpoint else ""
        paths = dict.fromkeys([*self.document["train_paths"], *(entry["path"] for entry in self.document["validation"])])
        report = {
            "version": 2,
            "key": {name: self.key[name] for name in ("project", "run", "round", "facility", "attempt", "nonce")},
            "base_model_sha256": self.document["base_model_sha256"],
            "update_sha256": root,
            "steps": len(losses),
            "stopped_early": stopped,
            "samples": samples,
            "tokens": tokens,
            "train_loss": sum(losses) / len(losses) if losses else 0.0,
            "train_loss_last": losses[-1] if losses else 0.0,
            "validation": results,
            "train_seconds": seconds,
            "total_seconds": time.monotonic() - self.began,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "world_size": self.world_size,
            "scheduler_job_id": os.environ.get("SLURM_JOB_ID", ""),
            "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            "trainer": (trainer or pathlib.Path(self.program).name)[:200],
            "nodes": int(os.environ.get("SLURM_STEP_NUM_NODES", "1")),
            **data_identity([self.folder / path for path in paths], lambda: self.stopping),
            "program_sha256": sha256_of(self.program),
        }
        write_whole(self.path("report_path"), json.dumps(report, indent=2))


def data_identity(paths, should_stop):
    """The report's fields of the job's distinct shards: what `sha256sum SHARD... | cut -c-64 | sha256sum` prints.

    Empty after a signal, because reading the shards may take longer than the rest of the walltime.
    """
    hashes = [sha256_of(path, should_stop) for path in paths]
    if None in hashes:
        return {}
    sums = "".join(value + "\n" for value in hashes)
    return {
        "data_files": len(paths),
        "data_bytes": sum(path.stat().st_size for path in paths),
        "data_sha256": hashlib.sha256(sums.encode()).hexdigest(),
    }


def load(path, honoured=()):
    """The job of a job.json, whose input model and settings are checked; ends the program if the job is done already."""
    job = Job(path)
    if job.done:
        sys.exit(0)
    job.refuse_unsupported(honoured)
    job.verify_model()
    return job


# Scripts that know nothing of jobs (docs/user/own_trainer.md).


def wait_for(condition, seconds, reason):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise JobError(f"{reason} within {seconds} s")
        time.sleep(0.05)


def write_dataset(job, path):
    """Writes the records of all steps, in the order of xffl-train, as JSON lines; returns the number of tokens that count."""
    tokens, part = 0, path.with_name(path.name + ".part")
    with open(part, "w") as file:
        for _, sequences in job.batches(all_ranks=True):
            tokens += num_targets(sequences)
            for ids, counted in sequences:
                record = {"input_ids": ids.tolist(), "labels": np.where(counted, ids, -100).tolist()}
                file.write(json.dumps(record) + "\n")
    os.rename(part, path)
    return tokens


def saved_tensors(output):
    """The weights that a script saved: safetensors files, or else one state dict of torch. Nothing is unpickled but tensors."""
    if any(output.glob("*.safetensors")):
        return Tensors(output)
    found = sorted(p for p in output.iterdir() if p.suffix in (".pt", ".pth", ".bin"))
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise JobError(f"{output}: expected *.safetensors, or one state dict (.pt, .pth or .bin) of the script, found {names}")
    import torch

    try:
        state = torch.load(found[0], map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises many types for a file that is not one
        raise JobError(f"{found[0]}: is not a state dict that torch reads with weights_only=True: {str(problem)[:200]}") from None
    if not isinstance(state, dict) or not state or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise JobError(f"{found[0]}: expected a state dict, name -> tensor; save model.state_dict()")
    return state


def steps_saved(job, output):
    """The steps that the script did: `global_step` of trainer_state.json, which transformers.Trainer writes, or else all."""
    path, planned = output / "trainer_state.json", job.training["steps"]
    if not path.exists():
        if job.stopping:
            print(f"{path}: expected a file with global_step after a warning signal: the steps done are unknown, "
                  "and nothing was written", file=sys.stderr)
            sys.exit(CANCELLED)
        return planned
    try:
        steps = json.loads(path.read_text())["global_step"]
        if type(steps) is not int or not 0 <= steps <= planned:
            raise ValueError(f"global_step should be an integer from 0 to the job's {planned} steps, found {steps!r}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise JobError(f"{path}: {problem!r}") from None
    if steps == 0:
        print("the script ended before its first step was done: nothing was written", file=sys.stderr)
        sys.exit(CANCELLED)
    if steps < planned and not job.stopping:
        raise JobError(f"{path}: the script did {steps} of the job's {planned} steps without a warning signal: let it do one pass")
    return steps


def model_with(job, tensors=None):
    """The input model in transformers, with its own weights or others; on the rank's GPU, if there is one."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as problem:
        raise JobError(f"{problem}: xffl_job.py run measures the model with torch and transformers") from None
    model = AutoModelForCausalLM.from_pretrained(job.path("base_model_path"), dtype=torch.float32)
    if tensors is not None:
        base = Tensors(job.path("base_model_path"))
        if problem := sorted(name for name in base.keys() if name not in tensors.keys()):
            raise JobError(f"the script saved no tensor {problem[0]}, which the input model has")
        for name in base.keys():  # one by one, because the memory may not hold a second copy of the weights
            values = as_numpy(tensors[name])
            if values.shape != base.shape(name):
                raise JobError(f"the script's tensor {name} does not have the input model's shape {base.shape(name)}")
            model.load_state_dict({name: torch.from_numpy(values)}, strict=False)
    if torch.cuda.is_available():
        model = model.to(f"cuda:{job.local_rank % torch.cuda.device_count()}")
    return model.eval()


def measured(job):
    """evaluate() of the input model on this rank alone; the model's memory is free afterwards."""
    results = job.evaluate(model_with(job), alone=True)
    import torch  # here, because model_with() reports a missing torch

    gc.collect()
    torch.cuda.empty_cache()
    return results


def run_script(job, options, command):
    """Starts a script for a job, and makes update and report from the weights that it saved."""
    if job.training["steps"] == 0:
        if job.rank == 0:
            job.finish({}, [], 0, 0, measured(job), None, "xffl_job.py run")
        return
    # Ranks of one start agree on this name, so that files of a start that was killed are not taken for theirs.
    start = [os.environ.get(n, "") for n in ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")]
    place = job.path("update_path").with_name("script")
    folder = place / hashlib.sha256("\n".join(start).encode()).hexdigest()[:16]
    dataset, output, ready = folder / "dataset.jsonl", folder / "output", folder / "ready"
    if job.rank == 0:
        shutil.rmtree(place, ignore_errors=True)
        output.mkdir(parents=True)
        tokens = write_dataset(job, dataset)
        # A model that cannot be measured fails here, and not after hours of training.
        before = {} if job.stopping else measured(job)
        ready.touch()
    # All scripts start after the measurement, because the rendezvous of an earlier script would wait for rank 0's and might fail.
    # The measurement has no limit of time; if rank 0 fails in it, the launcher signals the other ranks.
    wait_for(output.exists, options.timeout, f"{output}: rank 0 did not begin")
    wait_for(lambda: ready.exists() or job.stopping, math.inf, "")
    wait_for(ready.exists, options.timeout, f"{ready}: rank 0 did not write the data set and measure the model")
    environment = {**os.environ, "RANK": str(job.rank), "WORLD_SIZE": str(job.world_size), "LOCAL_RANK": str(job.local_rank)}
    paths = {options.model_flag: job.path("base_model_path"), options.dataset_flag: dataset, options.output_flag: output}
    words = [*([sys.executable] if command[0].endswith(".py") else []), *command]
    words += [str(word) for pair in paths.items() for word in pair]
    signals, began = (signal.SIGUSR1, signal.SIGTERM), time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until there is a process to forward to
    try:
        child = subprocess.Popen(words, env=environment, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals))
    except OSError as problem:
        raise JobError(f"{command[0]}: {problem.strerror}") from None

    def forward(number, _):
        job.stopping = True
        child.send_signal(number)

    for number in signals:
        signal.signal(number, forward)
    if job.stopping:
        child.send_signal(signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = child.wait()
    seconds = time.monotonic() - began
    part = folder / f"ended-{job.rank}.part"
    part.write_text(json.dumps([code, job.stopping]))
    os.rename(part, folder / f"ended-{job.rank}")  # the last access: rank 0 may now remove the folder
    if job.rank == 0:
        ends = [folder / f"ended-{rank}" for rank in range(job.world_size)]
        wait_for(lambda: all(p.exists() for p in ends), options.timeout, "the script of rank 0 has ended; those of other ranks did not end")
        results = [json.loads(p.read_text()) for p in ends]
        job.stopping = job.stopping or any(stopped for _, stopped in results)
        code = next((c for c, _ in results if c), 0)
    if code:
        problem = f"the script {command[0]} ended with " + (f"the exit code {code}" if code > 0 else f"the signal {-code}")
        if job.stopping:
            print(f"{problem} after the warning signal: nothing was written", file=sys.stderr)
            sys.exit(CANCELLED)
        raise JobError(f"{problem}: no update is written; its messages are above")
    if job.rank != 0:
        return
    steps = steps_saved(job, output)
    tensors = saved_tensors(output)
    # The script's own losses are unknown here: the report has the saved model's loss on the records of its last step.
    planned, data, model = job.training["steps"], job.train_data(), model_with(job, tensors)
    sampler, last = Sampler(len(data), job.training["batch_size"], job.training["seed"]), job.training["first_step"] + steps - 1
    total, count = job.measure(model, data, sampler.step_indices(last))
    if steps < planned:
        done = range(job.training["first_step"], last + 1)
        tokens = sum(num_targets([data[i] for i in sampler.step_indices(step)]) for step in done)
    loss = total / max(count, 1)
    job.metric(last, loss=loss, seconds=seconds, tokens_per_second=tokens / seconds)
    after = job.evaluate(model, alone=True)
    if pathlib.Path(command[0]).is_file():
        job.program = command[0]
    name = f"{pathlib.Path(command[0]).name} (xffl_job.py run)"
    job.finish(tensors, [loss] * steps, steps * job.training["batch_size"], tokens, before, after, name, seconds)
    shutil.rmtree(place, ignore_errors=True)


def run_main(arguments):
    """run [OPTION...] -- SCRIPT ARGUMENT... --job JOB: the last two words are those that xffl appends."""
    parser = argparse.ArgumentParser(prog="xffl_job.py run", usage="xffl_job.py run [OPTION...] -- SCRIPT ARGUMENT... --job JOB")
    for name in ("model", "dataset", "output"):
        parser.add_argument(f"--{name}-flag", default=f"--{name}", help=f"the script's argument for its {name}")
    parser.add_argument("--timeout", type=int, default=600, help="seconds that ranks wait for each other")
    if "--" not in arguments or len(arguments) < 4 or arguments[-2] != "--job" or not arguments[arguments.index("--") + 1 : -2]:
        parser.error("expected -- SCRIPT ARGUMENT... --job JOB")
    at = arguments.index("--")
    words = arguments[:at]
    if len(words) % 2 == 0 and not any("=" in word for word in words[::2]):  # argparse takes a value that starts with - after = only
        words = [f"{name}={value}" for name, value in zip(words[::2], words[1::2])]
    options, command = parser.parse_args(words), arguments[at + 1 : -2]
    try:
        run_script(load(arguments[-1]), options, command)
    except JobError as problem:
        sys.exit(str(problem))


def main_of(function, honoured=()):
    """Calls function(job) with the job of the argument --job; a JobError becomes one line and exit code 1.

    `honoured`: the settings that the function follows beyond refuse_unsupported().
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True, type=pathlib.Path)
    try:
        function(load(parser.parse_args().job, honoured))
    except JobError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    if sys.argv[1:2] != ["run"]:
        sys.exit("usage: xffl_job.py run [OPTION...] -- SCRIPT ARGUMENT... --job JOB (docs/user/own_trainer.md)")
    run_main(sys.argv[2:])
