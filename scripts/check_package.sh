#!/usr/bin/env bash
# Starts a bundle (scripts/package.sh) in a small Debian 11 (glibc 2.31) that has nothing else, and compares a training, an evaluation and
# a tokenization there with the same ones on this machine.
#
#   scripts/check_package.sh FOLDER [ROOT]     ROOT: a root file system with the programs in its PATH, instead of Debian 11
#
# A bundle for aarch64 is started under QEMU's user emulation on x86-64.
#
# Needs user namespaces or root; without them it says so and exits with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bundle=$(realpath "$1")
arch=$(uname -m) emulator=
if readelf -h "$bundle/bin/xffl-train" 2>/dev/null | grep -q AArch64 && [ "$arch" = x86_64 ]; then arch=aarch64 emulator=/qemu-aarch64-static; fi
base=${2:-$(realpath "${XFFL_DEPS_DIR:-.deps}")/sysroot/$arch-base}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -a "$base" "$work/root"
mkdir -p "$work/root"/{opt/elsewhere,check,tmp,dev,proc}
ln -sfn dash "$work/root/bin/sh"
if [ -n "$emulator" ]; then cp "$(command -v "${emulator#/}")" "$work/root/"; fi
namespace=(unshare --mount)
[ "$(id -u)" = 0 ] || namespace=(unshare --mount --map-root-user)
"${namespace[@]}" sh -ec 'mount --rbind /proc "$1/proc"; mount --rbind /dev "$1/dev"' sh "$work/root" 2>/dev/null || { echo "check_package: no namespaces here: the bundle was not started"; exit 77; }
inside() { # inside [NAME=VALUE...] PROGRAM...: with an empty environment
  local variables=()
  while [[ $1 == *=* ]]; do variables+=("$1") && shift; done
  "${namespace[@]}" sh -ec 'root=$1 bundle=$2; shift 2
    mount --bind "$bundle" "$root/opt/elsewhere"; mount --rbind /proc "$root/proc"; mount --rbind /dev "$root/dev"
    exec /usr/bin/env -i PATH=/usr/bin:/bin HOME=/ OMP_NUM_THREADS=1 "$@"' sh "$work/root" "$bundle" "${variables[@]}" \
    "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" "$work/root" ${emulator:+"$emulator"} "$@"
}
here() { (cd "$work/root" && env OMP_NUM_THREADS=1 "$@"); }
inside "/lib/$arch-linux-gnu/libc.so.6" | head -n 1

cat >"$work/root/check/config.json" <<'J'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 300, "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
J
for i in $(seq 1 400); do echo "The quick brown fox number $i jumps over $((i * 7 % 13)) lazy dogs."; done >"$work/root/check/text.txt"
encode="--tokenizer /check/tokenizer --sequence-length 32 --input /check/text.txt"
bin=/opt/elsewhere/bin
if [ $# -ge 2 ]; then bin=/usr/local/bin; fi
where=$(. "$work/root/etc/os-release" 2>/dev/null && echo "$PRETTY_NAME" || echo "Debian 11")
inside $bin/xffl-train --version
inside $bin/xffl-train info
inside $bin/xffl-tokenize train --input /check/text.txt --vocab-size 300 --output /check/tokenizer >/dev/null
inside $bin/xffl-tokenize encode $encode --output /check/bundle.tokens >/dev/null
# JSON lines and the rows of a Parquet file give the same tokens.
"$(realpath "${XFFL_DEPS_DIR:-.deps}")/venv/bin/python" - "$work/root/check" <<'P'
import json
import sys
import pyarrow
import pyarrow.parquet
with open(sys.argv[1] + "/text.txt") as file:
    rows = file.read().splitlines()
pyarrow.parquet.write_table(pyarrow.table({"text": rows}), sys.argv[1] + "/rows.parquet", compression="zstd")
with open(sys.argv[1] + "/rows.jsonl", "w") as file:
    file.writelines(json.dumps({"text": row}) + "\n" for row in rows)
P
for kind in jsonl parquet; do inside $bin/xffl-tokenize encode ${encode/text.txt/rows.$kind} --output /check/$kind.tokens >/dev/null; done
cmp "$work"/root/check/{jsonl,parquet}.tokens
hash=$(inside $bin/xffl-train init --config /check/config.json --seed 1 --output /check/bundle-model 2>&1 | sed -n 's/.*sha256=\([0-9a-f]\{64\}\).*/\1/p')
[ -n "$hash" ] || { echo "check_package: xffl-train init printed no sha256 of the model"; exit 1; }
inside $bin/xffl-train evaluate --model /check/bundle-model --tokens /check/bundle.tokens --json >"$work/bundle.json"

# A bundle for GPUs: a node's old driver is named, and the job does not train with the node's CPUs instead.
if [ -e "$bundle/lib/libtorch_cuda.so" ]; then
  evaluate_with_driver() {
    echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $1  Mon Sep 15 20:34:12 UTC 2025" >"$work/root/check/driver"
    inside XFFL_DRIVER_VERSION_FILE=/check/driver $bin/xffl-train evaluate --model /check/bundle-model --tokens /check/bundle.tokens 2>&1
  }
  old=535.274.02
  if [ -e "$bundle/lib/libcudart.so.12" ]; then # CUDA 12 runs with this driver
    evaluate_with_driver $old >/dev/null || { echo "check_package: xffl-train did not start with the driver $old"; exit 1; }
    old=515.105.01
  fi
  refused=$(evaluate_with_driver $old) && { echo "check_package: xffl-train started with the driver $old"; exit 1; }
  case $refused in *$old*cuda_compat*) echo "$refused" ;; *) echo "check_package: no word about the driver $old: $refused"; exit 1 ;; esac
