#!/usr/bin/env python3
"""Measures how a training's time falls with the number of ranks: see scripts/scaling.sh."""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time

import trainer_job

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failure(Exception):
    pass


def find_trainer(given):
    if given:
        return pathlib.Path(given).resolve()
    if found := shutil.which("xffl-train"):
        return pathlib.Path(found)
    builds = sorted(ROOT.glob("build/*/bin/xffl-train"), key=lambda path: path.stat().st_mtime)
    if not builds:
        raise Failure("xffl-train is neither in PATH nor in build/*/bin: give --trainer FILE, or run scripts/build.sh release xffl-train")
    return builds[-1]


def read_job(options):
    """The job to measure: a given job.json with absolute paths, or one for a model and token shards."""
    if options.job:
        path = pathlib.Path(options.job).resolve()
        job = json.loads(path.read_text())
        for key in ("base_model_path", "adapter_path"):
            job[key] = str(path.parent / job[key]) if job[key] else ""
        job["train_paths"] = [str(path.parent / shard) for shard in job["train_paths"]]
        job.update(base_model_packed=None, optimizer_path="")
        job["training"].update(keep_optimizer=False, checkpoint_interval=0)
    else:
        if not options.model or not options.tokens:
            raise Failure("nothing to train: give --model DIR and --tokens FILE, or --job FILE")
        tokens = [str(pathlib.Path(each).resolve()) for each in options.tokens]
        job = trainer_job.job(pathlib.Path(options.model).resolve(), "0" * 64, tokens[0], trainer_job.training_settings(batch_size=8))
        job["train_paths"] = tokens
    job.update(validation=[], update_path="update", report_path="report.json", metrics_path="metrics.jsonl", state_path="state")
    job["training"]["steps"] = options.steps
    for setting in options.set:
        name, separator, value = setting.partition("=")
        if not separator:
            raise Failure(f"--set {setting}: expected KEY=VALUE, such as batch_size=32")
        try:
            job["training"][name] = json.loads(value)
        except ValueError:
            job["training"][name] = value
    return job


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_here(trainer, job, ranks, options):
    """Runs the ranks on this machine; the first failure ends the others."""
    port, processes = free_port(), []
    command = [str(trainer), "--device", options.device, "--threads", str(options.threads), "--benchmark", "--job", str(job)]
    with open(job.parent / "output.txt", "wb") as output:
        for rank in range(ranks):
            env = dict(os.environ)
            if ranks > 1:
                env |= dict(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            processes.append(subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT))
        try:
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
    return max(abs(process.returncode) for process in processes)


def run_by_launcher(launcher, job, ranks):
    command = [word.replace("{ranks}", str(ranks)).replace("{job}", str(job)) for word in shlex.split(launcher)]
    with open(job.parent / "output.txt", "wb") as output:
        try:
            return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
        except OSError as error:
            raise Failure(f"--launch: {error}") from None


def measure(options, trainer, job, ranks, number):
    """One run: its figures. The time is that of the steps after the warm-up."""
    folder = options.output / f"ranks-{ranks}" / f"run-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / "job.json"
    path.write_text(json.dumps(job, indent=1))
    code = run_by_launcher(options.launch, path, ranks) if options.launch else run_here(trainer, path, ranks, options)
    if code != 0 or not (folder / "report.json").exists():
        tail = "\n".join((folder / "output.txt").read_text(errors="replace").splitlines()[-12:])
        raise Failure(f"run {number} on {ranks} ranks ended with exit code {code} and no report.json; the end of {folder / 'output.txt'}:\n{tail}")
    report = json.loads((folder / "report.json").read_text())
    if report["world_size"] != ranks:
        raise Failure(f"run {number} was to have {ranks} ranks, but had {report['world_size']}: check --launch")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "loss" in step][options.warm_up:]
    if not steps:
        raise Failure(f"run {number} on {ranks} ranks has no step after the warm-up of {options.warm_up}: raise --steps")
    seconds = sum(step["seconds"] for step in steps)
    return dict(ranks=ranks, run=number, seconds=seconds, steps=len(steps), tokens_per_second=sum(step["tokens"] for step in steps) / seconds,
                loss=report["train_loss_last"], startup_seconds=report.get("startup_seconds"), environment=report.get("environment", {}))


