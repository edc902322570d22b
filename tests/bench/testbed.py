"""Two facilities of scripts/dev_cluster.sh, for the benchmarks."""
import os
import pathlib
import subprocess
import sys

PROJECT = pathlib.Path(__file__).resolve().parents[2]
FACILITIES = ("alba", "brno")
NETWORKS = {"lan": "LAN", "gigabit": "LAN of 1 Gbit/s", "wan": "50 ms, 1 Gbit/s"}
# One way: milliseconds, Mbit/s, per cent of packets lost.
EMULATED = {"gigabit": (0, 1000, 0), "wan": (25, 1000, 0)}


def run(*argv, **more):
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode == 77:
        print("bench: SKIPPED:", done.stderr.strip(), file=sys.stderr)
        sys.exit(77)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


class Testbed:
    def __init__(self, state):
        self.state = state
        self.script("up", "--owner", os.getpid(), *FACILITIES)
        self.facilities = {name: dict(line.split("=", 1) for line in self.script("describe", name).splitlines())
                           for name in FACILITIES}

    def script(self, command, *arguments):
        return run(PROJECT / "scripts/dev_cluster.sh", command, "--state", self.state, *arguments)

    def install(self, *programs):
        for name in FACILITIES:
            self.at(name, "cp", *programs, "/scratch/")

    def network(self, kind):
        for name in FACILITIES:
            self.script("wan", name, *EMULATED.get(kind, ("off",)))

    def down(self):
        self.script("down")

    def at(self, name, *command):
        return self.script("exec", "--user", name, *command)