fi

job() { # job NAME WORK: two steps of training in the folder NAME, with the model and tokens under WORK
  mkdir "$work/root/check/$1"
  cat >"$work/root/check/$1/job.json" <<J
{"version": 4, "key": {"project": "p", "run": "0001", "round": 1, "facility": "alba", "attempt": 1, "nonce": "0123456789abcdef0123456789abcdef"},
 "base_model_path": "$2/bundle-model", "base_model_sha256": "$hash", "base_model_packed": null, "train_paths": ["$2/bundle.tokens"],
 "validation": [], "adapter_path": "", "adapter_sha256": "", "optimizer_path": "", "update_path": "update", "report_path": "report.json",
 "metrics_path": "metrics.jsonl", "state_path": "state", "on_stop": "update", "update_kind": "weights", "update_dtype": "fp32",
 "training": {"steps": 2, "first_step": 0, "batch_size": 8, "micro_batch_size": 4, "learning_rate": 1e-3,
  "schedule": {"kind": "constant", "warmup_steps": 0, "total_steps": 2, "min_ratio": 0.0}, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95,
  "epsilon": 1e-8, "max_grad_norm": 1.0, "seed": 1, "precision": "fp32", "masters": "fp32", "moment_dtype": "fp32", "gradient_dtype": "fp32",
  "sharding": "none", "shard_group_size": 0, "recompute": "none", "offload": "none", "checkpoint_interval": 0, "keep_checkpoints": 2,
  "validation_samples": 0, "train_samples": 0, "max_tokens": 0, "validation_interval": 0, "early_stop_patience": 0, "early_stop_keep": "best",
  "proximal": 0.0, "document_mask": false, "deterministic": false, "keep_optimizer": false, "freeze": [],
  "lora": {"rank": 0, "alpha": 16.0, "dropout": 0.0, "target_modules": ["q_proj"]},
  "groups": {"count": 1, "interval": 1, "exchange": "weights", "weighting": "equal",
   "outer": {"kind": "average", "learning_rate": 1.0, "momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}},
  "pipeline": {"stages": 1, "schedule": "1f1b"}}}
J
}
job bundle-job /check
inside $bin/xffl-train --device cpu --job /check/bundle-job/job.json >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# The same by this machine's build, if there is one.
own=
for preset in release dev trainer-cpu; do
  if [ -x build/$preset/bin/xffl-tokenize ] && build/$preset/bin/xffl-train --version >/dev/null 2>&1; then own=$PWD/build/$preset/bin && break; fi
done
if [ -z "$own" ]; then
  echo "check_package: no build here to compare with (scripts/build.sh release); the bundle's programs ran in $where, with:"
  cut -d, -f1-3 "$work/bundle.json" # tokens, loss, perplexity
  exit 0
fi
cd "$work/root"
"$own/xffl-tokenize" encode ${encode//\/check/check} --output check/own.tokens >/dev/null
"$own/xffl-train" init --config check/config.json --seed 1 --output check/own-model >/dev/null
OMP_NUM_THREADS=1 "$own/xffl-train" evaluate --model check/own-model --tokens check/own.tokens --json >"$work/own.json"
job own-job "$work/root/check"
OMP_NUM_THREADS=1 "$own/xffl-train" --device cpu --job check/own-job/job.json >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmp check/bundle.tokens check/own.tokens
cmp check/bundle-model/model.safetensors check/own-model/model.safetensors
same="tokens, model, update and loss"
if [ -z "$emulator" ] && [ $# -lt 2 ]; then
  cmp check/bundle-job/update/model.safetensors check/own-job/update/model.safetensors
else # another architecture rounds otherwise, and so does glibc from 2.41 on (expm1f)
  same="tokens, model and loss"
fi
python3 - "$where" "$work/bundle.json" "$work/own.json" <<'P'
import json
import sys
bundle, own = (json.load(open(name)) for name in sys.argv[2:])
print(f"loss in {sys.argv[1]} {bundle['nll']}, here {own['nll']}")
sys.exit(abs(bundle["nll"] - own["nll"]) > 1e-6)
P
echo "check_package: the bundle in $where and this machine's build gave the same $same"
