"""`xffl deploy` killed at many moments, and `xffl doctor --job` at a facility with faults: Debian 11, Slurm 20.11, a real bundle.

    older_site.py BIN SOURCE BUNDLE ROOT [MOMENTS]

BUNDLE: an archive of scripts/package.sh; ROOT: the facilities' root file system (tests/support/testbed/debian11_root.sh).
MOMENTS: of kills, 20 by default. scripts/check_older_site.sh starts it.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from lab import BIN, LENGTH, SOURCE, VOCAB, encode, make_model, run, write_sequences

BUNDLE, ROOT = (pathlib.Path(word).resolve() for word in sys.argv[3:5])
MOMENTS = int(sys.argv[5]) if len(sys.argv) > 5 else 20
CLUSTER = SOURCE / "scripts/dev_cluster.sh"
SKIPPED = 77
PROJECT = """project: lab
model: model
rounds: 1
training: {{steps_per_round: 4, batch_size: 8, micro_batch_size: 1, precision: fp32}}
facilities:
  brno:
    access: ssh
    ssh: {{hosts: {host}, user: {user}, keys: {key}}}
    scheduler: slurm
    slurm: {{nodes: 2, gpus_per_node: {gpus}, time: 5m, warning: 1m}}
    workdir: /scratch/xffl
    trainer: bundle
    environment: [export OMP_NUM_THREADS=1]
    data: {{train: [/scratch/{tokens}]}}
"""
FABRIC = "/opt/fabric/libfabric.so.1"
NVIDIA_SMI = """#!/bin/sh
case $1 in -L) echo "GPU 0: A100"; echo "GPU 1: A100" ;; *) echo 535.274.02; echo 535.274.02 ;; esac
"""


class Facility:
    def __init__(self, folder):
        self.state, self.project = folder / "testbed", folder / "project"
        up = self.cluster("up", "--owner", str(os.getpid()), "--root", str(ROOT), "brno", check=False)
        if up.returncode == SKIPPED:
            print(f"SKIPPED: {up.stderr.strip()}")
            sys.exit(SKIPPED)
        assert up.returncode == 0, up.stdout + up.stderr
        self.about = dict(line.split("=", 1) for line in self.cluster("describe", "brno").stdout.splitlines())
        self.scratch = pathlib.Path(self.about["folder"]) / "scratch"
        self.project.mkdir()
        shutil.copy(self.about["known_hosts"], self.project / "known_hosts")
        make_model(self.project)
        encode(self.project, "fits", 1, 64)
        write_sequences(self.project / "other.jsonl", 1, 64)
        run(BIN / "xffl-tokenize", "encode", "--format", "ids", "--no-pack", "--vocab-size", VOCAB + 32, "--sequence-length", LENGTH,
            "--input", self.project / "other.jsonl", "--output", self.project / "other.tokens")
        for name in ("fits", "other"):
            shutil.copy(self.project / f"{name}.tokens", self.scratch)
            (self.scratch / f"{name}.tokens").chmod(0o644)
        self.configure()

    def cluster(self, *words, check=True):
        return subprocess.run([CLUSTER, words[0], "--state", self.state, *words[1:]], capture_output=True, text=True, check=check,
                              timeout=180)

    def as_root(self, script):
        """On the log-in node, whose root file system all nodes share."""
        return self.cluster("exec", "brno", "sh", "-ec", script).stdout

    def configure(self, tokens="fits.tokens", gpus=0, more=""):
        text = PROJECT.format(tokens=tokens, gpus=gpus, **{name: self.about[name] for name in ("host", "user", "key")})
        (self.project / "xffl.yaml").write_text(text + more)

    def deploy(self, *words):
        return [BIN / "xffl", "deploy", "-p", self.project, "brno", *words]

    def remove(self):
        run(*self.deploy("--remove"))

    def check_bundle(self):
        """The bundle that the link names is complete, and nothing else of the deployment is left."""
        programs = next(self.scratch.glob("xffl/**/MANIFEST")).parent
        run("sh", "-c", 'cd "$1" && sha256sum -c --quiet MANIFEST', "sh", programs)
        others = sorted(path.name for path in programs.parent.iterdir() if path != programs and not path.is_symlink())
        assert not others, others

    def doctor(self):
        began = time.monotonic()
        done = subprocess.run([BIN / "xffl", "doctor", "-p", self.project, "--job", "brno", "--yes"], capture_output=True, text=True,
                              check=False, timeout=300)
        print(done.stdout, flush=True)
        print(f"doctor --job: exit code {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
        return done


def kills(facility):
    began = time.monotonic()
    run(*facility.deploy(BUNDLE))
    whole = time.monotonic() - began
    facility.check_bundle()
    print(f"deploy: {whole:.1f} s without a kill", flush=True)
    interrupted = 0
    for i in range(MOMENTS):
        facility.remove()
        moment = whole * (i + 0.5) / MOMENTS
        process = subprocess.Popen(facility.deploy(BUNDLE), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            interrupted += 1
        run(*facility.deploy(BUNDLE))
        facility.check_bundle()
    print(f"deploy: killed at {interrupted} of {MOMENTS} moments, continued and complete each time", flush=True)
    assert interrupted > MOMENTS / 2, "most moments came after the end"


def faults(facility):
    facility.as_root(f"mkdir -p {FABRIC.rpartition('/')[0]} && cp /lib/x86_64-linux-gnu/libm.so.6 {FABRIC}")
    library = f"    library_path: {FABRIC}\n"
    facility.configure(more=library)
    good = facility.doctor()
    assert good.returncode == 0 and "glibc 2.31" in good.stdout, good.stderr

    node = facility.as_root("cat /run/xffl/node2.pid").strip()
    facility.as_root(f"nsenter -t {node} -m mount -t tmpfs none {FABRIC.rpartition('/')[0]}")
    (facility.state / "nvidia-smi").write_text(NVIDIA_SMI)
    subprocess.run([CLUSTER, "exec", "--state", facility.state, "brno", "sh", "-ec",
                    "cat >/opt/site/bin/nvidia-smi && chmod 755 /opt/site/bin/nvidia-smi"], input=NVIDIA_SMI, text=True, check=True)
    facility.configure("other.tokens", 2, library)
    bad = facility.doctor()
    assert bad.returncode != 0
    for words in (f"on brno2 the library {FABRIC} does not exist", "facilities.brno.slurm.extra: --exclude=brno2",
                  "driver 535.274.02", "deploy the flavour cu128 (the driver is 535.274.02)",
                  f"has a vocabulary of {VOCAB + 32}, the model has {VOCAB}", "xffl prepare brno"):
        assert words in bad.stdout, words
    assert f"on brno1 the library {FABRIC}" not in bad.stdout


def main():
    with tempfile.TemporaryDirectory() as name:
        facility = Facility(pathlib.Path(name))
        try:
            kills(facility)
            faults(facility)
        finally:
            facility.cluster("down", check=False)


main()
