#!/usr/bin/env python3
"""A facility's trainer in Python, on Hugging Face transformers: an example of the job contract (docs/reference/job_json.md).

A facility uses it with, in xffl.yaml:

    trainer: {command: [/path/to/venv/bin/python, /path/to/hf_trainer.py]}

xffl starts it as `COMMAND --job job.json`. It reads the job and the model that it names, trains, writes the update as
an HF folder with manifest.json by rename, and report.json last, by rename: the coordinator takes a complete report
that echoes the job's key as the only sign of success. SIGUSR1 and SIGTERM, which batch systems send ahead of the
walltime's end, make it finish its step and write its update so far. One process; needs torch, transformers, safetensors, numpy.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import resource
import signal
import struct
import sys
import time

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

CANCELLED = 75  # the exit code of xffl-train, too
finishing = False


def finish(*_):
    global finishing
    finishing = True


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def read_shard(path):
    """Sequences of a token shard (docs/reference/token_shards.md) as numpy arrays."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    magic, version, width, _, length, num_tokens, num_sequences, _, flags, _ = struct.unpack("<8sIIQQQQQII", data[:64].tobytes())
    if magic != b"XFFLTOK1" or version != 1 or width not in (2, 4):
        sys.exit(f"{path} is not a token shard of version 1")
    tokens = data[64 : 64 + width * num_tokens].view(f"<u{width}")
    if flags & 1:
        return [tokens[i * length : (i + 1) * length] for i in range(num_sequences)]
    begin = 64 + (width * num_tokens + 7) // 8 * 8
    offsets = data[begin : begin + 8 * (num_sequences + 1)].view("<u8")
    return [tokens[offsets[i] : offsets[i + 1]] for i in range(num_sequences)]