def summarize(runs):
    """A row for each number of ranks, from the medians of its runs; speed-up and efficiency against the fewest ranks."""
    rows = []
    for ranks in sorted({run["ranks"] for run in runs}):
        mine = [run for run in runs if run["ranks"] == ranks]
        times = [run["seconds"] for run in mine]
        rows.append(dict(ranks=ranks, runs=len(mine), seconds=statistics.median(times), fastest=min(times), slowest=max(times),
                         tokens_per_second=statistics.median(run["tokens_per_second"] for run in mine),
                         loss=statistics.median(run["loss"] for run in mine)))
    for row in rows:
        row["speed_up"] = rows[0]["seconds"] / row["seconds"]
        row["efficiency"] = row["speed_up"] * rows[0]["ranks"] / row["ranks"]
    return rows


def table(rows):
    head = ("ranks", "time, s", "fastest .. slowest", "speed-up", "efficiency", "tokens/s", "loss")
    lines = [(str(row["ranks"]), f"{row['seconds']:.3f}", f"{row['fastest']:.3f} .. {row['slowest']:.3f}", f"{row['speed_up']:.2f}",
              f"{100 * row['efficiency']:.0f} %", f"{row['tokens_per_second']:.0f}", f"{row['loss']:.4f}") for row in rows]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in [head, *lines])


