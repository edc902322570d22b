"""`xffl deploy` killed at many moments, `xffl doctor --job` at a facility with faults, and a federation in an image: Debian 11, Slurm 20.11.

    older_site.py BIN SOURCE BUNDLE ROOT [MOMENTS [IMAGE.sqsh]]

BUNDLE: an archive of scripts/package.sh; ROOT: the facilities' root file system (tests/support/testbed/debian11_root.sh).
MOMENTS: of kills, 20 by default. IMAGE: of scripts/package.sh image, with its tar.gz beside it; a user namespace and chroot stand in
for Apptainer. scripts/check_older_site.sh starts it.
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
IMAGE = pathlib.Path(sys.argv[6]).resolve() if len(sys.argv) > 6 else None
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
# The tree of the image is at /opt/image. As real Apptainer does, it sets the image's PATH and shows the node's /etc/hosts.
APPTAINER = """#!/bin/bash
[ "$1" = exec ] || exit 2
shift
binds=() folder=/
while :; do
  case $1 in
    --bind) binds+=("$2") && shift 2 ;;
    --pwd) folder=$2 && shift 2 ;;
    -*) echo "apptainer: unknown option $1" >&2 && exit 2 ;;
    *) break ;;
  esac
done
[ -r "$1" ] || { echo "apptainer: cannot read $1" >&2; exit 255; }
shift
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec unshare --user --map-root-user --mount bash -ec '
  root=/tmp
  mount -t tmpfs image $root
  bind() { if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root${2%/*}" && : >"$root$2"; fi && mount --rbind "$1" "$root$2"; }
  for entry in /opt/image/*; do
    if [ -L "$entry" ]; then cp -P "$entry" $root; else bind "$entry" "/${entry##*/}"; fi
  done
  umount $root/tmp
  mount --bind /etc/hosts $root/etc/hosts
  for path in /proc /dev /sys; do bind $path $path; done
  count=$1 folder=$2
  shift 2
  for ((; count > 0; --count)); do
    path=${1%:ro}
    bind "${path%%:*}" "${path#*:}"
    shift
  done
  exec chroot $root sh -c "cd \\"\\$1\\" && shift && exec \\"\\$@\\"" sh "$folder" "$@"
' bash ${#binds[@]} "$folder" "${binds[@]}" "$@"
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

    def install(self, name, script):
        """A program in the user's PATH."""
        subprocess.run([CLUSTER, "exec", "--state", self.state, "brno", "sh", "-ec", 'cat >"$1" && chmod 755 "$1"', "sh",
                        f"/opt/site/bin/{name}"], input=script, text=True, check=True)

    def configure(self, tokens="fits.tokens", gpus=0, more=""):
        text = PROJECT.format(tokens=tokens, gpus=gpus, **{name: self.about[name] for name in ("host", "user", "key")})
        (self.project / "xffl.yaml").write_text(text + more)

    def deploy(self, *words):
        return [BIN / "xffl", "deploy", "-p", self.project, "brno", *words]

    def remove(self):
        run(*self.deploy("--remove"))

    def check_bundle(self):
        """The bundle is complete, and nothing else of the deployment is left once the script of a killed command has ended."""
        programs = next(path for path in self.scratch.glob("xffl/xffl.programs/*") if path.name.startswith("xffl-trainer-"))
        run("sh", "-c", 'cd "$1" && sha256sum -c --quiet MANIFEST', "sh", programs)
        deadline = time.monotonic() + 60
        while others := sorted(path.name for path in programs.parent.iterdir() if path != programs and not path.is_symlink()):
            assert time.monotonic() < deadline, others
            time.sleep(0.2)

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
    facility.install("nvidia-smi", NVIDIA_SMI)
    facility.configure("other.tokens", 2, library)
    bad = facility.doctor()
    assert bad.returncode != 0
    for words in (f"on brno2 the library {FABRIC} does not exist", "facilities.brno.slurm.extra: --exclude=brno2",
                  "driver 535.274.02", "deploy the flavour cu128 (the driver is 535.274.02)",
                  f"has a vocabulary of {VOCAB + 32}, the model has {VOCAB}", "xffl prepare brno"):
        assert words in bad.stdout, words
    assert f"on brno1 the library {FABRIC}" not in bad.stdout


def in_an_image(facility):
    facility.as_root("rm -f /opt/site/bin/nvidia-smi && mkdir -p /opt/image")
    with open(IMAGE.with_suffix(".tar.gz"), "rb") as archive:
        subprocess.run([CLUSTER, "exec", "--state", facility.state, "brno", "tar", "-xzf", "-", "-C", "/opt/image", "--no-same-owner"],
                       stdin=archive, check=True)
    facility.as_root("touch /opt/image/etc/hosts")
    facility.install("apptainer", APPTAINER)
    facility.configure(more="    image: {file: /scratch/xffl.sif}\n")
    text = (facility.project / "xffl.yaml").read_text()
    (facility.project / "xffl.yaml").write_text(text.replace("    trainer: bundle\n", "").replace("rounds: 1", "rounds: 2"))
    began = time.monotonic()
    run(*facility.deploy(IMAGE))
    print(f"deploy of an image: {time.monotonic() - began:.1f} s", flush=True)
    checked = facility.doctor()
    assert checked.returncode == 0 and "glibc 2.41" in checked.stdout, checked.stderr
    began = time.monotonic()
    print(run(BIN / "xffl", "run", "-p", facility.project))
    print(run(BIN / "xffl", "verify", "-p", facility.project, "--replay"))
    print(f"a federation of one facility in an image: 2 rounds, {time.monotonic() - began:.0f} s", flush=True)


def main():
    with tempfile.TemporaryDirectory() as name:
        facility = Facility(pathlib.Path(name))
        try:
            kills(facility)
            faults(facility)
            if IMAGE:
                in_an_image(facility)
        finally:
            facility.cluster("down", check=False)


main()
