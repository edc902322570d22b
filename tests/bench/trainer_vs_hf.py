"""xffl-train against Hugging Face's LlamaForCausalLM with torch's AdamW, both sides in one run.

    .deps/venv/bin/python tests/bench/trainer_vs_hf.py [--vocab 32000 4096] [--class fp32 bf16 ...] [--ranks 2]

Both sides start from the same folder, take the same batches in the same order, clip the same norm, and run with the same
number of threads, alternately: A B A B ... A side's figure is the median over its runs of tokens per second, from steps after
the warm-up. Precision classes: fp32 is fp32 on both sides; bf16 is our bf16 with float32 masters against HF's better one of
bf16 autocast over float32 weights and of pure bf16 weights, which trains worse; fp32-masters is our bf16 with masters in two
parts (masters: split) against HF's bf16 autocast over float32 weights; pure-bf16 is weights, moments and gradients in bfloat16
on both sides. HF gets its best eager settings: sdpa
attention, fused AdamW, gradients set to None. --ranks N: N processes, Gloo; ours fully sharded, HF under FSDP2.

--device cuda: both sides on one GPU. --shapes llama-3.1-8b: that model's widths with random weights, in --layers of its 32
blocks: of several numbers the first at which both sides fit; with sequences of 2048, --vocab does not apply. --recompute full
computes blocks again on both sides (HF: gradient checkpointing). A side that runs out of memory is reported so.

--cpu-time: for a machine that is busy with something else. A side's figure is then tokens per second of CPU (user and system, of
all ranks) in the steps after the warm-up; ours is what a whole run takes less what the warm-up alone takes. With more than one thread
a rank, those that wait count too: use --threads 1.

Losses must agree, or the exit code is 1: the first one, of the same weights, to what the arithmetic leaves, the others to 5 %.
--aim NAME=NUMBER (ratio and rate at least, memory at most) says whether it is met; the exit code is 2 where one is not.

Peak memory is each process's largest resident set, and with it what HF's process held before it made its model (Python,
torch, transformers); with --device cuda it is what torch's allocator held on the GPU.
"""
import argparse
import datetime
import json
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

PROJECT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(PROJECT / "tests" / "tokens")]

from aims import missed_aims  # noqa: E402
from llama_shapes import lab_config, llama_3_1_8b_config  # noqa: E402
from trainer_job import SEED, job, training_settings  # noqa: E402

# For each class of storage: the settings of job.json's `training`, and HF's equivalent modes.
CLASSES = {
    "fp32": (dict(precision="fp32"), ["fp32"]),
    "bf16": (dict(precision="bf16"), ["bf16 autocast", "pure bf16"]),
    "fp32-masters": (dict(precision="bf16", masters="split"), ["bf16 autocast"]),
    "pure-bf16": (dict(precision="bf16", masters="none", moment_dtype="bf16", gradient_dtype="bf16"), ["pure bf16"]),
}


# --- Hugging Face's side: this file in a separate process ----------------------------------------------------------------------
def batches(data, options):
    from permutation_reference import permutation

    order, epoch, num_sequences = [], 0, len(data)
    while len(order) < options["steps"] * options["batch_size"]:
        order += permutation(num_sequences, SEED, epoch)
        epoch += 1
    for step in range(options["steps"]):
        first = step * options["batch_size"]
        mine = order[first:first + options["batch_size"]][options["rank"]::options["ranks"]]
        yield data[mine]


def resident_mb():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024