def plot(rows):
    """An SVG: the measured speed-up with the range of the runs, and the ideal line."""
    first, most = rows[0]["ranks"], rows[-1]["ranks"]
    ideal = most / first
    top = max(ideal, *(rows[0]["seconds"] / row["fastest"] for row in rows)) * 1.05
    width, height, left, bottom = 560, 400, 60, 50

    def x(ranks):
        return left + (width - left - 20) * ((ranks - first) / (most - first) if most > first else 0.5)

    def y(speed_up):
        return height - bottom - (height - bottom - 30) * speed_up / top

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<path d="M{left} 30V{height - bottom}H{width - 20}" fill="none" stroke="black"/>',
             f'<path d="M{x(first):.1f} {y(1):.1f}L{x(most):.1f} {y(ideal):.1f}" stroke="gray" stroke-dasharray="5 4"/>',
             f'<text x="{x(most) - 6:.1f}" y="{y(ideal) - 6:.1f}" text-anchor="end" fill="gray">ideal</text>']
    points = []
    for row in rows:
        at = x(row["ranks"])
        low, high = rows[0]["seconds"] / row["slowest"], rows[0]["seconds"] / row["fastest"]
        points.append(f"{at:.1f} {y(row['speed_up']):.1f}")
        parts += [f'<path d="M{at:.1f} {y(low):.1f}V{y(high):.1f}" stroke="#1f5fa8" stroke-width="3" stroke-opacity="0.4"/>',
                  f'<circle cx="{at:.1f}" cy="{y(row["speed_up"]):.1f}" r="4" fill="#1f5fa8"/>',
                  f'<text x="{at:.1f}" y="{y(row["speed_up"]) + 18:.1f}" text-anchor="middle">{row["speed_up"]:.2f}</text>',
                  f'<text x="{at:.1f}" y="{height - bottom + 18}" text-anchor="middle">{row["ranks"]}</text>']
    parts += [f'<path d="M{"L".join(points)}" fill="none" stroke="#1f5fa8"/>',
              f'<text x="{(left + width) / 2:.0f}" y="{height - 12}" text-anchor="middle">ranks</text>',
              f'<text x="16" y="{height / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {height / 2:.0f})">'
              f'speed-up over {first} rank{"s" if first > 1 else ""} (median, range of runs)</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def notes(options, rows, runs, load):
    """The sentences under the table that keep a reader from reading too much into it."""
    lines = [f"medians of {rows[0]['runs']} runs each, of the steps after {options.warm_up} to warm up; the batch is the same for every number of ranks"]
    if not options.launch:
        cpus = len(os.sched_getaffinity(0))
        lines.append(f"on this machine: {cpus} CPUs, {options.threads} thread{'s' if options.threads > 1 else ''} a rank")
        if load > cpus / 4:
            lines.append(f"other programs ran, too: the load before the first run was {load:.1f}")
        if options.device == "cpu" and rows[-1]["ranks"] * options.threads > cpus:
            lines.append(f"{rows[-1]['ranks']} ranks want more CPUs than there are: their time says nothing about scaling")
    gpus = sorted({gpu for run in runs for gpu in run["environment"].get("gpus", [])})
    if gpus:
        lines.append("GPUs: " + "; ".join(gpus))
    spread = max((row["slowest"] - row["fastest"]) / row["seconds"] for row in rows)
    if spread > 0.1:
        lines.append(f"the runs of one number of ranks differ by up to {100 * spread:.0f} %: differences below that mean nothing")
    losses = [row["loss"] for row in rows]
    lines.append(f"the losses differ by {max(losses) - min(losses):.2g}, by the order of sums")
    return lines


def parse(arguments):
    parser = argparse.ArgumentParser(prog="scripts/scaling.sh", description="Measures how a training's time falls with the number of ranks.")
    parser.add_argument("--model", help="folder of the model")
    parser.add_argument("--tokens", nargs="+", help="token shards")
    parser.add_argument("--job", help="a job.json to measure instead of --model and --tokens")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of ranks (default: 1 2)")
    parser.add_argument("--runs", type=int, default=3, help="runs for each number of ranks (default: 3)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run (default: 10)")
    parser.add_argument("--warm-up", type=int, default=2, help="first steps that do not count (default: 2)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of training, such as batch_size=32 or sharding=full")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of a rank (default: an equal share of the CPUs for the most ranks)")
    parser.add_argument("--launch", help="a command that runs the ranks, as a job for example; {ranks} and {job} are replaced")
    parser.add_argument("--trainer", help="the program xffl-train")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("scaling"), help="folder of the results (default: scaling)")
    options = parser.parse_args(arguments)
    if min(options.ranks) < 1 or options.runs < 1 or options.warm_up < 0 or options.steps <= options.warm_up:
        parser.error("--ranks and --runs should be at least 1, and --steps more than --warm-up")
    options.ranks = sorted(set(options.ranks))
    if options.threads == 0:
        options.threads = max(1, len(os.sched_getaffinity(0)) // options.ranks[-1])
    options.output = options.output.resolve()
    return options


def main(arguments):
    options = parse(arguments)
    job = read_job(options)
    trainer = None if options.launch else find_trainer(options.trainer)
    runs, load = [], os.getloadavg()[0]
    for number in range(1, options.runs + 1):  # in turns: a machine that slows down does not favour one number of ranks
        for ranks in options.ranks:
            runs.append(measure(options, trainer, job, ranks, number))
            print(f"run {number} of {options.runs}, {ranks} ranks: {runs[-1]['seconds']:.3f} s", file=sys.stderr)
    rows = summarize(runs)
    remarks = notes(options, rows, runs, load)
    (options.output / "scaling.json").write_text(json.dumps(dict(rows=rows, runs=runs, notes=remarks), indent=1) + "\n")
    (options.output / "scaling.svg").write_text(plot(rows))
    print(table(rows) + "\n")
    print("\n".join(remarks))
    print(f"files: {options.output / 'scaling.svg'}, {options.output / 'scaling.json'}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failure as failure:
        sys.exit(f"scripts/scaling.sh: {failure}")
    except OSError as error:
        sys.exit(f"scripts/scaling.sh: {error}")