def collate(sequences):
    """Right-padded input ids and labels; -100 marks tokens that the model does not predict."""
    longest = max(len(s) for s in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    labels = torch.full((len(sequences), longest), -100)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = labels[row, : len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
    return ids, labels


def summed_loss(model, sequences):
    """Sum of the negative log-likelihood in nats, and the number of predicted tokens."""
    ids, labels = collate(sequences)
    logits = model(input_ids=ids).logits.float()
    targets = labels[:, 1:]
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100, reduction="sum"
    )
    return loss, int((targets != -100).sum())


@torch.no_grad()
def evaluate(model, sequences, batch_size):
    total, tokens = 0.0, 0
    for begin in range(0, len(sequences), batch_size):
        loss, count = summed_loss(model, sequences[begin : begin + batch_size])
        total, tokens = total + loss.item(), tokens + count
    return total / max(tokens, 1), tokens


def learning_rate(training, step):
    schedule, peak = training["schedule"], training["learning_rate"]
    warmup, total = schedule["warmup_steps"], schedule["total_steps"]
    if step < warmup:
        return peak * step / warmup
    if schedule["kind"] == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    shape = 1 - progress if schedule["kind"] == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (schedule["min_ratio"] + (1 - schedule["min_ratio"]) * shape)


def train(model, sequences, training, metrics):
    """Returns losses per step, samples and predicted tokens."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        betas=(training["beta1"], training["beta2"]),
        eps=training["epsilon"],
    )
    losses, samples, tokens = [], 0, 0
    for index in range(training["steps"]):
        if finishing:
            break
        step = training["first_step"] + index
        begin = step * training["batch_size"]
        chosen = []
        for position in range(begin, begin + training["batch_size"]):
            epoch, within = divmod(position, len(sequences))
            order = np.random.default_rng([training["seed"], epoch]).permutation(len(sequences))
            chosen.append(sequences[order[within]])
        began = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        count = sum(len(s) - 1 for s in chosen)
        total = 0.0
        for first in range(0, len(chosen), training["micro_batch_size"]):
            loss, _ = summed_loss(model, chosen[first : first + training["micro_batch_size"]])
            (loss / count).backward()
            total += loss.item()
        if not math.isfinite(total):
            sys.exit(f"step {step}: the loss is not finite; no update is written")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"] or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / count)
        samples, tokens = samples + len(chosen), tokens + count
        seconds = time.monotonic() - began
        line = {"step": step + 1, "loss": losses[-1], "lr": learning_rate(training, step), "grad_norm": float(norm)}
        metrics.write(json.dumps({**line, "tokens": count, "tokens_per_second": count / seconds, "seconds": seconds}) + "\n")
        metrics.flush()
    return losses, samples, tokens


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def data_identity(paths):
    """The report's fields of the job's distinct shards: what `sha256sum SHARD... | cut -c-64 | sha256sum` prints."""
    sums = "".join(sha256_of(path) + "\n" for path in paths)
    return {
        "data_files": len(paths),
        "data_bytes": sum(path.stat().st_size for path in paths),
        "data_sha256": hashlib.sha256(sums.encode()).hexdigest(),
    }


def root_of(files):
    lines = "".join(f"{f['sha256']}  {f['size_bytes']}  {f['name']}\n" for f in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def write_manifest(folder):
    """manifest.json and its root hash."""
    files = []
    for path in sorted(folder.iterdir()):
        files.append({"name": path.name, "size_bytes": path.stat().st_size, "sha256": sha256_of(path)})
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "files": files}))
    return root_of(files)


def tensors_of(model):
    """Name -> float32 tensor, as in the model's files: a tied output layer is not there."""
    tied = model.config.tie_word_embeddings
    return {n: p.detach().float().clone() for n, p in model.state_dict().items() if not (tied and n == "lm_head.weight")}


def write_update(job, model, before, folder):
    temp = pathlib.Path(str(folder) + ".tmp")
    temp.mkdir(parents=True, exist_ok=True)
    dtype = DTYPES[job["update_dtype"]]
    tensors = tensors_of(model)
    if job["update_kind"] == "delta":
        tensors = {name: tensor - before[name] for name, tensor in tensors.items()}
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, temp / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(temp)
    root = write_manifest(temp)
    os.rename(temp, folder)
    return root


def reject_unsupported_settings(job, training):
    """Exits with an error if job.json has a setting that this trainer does not implement."""
    others = {"lora": training["lora"]["rank"], "groups": training["groups"]["count"] - 1, "pipeline": training["pipeline"]["stages"] - 1}
    for key in ("freeze", "proximal", "document_mask", "max_tokens", "validation_interval", "early_stop_patience", "keep_optimizer"):
        others[key] = training[key]
    # This example keeps float32 weights, and split masters are exact float32 weights, too.
    others["masters"] = training["masters"] == "none"
    for key in ("moment_dtype", "gradient_dtype"):
        others[key] = training[key] != "fp32"
    for key, value in others.items():
        if value:
            sys.exit(f"training.{key} is not done by this example: leave it out")
    if job["on_stop"] != "update":
        sys.exit("this example leaves no checkpoints: leave out policy.on_walltime")


def refuse_a_damaged_model(folder, root_sha256, failure_path):
    """Checks that the folder holds the model that the job names; the job script has compared the files with their hashes.

    The coordinator reads the reason in `failure_path`, sends the model again, and does not count this attempt.
    """
    try:
        files = json.loads((folder / "manifest.json").read_text())["files"]
        found = root_of(files)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        found = repr(problem)
    if found != root_sha256:
        reason = f"{folder}: expected a model with the root hash {root_sha256}, found {found}"
        failure_path.with_suffix(".part").write_text(reason + "\n")
        os.rename(failure_path.with_suffix(".part"), failure_path)
        sys.exit(reason)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) != 1:
        sys.exit("this example trains in one process: set world_size: 1")
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, finish)
    began = time.monotonic()
    job = json.loads(arguments.job.read_text())
    if job["version"] != 4:
        sys.exit(f"job.json has version {job['version']}; this trainer knows version 4")
    if job["base_model_packed"] is not None:
        sys.exit("job.json: base_model_packed: this trainer needs the whole model: leave out transfer.pack")
    here = arguments.job.resolve().parent
    resolve = lambda path: here / path  # an absolute path stays as it is
    training = job["training"]
    reject_unsupported_settings(job, training)
    if resolve(job["report_path"]).exists():
        sys.exit(0)  # requeued after it had finished
    refuse_a_damaged_model(
        resolve(job["base_model_path"]), job["base_model_sha256"], resolve(job["report_path"]).with_name("model.failure")
    )
    torch.manual_seed(training["seed"])
    model = AutoModelForCausalLM.from_pretrained(resolve(job["base_model_path"]), dtype=torch.float32)
    before = tensors_of(model)
    sequences = [s for path in job["train_paths"] for s in read_shard(resolve(path)) if len(s) > 1]
    if training["train_samples"]:
        sequences = sequences[: training["train_samples"]]

    validation = []
    for entry in job["validation"]:
        chosen = read_shard(resolve(entry["path"]))
        chosen = chosen[: training["validation_samples"]] if training["validation_samples"] else chosen
        validation.append((entry["name"], chosen))
    batch = training["micro_batch_size"]
    nll_before = {name: evaluate(model, chosen, batch)[0] for name, chosen in validation}
    train_began = time.monotonic()
    with open(resolve(job["metrics_path"]), "a") as metrics:
        losses, samples, tokens = train(model, sequences, training, metrics)
    train_seconds = time.monotonic() - train_began
    trains = training["steps"] > 0  # else the job measures the model that it is given, and writes no update
    if finishing and not losses:
        print("told to finish before the first step was done: nothing was written", file=sys.stderr)
        sys.exit(CANCELLED)
    results = []
    for name, chosen in validation:
        if finishing:
            break
        nll, count = evaluate(model, chosen, batch) if trains else (nll_before[name], sum(len(s) - 1 for s in chosen))
        results.append({"name": name, "tokens": count, "nll_before": nll_before[name], "nll_after": nll})

    shards = dict.fromkeys([*job["train_paths"], *(entry["path"] for entry in job["validation"])])
    root = write_update(job, model, before, resolve(job["update_path"])) if trains else ""
    report = {
        "version": 2,
        "key": job["key"],
        "base_model_sha256": job["base_model_sha256"],
        "update_sha256": root,
        "steps": len(losses),
        "stopped_early": len(losses) < training["steps"] or len(results) < len(validation),
        "samples": samples,
        "tokens": tokens,
        "train_loss": sum(losses) / len(losses) if losses else 0.0,
        "train_loss_last": losses[-1] if losses else 0.0,
        "validation": results,
        "train_seconds": train_seconds if losses else 0.0,
        "total_seconds": time.monotonic() - began,
        "tokens_per_second": tokens / train_seconds if losses else 0.0,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "world_size": 1,
        "scheduler_job_id": os.environ.get("SLURM_JOB_ID", ""),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "trainer": f"hf_trainer.py (torch {torch.__version__})",
        "nodes": 1,
        **({} if finishing else data_identity([resolve(path) for path in shards])),
        "program_sha256": sha256_of(__file__),
    }
    path = resolve(job["report_path"])
    path.with_suffix(".tmp").write_text(json.dumps(report, indent=2))
    os.rename(path.with_suffix(".tmp"), path)


if __name__ == "__main__":
    main()
