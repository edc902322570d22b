#!/usr/bin/env python3
"""Push and fetch with two facilities at once, compared with scp of the same bytes in the same run.

    scripts/build.sh coordinator xffl-transfer-bench && tests/bench/transfer_bench.py [--megabytes 500] [--networks lan wan]

Prints medians: seconds, and CPU seconds of this side and of the facilities' processes, for both together. Every byte
that xffl moves is hashed on both ways and synced to disk; scp does neither.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from testbed import Testbed, NETWORKS, PROJECT, run


def measure(testbed, options, megabytes, scratch):
    about = list(testbed.facilities.values())
    hosts = [word for a in about for word in (a["host"], a["user"], a["init"])]
    lines = run(options.build / "bin/xffl-transfer-bench", about[0]["key"], about[0]["known_hosts"], scratch / "work", megabytes * 1_000_000,
                options.repeats, "sftp" if options.sftp else "shell", *hosts).splitlines()
    results = {}
    for line in map(json.loads, lines):
        results.setdefault(line["what"], []).append(line)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=PROJECT / "build/coordinator")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[500])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=["lan"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sftp", action="store_true", help="as to hosts without a shell")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xffl-bench-") as temp:
        testbed = Testbed(pathlib.Path(temp) / "testbed")
        try:
            for network in options.networks:
                testbed.network(network)
                for megabytes in options.megabytes:
                    for what, lines in measure(testbed, options, megabytes, pathlib.Path(temp)).items():
                        here, far, wall = (statistics.median(line[key] for line in lines) for key in ("cpu", "far_cpu", "seconds"))
                        fastest = min(line["seconds"] for line in lines)
                        print(f"{megabytes} MB, {NETWORKS[network]}, {what}: {wall:.2f} s (fastest {fastest:.2f}), CPU here {here:.2f}, "
                              f"there {far:.2f}", flush=True)
        finally:
            testbed.down()


main()