def hf_worker(options):
    import numpy
    import torch
    import torch.distributed as dist
    import transformers
    from transformers import LlamaForCausalLM

    torch.set_num_threads(options["threads"])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    before = resident_mb()
    distributed = options["ranks"] > 1
    if distributed:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{options['port']}", rank=options["rank"],
                                world_size=options["ranks"])
    dtype = torch.bfloat16 if options["mode"] == "pure bf16" else torch.float32
    model = LlamaForCausalLM.from_pretrained(options["model"], dtype=dtype, attn_implementation="sdpa")
    device = torch.device(options["device"])
    model.to(device)
    model.config.use_cache = False
    model.train()
    if options["recompute"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    if distributed:
        shard(model, torch, options["mode"])
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)], lr=1e-3,
                                  betas=(0.9, 0.95), eps=1e-8, fused=True)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=options["mode"] == "bf16 autocast" and not distributed)
    data = numpy.fromfile(options["ids"], dtype=numpy.int32).reshape(-1, options["length"] + 1)
    seconds, cpu_seconds, losses = [], [], []
    for ids in batches(data, options):
        start, cpu_start = time.perf_counter(), time.process_time()
        tokens = torch.from_numpy(ids.astype(numpy.int64)).to(device)
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            # HF shifts labels itself and needs one more token than targets: the last token is added, as in xffl.
            loss = model(input_ids=tokens[:, :-1], labels=tokens[:, 1:], shift_labels=tokens[:, 1:].contiguous()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    if distributed:
        mean = torch.tensor(losses)
        dist.all_reduce(mean)
        losses = (mean / options["ranks"]).tolist()
        dist.destroy_process_group()
    print(json.dumps(dict(seconds=seconds, cpu_seconds=cpu_seconds, losses=losses, before_mb=before,
                          gpu_peak_mb=torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0)))


def shard(model, torch, mode):
    """FSDP2 with one unit per block, as in torchtitan: frees parameters after forward, except the root's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if mode == "bf16 autocast":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


# --- Both sides ---------------------------------------------------------------------------------------------------------------
def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(commands, environments):
    """Runs the ranks concurrently; returns their stdouts, the largest peak resident set in MB, and their total CPU seconds."""
    ranks = [subprocess.Popen(list(map(str, c)), env={**os.environ, **e}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for c, e in zip(commands, environments)]
    results = [None] * len(ranks)

    def wait(i):
        errors = threading.Thread(target=lambda: results.__setitem__(i, ranks[i].stderr.read()))
        errors.start()
        output = ranks[i].stdout.read()
        errors.join()
        _, status, usage = os.wait4(ranks[i].pid, 0)
        ranks[i].returncode = os.waitstatus_to_exitcode(status)
        results[i] = (output, results[i], usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)

    waiting = [threading.Thread(target=wait, args=(i,)) for i in range(len(ranks))]
    for thread in waiting:
        thread.start()
    try:
        for thread in waiting:
            thread.join()
    except BaseException:  # ends the remaining ranks
        for rank in ranks:
            rank.kill()
        raise
    for rank, (output, errors, _, _) in zip(ranks, results):
        if rank.returncode != 0 and "out of memory" in output + errors:
            raise MemoryError
        if rank.returncode != 0:
            sys.exit(f"trainer_vs_hf: {rank.args[0]} ended with {rank.returncode}\n{output[-2000:]}{errors[-4000:]}")
    return [r[0] for r in results], max(r[2] for r in results), sum(r[3] for r in results)


class Bench:
    def __init__(self, options, vocab_size, folder, layers=0):
        self.options, self.vocab_size, self.folder, self.layers = options, vocab_size, folder, layers
        self.steps = options.warm_up + options.steps
        self.model, self.tokens, self.ids = folder / "model", folder / "data.tokens", folder / "data.ids"
        self.make_inputs()

    def tool(self, *argv, **more):
        done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        if done.returncode != 0:
            sys.exit(f"trainer_vs_hf: {argv[0]}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def make_inputs(self):
        import random

        o, generator = self.options, random.Random(SEED)
        large = o.shapes != "lab"
        config = llama_3_1_8b_config(self.layers) if large else lab_config(self.vocab_size)
        (self.folder / "config.json").write_text(json.dumps(config))
        self.tool(o.bin / "xffl-train", "init", "--config", self.folder / "config.json", "--seed", SEED, "--output", self.model,
                  "--dtype", "bf16" if large else "fp32")
        self.root = self.tool(o.bin / "xffl_test_tool", "manifest", self.model)
        rows = [[generator.randrange(self.vocab_size) for _ in range(o.length + 1)] for _ in range(self.steps * o.batch_size)]
        lines = "".join(" ".join(map(str, row)) + "\n" for row in rows)
        self.tool(o.bin / "xffl_test_tool", "tokens", self.vocab_size, o.length + 1, self.tokens, input=lines)
        self.ids.write_bytes(b"".join(struct.pack(f"<{o.length + 1}i", *row) for row in rows))

    def ours(self, keys):
        metrics, peak, cpu = self.run_ours(keys, self.steps)
        if self.options.cpu_time:
            cpu -= self.run_ours(keys, self.options.warm_up)[2]
        return self.result([m["seconds"] for m in metrics], [m["loss"] for m in metrics], peak, cpu)

    def run_ours(self, keys, steps):
        o = self.options
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = pathlib.Path(name)
            training = training_settings(steps=steps, batch_size=o.batch_size, micro_batch_size=o.batch_size // o.ranks,
                                         sharding="full" if o.ranks > 1 else "none", recompute=o.recompute)
            training.update(**keys, **json.loads(o.training))
            described = job(self.model, self.root, self.tokens, training, o.job_version, "fp32" if o.shapes == "lab" else "bf16")
            (folder / "job.json").write_text(json.dumps(described))
            command = [o.bin / "xffl-train", "--device", o.device, "--threads", o.threads, "--job", folder / "job.json"]
            _, peak, cpu = run_ranks([command] * o.ranks, self.rank_environments())
            metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            if o.device == "cuda":
                peak = json.loads((folder / "report.json").read_text())["peak_memory_bytes"] / 2**20
        return metrics, peak, cpu

    def rank_environments(self):
        o, port = self.options, free_port()
        common = dict(OMP_NUM_THREADS=str(o.threads), **dict(pair.split("=", 1) for pair in o.environment))
        if o.ranks == 1:
            return [common]
        return [dict(common, RANK=str(r), WORLD_SIZE=str(o.ranks), LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                for r in range(o.ranks)]

    def hf(self, mode):
        o, port = self.options, free_port()
        common = dict(model=str(self.model), ids=str(self.ids), length=o.length, batch_size=o.batch_size, steps=self.steps,
                      threads=o.threads, ranks=o.ranks, port=port, mode=mode, device=o.device,
                      recompute=o.recompute)
        commands = [[sys.executable, __file__, "--hf-worker", json.dumps(dict(common, rank=r))] for r in range(o.ranks)]
        environment = dict(OMP_NUM_THREADS=str(o.threads), PYTHONDONTWRITEBYTECODE="1")
        outputs, peak, _ = run_ranks(commands, [environment] * o.ranks)
        ranks = [json.loads(output.splitlines()[-1]) for output in outputs]
        found, cpu = ranks[0], sum(sum(rank["cpu_seconds"][o.warm_up:]) for rank in ranks)
        peak = found["gpu_peak_mb"] or peak
        return dict(self.result(found["seconds"], found["losses"], peak, cpu), before_mb=found["before_mb"])

    def result(self, seconds, losses, peak, cpu):
        o = self.options
        measured = cpu if o.cpu_time else sum(seconds[o.warm_up:])
        return dict(rate=o.steps * o.batch_size * o.length / measured, losses=losses, peak_mb=peak)


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def compare(bench, precision_class, repeats):
    """Runs both sides interleaved; prints the table of one vocabulary and class, returns its record."""
    keys, modes = CLASSES[precision_class]
    sides = {"xffl " + precision_class: lambda: bench.ours(keys)}
    sides |= {"HF " + mode: lambda mode=mode: bench.hf(mode) for mode in modes}
    runs = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in list(sides.items()):
            try:
                runs[name].append(side())
            except MemoryError:
                print(f"{name}: out of memory" + (f" with {bench.layers} blocks" if bench.layers else ""), flush=True)
                del sides[name], runs[name]
    ours = runs.pop("xffl " + precision_class, None)
    if ours is None or not runs:
        print(f"vocabulary {bench.vocab_size}, {precision_class}: no comparison: a side ran out of memory")
        rates = {name: median(side, "rate") for name, side in runs.items()}
        for name, side in {**({"xffl " + precision_class: ours} if ours else {}), **runs}.items():
            print(f"  {name:18} {median(side, 'rate'):8.0f} tokens a second, peak {median(side, 'peak_mb'):6.0f} MB", flush=True)
        return dict(vocab=bench.vocab_size, precision_class=precision_class, ours=ours and median(ours, "rate"), theirs=rates)
    best = max(runs, key=lambda name: median(runs[name], "rate"))
    print(f"\nvocabulary {bench.vocab_size}, {precision_class}, {bench.options.ranks} ranks of {bench.options.threads} threads, "
          f"load {os.getloadavg()[0]:.1f}")
    unit = "tokens a CPU second" if bench.options.cpu_time else "tokens/s"
    for name, side in {"xffl " + precision_class: ours, **runs}.items():
        rates = sorted(run["rate"] for run in side)
        held = f" (before its model {median(side, 'before_mb'):.0f})" if "before_mb" in side[0] else ""
        print(f"  {name:18} {median(side, 'rate'):8.0f} {unit} [{rates[0]:.0f} .. {rates[-1]:.0f}]  peak "
              f"{median(side, 'peak_mb'):6.0f} MB{held}  loss {side[0]['losses'][0]:.5f} -> {side[0]['losses'][-1]:.5f}")
    ratio = median(ours, "rate") / median(runs[best], "rate")
    memory = median(ours, "peak_mb") / median(runs[best], "peak_mb")
    modes_left = list(runs)
    pairs = list(zip(ours[0]["losses"], runs[modes_left[0]][0]["losses"]))
    drift = max(abs(a - b) for a, b in pairs)
    first = abs(pairs[0][0] - pairs[0][1]) / pairs[0][1]
    agree = first <= (1e-5 if precision_class == "fp32" else 5e-3) and all(abs(a - b) <= 0.05 * b for a, b in pairs)
    print(f"  ratio {ratio:.2f} of {best}; peak memory {memory:.2f}; losses apart by at most {drift:.1e} of {modes_left[0]}" + ("" if agree else ": LOSSES DIFFER"), flush=True)
    return dict(agree=agree, vocab=bench.vocab_size, precision_class=precision_class, ratio=ratio, memory=memory, best=best, drift=drift,
                ours=median(ours, "rate"), theirs={name: median(side, "rate") for name, side in runs.items()})


def compare_blocks(options, precision_class):
    """The records per number of blocks, up to the first number with which both sides fit."""
    if precision_class in ("bf16", "fp32-masters"):
        parameters = 2 * 128256 * 4096 + 32 * 218.1e6
        print(f"HF's AdamW over float32 weights takes 16 bytes a parameter, autocast's copies 2: {18 * parameters / 1e9:.0f} GB for all "
              f"32 blocks, without activations; ours with masters: split {16 * parameters / 1e9:.0f} GB. "
              "So the two are compared on fewer blocks.", flush=True)
    records = []
    for layers in options.layers:
        with tempfile.TemporaryDirectory(prefix="trainer_vs_hf.", dir=options.folder) as name:
            record = compare(Bench(options, options.vocab[0], pathlib.Path(name), layers), precision_class, options.repeats)
        records.append(dict(record, layers=layers))
        if "ratio" in record:
            break
    return records


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=PROJECT / "build" / "dev" / "bin")
    parser.add_argument("--vocab", type=int, nargs="+", default=[32000, 4096])
    parser.add_argument("--class", dest="classes", nargs="+", choices=list(CLASSES), default=["fp32", "bf16"])
    parser.add_argument("--ranks", type=int, default=1, help="processes of each side, on Gloo: full sharding against FSDP2")
    parser.add_argument("--threads", type=int, default=0, help="of each rank; default: the CPUs shared equally")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shapes", choices=["lab", "llama-3.1-8b"], default="lab")
    parser.add_argument("--layers", type=int, nargs="+", default=[32],
                        help="blocks of llama-3.1-8b; of several numbers the first at which both sides fit")
    parser.add_argument("--recompute", choices=["none", "full"], default="none")
    parser.add_argument("--folder", type=pathlib.Path, help="where models are made: default the system's temporary folder")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--warm-up", type=int, default=3, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=12, help="steps that are")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="compare CPU time instead of wall time")
    parser.add_argument("--training", default="{}", help="more keys of job.json's `training`, as JSON")
    parser.add_argument("--job-version", type=int, default=4)
    parser.add_argument("--environment", nargs="*", default=[], help="NAME=VALUE for xffl-train's ranks")
    parser.add_argument("--aim", nargs="*", default=[], help="ratio=, rate=, memory=")
    parser.add_argument("--json", type=pathlib.Path, help="write the records there")
    options = parser.parse_args()
    if options.shapes != "lab":
        options.vocab = [128256]
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.ranks)
    return options


def main():
    options = parse()
    print(f"{datetime.datetime.now():%Y-%m-%d %H:%M}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}; "
          f"batch {options.batch_size}, sequence {options.length}, {options.steps} steps, median of {options.repeats}", flush=True)
    records = []
    if options.shapes == "lab":
        for vocab_size in options.vocab:
            with tempfile.TemporaryDirectory(prefix="trainer_vs_hf.", dir=options.folder) as name:
                bench = Bench(options, vocab_size, pathlib.Path(name))
                records += [compare(bench, c, options.repeats) for c in options.classes]
    else:
        for precision_class in options.classes:
            records += compare_blocks(options, precision_class)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    missed = [aim for record in records for aim in missed_aims(options.aim, dict(record, rate=record["ours"]), at_most={"memory"})]
    if not all(record.get("agree", True) for record in records):
        sys.exit("trainer_vs_hf: the losses of the two sides differ")
    sys.exit(2 if missed else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))  # runs the clean-up of folders and processes
    if len(sys.argv) == 3 and sys.argv[1] == "--hf-worker":
        hf_worker(json.loads(sys.argv[2]))
    else:
        main()
