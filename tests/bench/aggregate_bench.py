#!/usr/bin/env python3
"""Measures the averaging of models by xffl, torch and numpy on the same files in the same run.

    .deps/venv/bin/python tests/bench/aggregate_bench.py --xffl BUILD/bin/xffl [--megabytes 500] [--models 4] [--repeat 3]
        [--tool BUILD/tests/aggregate/aggregate_tool]

With --tool it also measures the server step on a float32 master, without and with the verification of all blocks that it reads.

Not a test: prints medians and ratios. Files are warm in the page cache; every method reads safetensors and
writes one; xffl also hashes the result, writes its manifest and syncs it to disk. The others do none of that.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

OTHERS = {
    "torch, all in memory": """
import sys, torch
from safetensors.torch import load_file, save_file
out, *folders = sys.argv[1:]
models = [load_file(f + "/model.safetensors") for f in folders]
save_file({k: (sum(m[k].float() for m in models) / len(models)).to(models[0][k].dtype) for k in models[0]}, out)
""",
    "torch, tensor by tensor": """
import sys, torch
from safetensors import safe_open
from safetensors.torch import save_file
out, *folders = sys.argv[1:]
files = [safe_open(f + "/model.safetensors", "pt") for f in folders]
result = {}
for k in files[0].keys():
    acc = files[0].get_tensor(k).float()
    for f in files[1:]:
        acc += f.get_tensor(k)
    result[k] = (acc / len(files)).to(torch.bfloat16)
save_file(result, out)
""",
    "numpy, float32 sums": """
import json, struct, sys, numpy as np
out, *folders = sys.argv[1:]
def open_file(folder):
    raw = np.memmap(folder + "/model.safetensors", np.uint8, "r")
    size = struct.unpack("<Q", raw[:8])[0]
    return bytes(raw[:8 + size]), raw[8 + size:]
files = [open_file(f) for f in folders]
step = 1 << 20
with open(out, "wb") as file:
    file.write(files[0][0])
    for at in range(0, files[0][1].size, step):
        acc = 0
        for header, data in files:
            acc = acc + (data[at:at + step].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        bits = (acc / np.float32(len(files))).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        file.write(bits.astype(np.uint16).tobytes())
""",
}


MAKE_MODELS = """
import pathlib, sys, torch
from safetensors.torch import save_file
megabytes = int(sys.argv[1])
for k, folder in enumerate(map(pathlib.Path, sys.argv[2:])):
    generator = torch.Generator().manual_seed(k)
    tensors = {f"layers.{i}.weight": (torch.randn(5000, 1000, generator=generator) * 0.02).bfloat16()
               for i in range(max(1, megabytes // 10))}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
"""


def measure(command, out):
    """Seconds and peak resident set in MB of a child process."""
    begin = time.perf_counter()
    pid = os.spawnvp(os.P_NOWAIT, command[0], command)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"{command[0]} failed with status {status}")
    shutil.rmtree(out, ignore_errors=True)
    pathlib.Path(out).unlink(missing_ok=True)
    return seconds, usage.ru_maxrss / 1000


def server_steps(tool, folder, models):
    """Commands of the step without and with verification. The first verified step hashes its inputs, outside its time."""
    master, weights = str(folder / "master"), [word for model in models for word in (model, "1")]
    subprocess.run([tool, "average", "F32", master, "0", "5000000000", *weights], check=True, stdout=subprocess.DEVNULL)
    words = [master, "deltas", "BF16", str(folder / "out_master"), str(folder / "out_model"), *weights]
    steps = {"server step": [tool, "step", *words], "server step, verified": [tool, "verified_step", *words]}
    for command in steps.values():
        step_time(command, folder)
    return steps


def step_time(command, folder):
    """The seconds that the tool prints, those of the step alone."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for name in ("out_master", "out_model"):
        shutil.rmtree(folder / name)
    return float(done.stdout.split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xffl", required=True)
    parser.add_argument("--megabytes", type=int, default=500, help="of each model, in bf16")
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tool", help="aggregate_tool: measures the server step, too")
    parser.add_argument("--folder", help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temp:
        folder = pathlib.Path(temp)
        models = [str(folder / f"m{k}") for k in range(args.models)]
        # In a separate process: a child's peak resident set starts at its parent's.
        measure([sys.executable, "-c", MAKE_MODELS, str(args.megabytes), *models], folder / "none")
        out = str(folder / "out")
        commands = {"xffl aggregate": [args.xffl, "aggregate", "--out", out, *models]}
        commands |= {name: [sys.executable, "-c", code, out, *models] for name, code in OTHERS.items()}
        steps = server_steps(args.tool, folder, models) if args.tool else {}
        step_seconds = {name: [] for name in steps}
        results = {name: [] for name in commands}
        for _ in range(args.repeat):  # interleaved, so that disturbances affect all sides
            for name, command in commands.items():
                results[name].append(measure(command, out))
            for name, command in steps.items():
                step_seconds[name].append(step_time(command, folder))
    ours = statistics.median(seconds for seconds, _ in results["xffl aggregate"])
    print(f"\n{args.models} bf16 models of {args.megabytes} MB on {os.cpu_count()} processors, medians of {args.repeat}")
    for name, runs in results.items():
        seconds = statistics.median(s for s, _ in runs)
        print(f"  {name:26} {seconds:7.2f} s   {seconds / ours:5.1f} x xffl's time   {max(m for _, m in runs):7.0f} MB resident")
    for name, seconds in step_seconds.items():
        median = statistics.median(seconds)
        print(f"  {name:26} {median:7.2f} s   {median / statistics.median(step_seconds['server step']):5.2f} x the step without verification")


main()
