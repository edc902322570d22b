"""The cost of a round without training and averaging. Run by scripts/bench_round.sh; see there.

A round's overhead is taken along its slowest facility: from the plan to the acceptance of the update that
came last, without the time in which that facility's trainer ran, plus what publishing takes after the averaging.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import struct
import tempfile
import time

from testbed import Testbed, EMULATED, FACILITIES, NETWORKS, PROJECT, run

BEFORE = {("1 MB", "LAN"): 5.0, ("500 MB", "LAN"): 12.0, ("500 MB", "50 ms, 1 Gbit/s"): 48.0}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16, "hidden_size": 1024, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 1024, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}


def write_model(folder, size):
    """`size` bytes of bfloat16 tensors, N(0, 0.02)."""
    folder.mkdir(parents=True)
    rows = size // 2048
    shapes = {"model.embed_tokens.weight": rows // 2, "model.layers.0.mlp.up_proj.weight": rows - rows // 2}
    header, offset = {}, 0
    for name, count in shapes.items():
        header[name] = {"dtype": "BF16", "shape": [count, 1024], "data_offsets": [offset, offset + count * 2048]}
        offset += count * 2048
    text = json.dumps(header)
    text += " " * (-len(text) % 8)
    # Drawn once and repeated at a distance beyond a packed block (1 MiB).
    draw = random.Random(1)
    floats = struct.pack(f"<{1 << 20}f", *(draw.gauss(0, 0.02) for _ in range(1 << 20)))
    words = bytearray(2 << 20)
    words[0::2], words[1::2] = floats[2::4], floats[3::4]  # truncated instead of rounded
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text.encode())
        for left in range(offset, 0, -len(words)):
            file.write(words[:left])
    (folder / "config.json").write_text(json.dumps(CONFIG))


def write_project(folder, testbed, options, size, keep, pack):
    write_model(folder / "model", size)
    shutil.copy(testbed.state / "known_hosts", folder / "known_hosts")
    os.chmod(folder / "known_hosts", 0o600)
    lines = ["project: bench", "model: model", f"rounds: {options.rounds}",
             "training: {steps_per_round: 1, batch_size: 1, micro_batch_size: 1}", "policy: {poll_interval: 1s}",
             "facilities:"]
    for name, about in testbed.facilities.items():
        lines += [f"  {name}:", "    access: ssh", "    scheduler: slurm", "    workdir: /scratch/bench",
                  f"    ssh: {{hosts: {about['host']}, user: {about['user']}, keys: {about['key']}, agent: false}}",
                  f"    transfer: {{pack: {pack}}}",
                  f"    slurm: {{time: 10m, warning: 0s, keep_allocation: {keep}}}", "    trainer:", "      command:",
                  "        - /scratch/timed_trainer.sh", "        - /scratch/xffl-fake-trainer",
                  "    environment:", f"      - export XFFL_FAKE_STEP={options.step}",
                  "    data: {train: /scratch/unused.tokens}"]
    (folder / "xffl.yaml").write_text("\n".join(lines) + "\n")


def seconds(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def training_times(testbed):
    """(round, facility) -> times at which the trainer started, had its model, and ended."""
    times = {}
    for name in FACILITIES:
        for line in testbed.at(name, "sh", "-c", "cat /scratch/times/*").splitlines():
            number, *moments = line.split()
            times[int(number[1:]), name] = tuple(float(moment) for moment in moments)
    return times


PARTS = ("push", "submit", "queue", "unpack", "notice, fetch, check", "publish")


def round_times(events, training):
    """One dict of seconds for each round."""
    by_round = {}
    for event in events:
        by_round.setdefault(event.get("round", 0), []).append(event)
    result = []
    for number in sorted(n for n in by_round if n > 0):
        at = {}
        for event in by_round[number]:
            at[event["kind"], event.get("facility", "")] = seconds(event["time"])
        last = max(FACILITIES, key=lambda name: at["update_accepted", name])
        began, unpacked, ended = training[number, last]
        parts = dict(zip(PARTS, (
            at["pushed", last] - at["round_planned", ""], at["submitted", last] - at["pushed", last], began - at["submitted", last],
            unpacked - began, at["update_accepted", last] - ended,
            at["participants_frozen", ""] - at["update_accepted", last] + at["published", ""] - at["aggregated", ""])))
        overhead = sum(parts.values())
        result.append({"overhead": overhead, "without queue": overhead - parts["queue"], **parts, "training": ended - unpacked,
                       "averaging": at["aggregated", ""] - at["participants_frozen", ""]})
        sent = [event["payload"] for event in by_round[number] if event["kind"] == "pushed"]
        result[-1]["fewer"] = sum(p.get("whole_bytes", p["moved_bytes"]) for p in sent) / max(1, sum(p["moved_bytes"] for p in sent))
    return result


def scp_times(testbed, folder, *cipher):
    """Copies the same bytes there and back by scp, both facilities at once."""
    base = ["scp", "-q", *cipher, "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={testbed.state}/known_hosts"]

    def both(command):
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda about: run(*command(about)), testbed.facilities.values()))
        return time.monotonic() - began

    far = lambda about: f"{about['user']}@{about['host']}:/scratch/scp"
    there = both(lambda about: [*base, "-i", about["key"], "-r", folder / "model", far(about)])
    back = both(lambda about: [*base, "-i", about["key"], "-r", far(about), folder / ("back-" + about["name"])])
    for name in FACILITIES:
        testbed.at(name, "rm", "-rf", "/scratch/scp")
        shutil.rmtree(folder / ("back-" + name))
    return there + back


def measure(testbed, options, size, scratch, keep, pack):
    rounds, scps = [], []
    for repeat in range(options.repeats):
        folder = scratch / "project"
        write_project(folder, testbed, options, size, keep, pack)
        scps.append((scp_times(testbed, folder), scp_times(testbed, folder, "-c", "aes128-gcm@openssh.com")))
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(options.build / "bin/xffl", "run", "-p", folder)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) / options.rounds
        journal = next(folder.glob("runs/*/journal.db"))
        events = [json.loads(line) for line in run(options.build / "bin/xffl", "inspect", journal, "--json").splitlines()]
        times = [{**each, "coordinator CPU": cpu} for each in round_times(events, training_times(testbed))]
        # The first round has no kept allocation and no reference model for packing.
        rounds += times[1:] if keep != "0s" or options.pack != ["never"] else times
        for name in FACILITIES:
            testbed.at(name, "rm", "-rf", "/scratch/bench", "/scratch/times")
        shutil.rmtree(folder)
    return rounds, scps


GIGABIT = 119e6  # file bytes per second, without packet headers


def show(size, network, keep, pack, rounds, scps):
    label = f"{size // 1_000_000} MB"
    median = lambda key: statistics.median(r[key] for r in rounds)
    overhead = median("overhead")
    scp, cheapest = (statistics.median(times) for times in zip(*scps))
    before = BEFORE.get((label, NETWORKS[network]))
    limit = f", the link's own limit {2 * size / GIGABIT:.2f}" if network in EMULATED else ""
    compared = f"; the replaced stack {before:g} s, {before / overhead:.1f} times as long" if before else ""
    kept = "" if keep == "0s" else f", allocation kept {keep}"
    if pack == "always":
        kept += f", packed {median('fewer'):.2f} times"
    print(f"{label}, {NETWORKS[network]}{kept}: {overhead:.2f} s a round (from {min(r['overhead'] for r in rounds):.2f} to "
          f"{max(r['overhead'] for r in rounds):.2f}, {len(rounds)} rounds), {median('without queue'):.2f} without Slurm's queue; "
          f"scp there and back {scp:.2f} s, by AES-GCM {cheapest:.2f}{limit}{compared}")
    print("   " + ", ".join(f"{part} {median(part):.2f}" for part in (*PARTS, "training", "averaging", "coordinator CPU")), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench_round.sh", description="Seconds per round beside training and averaging.")
    parser.add_argument("--build", type=pathlib.Path, default=PROJECT / "build/coordinator")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=["lan", "wan"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--keep-allocation", nargs="+", default=["0s", "60s"], metavar="DURATION",
                        help="slurm.keep_allocation: jobs keep their nodes for the next round; 0s: a job a round; several: each in turn")
    parser.add_argument("--pack", nargs="+", default=["never"], choices=["never", "always"],
                        help="transfer.pack: models as differences from the last one; several: each in turn")
    parser.add_argument("--step", default="3.6e-4", help="standard deviation of a facility's updates")
    options = parser.parse_args()
    options.build = options.build.resolve()
    with tempfile.TemporaryDirectory(prefix="xffl-bench-") as temp:
        testbed = Testbed(pathlib.Path(temp) / "testbed")
        try:
            testbed.install(PROJECT / "tests/bench/timed_trainer.sh", options.build / "bin/xffl-fake-trainer")
            for network in options.networks:
                testbed.network(network)
                for megabytes in options.megabytes:
                    for keep in options.keep_allocation:
                        for pack in options.pack:
                            rounds, scps = measure(testbed, options, megabytes * 1_000_000, pathlib.Path(temp), keep, pack)
                            show(megabytes * 1_000_000, network, keep, pack, rounds, scps)
        finally:
            testbed.down()


main()
