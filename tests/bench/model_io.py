"""Loading and saving a model: xffl against transformers, both sides in one run.

    scripts/build.sh dev xffl-train xffl-model-io-bench
    .deps/venv/bin/python tests/bench/model_io.py [--layers 4] [--repeats 5] [--device cuda] [--threads 2]

The model has Llama-3.1-8B's widths and --layers of its 32 blocks, random values, bfloat16. Ours: checking it as a job does (SHA-256
of each file against the manifest), loading it, and writing it as an update is written (hashed, synced to disk, with its manifest).
Theirs: LlamaForCausalLM.from_pretrained to the device, then save_pretrained and os.sync; it hashes nothing. Files are in the page
cache on both sides. Medians, alternately; GB are those of the model in bfloat16. --aim load=2 save=2: GB/s of ours; the exit code is
2 where one is missed.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from aims import missed_aims
from llama_shapes import llama_3_1_8b_config
from trainer_vs_hf import PROJECT


def transformers_worker(model, out, device, threads):
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.zeros(1, device=device)
    start = time.perf_counter()
    loaded = transformers.LlamaForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device)
    synchronize()
    load = time.perf_counter() - start
    start = time.perf_counter()
    loaded.save_pretrained(out, max_shard_size="5GB")
    os.sync()
    print(json.dumps(dict(load=load, save=time.perf_counter() - start)))


def seconds_of(command, out):
    os.sync()
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shutil.rmtree(out, ignore_errors=True)
    if done.returncode != 0:
        sys.exit(f"model_io: {command[0]}: {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(options, folder):
    model, out = folder / "model", folder / "out"
    (folder / "config.json").write_text(json.dumps(llama_3_1_8b_config(options.layers)))
    subprocess.run([options.bin / "xffl-train", "init", "--config", folder / "config.json", "--output", model, "--dtype", "bf16"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    gigabytes = sum(file.stat().st_size for file in model.iterdir()) / 1e9
    sides = {"xffl": [options.bin / "xffl-model-io-bench", model, out, options.device, options.threads],
             "transformers": [sys.executable, __file__, "--worker", model, out, options.device, options.threads]}
    runs = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, command in sides.items():
            runs[name].append(seconds_of(command, out))
    print(f"{gigabytes:.1f} GB on {options.device}, {options.threads} threads, medians of {options.repeats}, load {os.getloadavg()[0]:.1f}")
    rates = {}
    for name, measured in runs.items():
        cells = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        print(f"  {name:12}", ", ".join(f"{key} {seconds:.2f} s ({gigabytes / seconds:.2f} GB/s)" for key, seconds in cells.items()))
        rates[name] = {key: gigabytes / seconds for key, seconds in cells.items()}
    return missed_aims(options.aim, rates["xffl"])


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--worker":
        return transformers_worker(*sys.argv[2:5], int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="32 are all, 16 GB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--bin", type=pathlib.Path, default=PROJECT / "build/dev/bin")
    parser.add_argument("--folder", type=pathlib.Path, help="where the model and its copies go")
    parser.add_argument("--aim", nargs="*", default=[], help="load=, save=, check=")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="model_io.", dir=options.folder) as name:
        missed = compare(options, pathlib.Path(name))
    sys.exit(2 if missed else 0)


if __name__ == "__main__":
    main()
