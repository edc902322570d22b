"""xffl-kernel-bench measures each of its cases: argv[1] is the program."""

import json
import pathlib
import subprocess
import sys
import time

program = pathlib.Path(sys.argv[1])
if not program.exists():
    print(f"skipped: {program} is not built here")
    sys.exit(77)
begin = time.monotonic()
run = subprocess.run([program, "--device", "cpu", "--tiny"], capture_output=True, text=True, timeout=60)
assert run.returncode == 0, f"{run.returncode}\n{run.stdout}\n{run.stderr}"
lines = [json.loads(line) for line in run.stdout.splitlines()]
for line in lines:
    assert line["milliseconds"] > 0 and "error" not in line and line["shape"], line
    rate = "tflops" if line["name"] in ("gemm", "head_loss", "attention") else "gigabytes_per_second"
    assert line[rate] > 0, line
keys = [(line["name"], line["shape"], line.get("layer"), line.get("pass")) for line in lines]
assert len(set(keys)) == len(keys), "no case is measured twice"
products = {(line["layer"], line["pass"]) for line in lines if line["name"] == "gemm"}
passes = ["forward", "input gradient", "weight gradient, fp32", "weight gradient, bf16"]
assert products == {(layer, pass_) for layer in ("q", "k/v", "o", "gate/up", "down", "head") for pass_ in passes}
names = {line["name"] for line in lines}
expected = """gemm head_loss attention cross_entropy rms_norm add_rms_norm rms_norm_backward swiglu swiglu_backward rope rope_backward accumulate
embedding_backward adamw gradient_norm split_masters join_masters all_reduce all_gather reduce_scatter""".split()
assert names == set(expected), names ^ set(expected)
bad = subprocess.run([program, "--device", "abacus"], capture_output=True, text=True)
assert bad.returncode == 2 and "abacus" in bad.stderr, bad
print(f"{len(lines)} cases in {time.monotonic() - begin:.1f} s")
