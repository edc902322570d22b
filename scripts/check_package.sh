#!/usr/bin/env bash
# Starts a bundle (scripts/package.sh) in a small Debian 11 (glibc 2.31) that has nothing else, and compares a training, an evaluation and
# a tokenization there with the same ones on this machine.
#
#   scripts/check_package.sh FOLDER
#
# Needs user namespaces or root; without them it says so and exits with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bundle=$(realpath "$1")
base=$(realpath "${XFFL_DEPS_DIR:-.deps}")/sysroot/$(uname -m)-base
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -a "$base" "$work/root"
mkdir -p "$work/root"/{opt/elsewhere,work,tmp,dev,proc}
ln -sfn dash "$work/root/bin/sh"
namespace=(unshare --mount)
[ "$(id -u)" = 0 ] || namespace=(unshare --mount --map-root-user)
"${namespace[@]}" true 2>/dev/null || { echo "check_package: no namespaces here: the bundle was not started"; exit 77; }
inside() { # inside COMMAND...: with an empty environment
  "${namespace[@]}" sh -ec 'root=$1 bundle=$2; shift 2
    mount --bind "$bundle" "$root/opt/elsewhere"; mount --bind /proc "$root/proc"; mount --bind /dev "$root/dev"
    exec "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/ OMP_NUM_THREADS=1 "$@"' sh "$work/root" "$bundle" "$@"
}
here() { (cd "$work/root" && env OMP_NUM_THREADS=1 "$@"); }
inside sh -c '/lib/x86_64-linux-gnu/libc.so.6 | head -n 1'

cat >"$work/root/work/config.json" <<'J'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 300, "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
J
for i in $(seq 1 400); do echo "The quick brown fox number $i jumps over $((i * 7 % 13)) lazy dogs."; done >"$work/root/work/text.txt"
encode="--tokenizer /work/tokenizer --sequence-length 32 --input /work/text.txt"
bin=/opt/elsewhere/bin
inside $bin/xffl-train --version
inside $bin/xffl-tokenize train --input /work/text.txt --vocab-size 300 --output /work/tokenizer >/dev/null
inside $bin/xffl-tokenize encode $encode --output /work/bundle.tokens >/dev/null
inside $bin/xffl-train init --config /work/config.json --seed 1 --output /work/bundle-model >/dev/null
inside $bin/xffl-train evaluate --model /work/bundle-model --tokens /work/bundle.tokens --json >"$work/bundle.json"

# The same by this machine's build, if there is one.
own=
for preset in release dev trainer-cpu; do
  if [ -x build/$preset/bin/xffl-tokenize ] && build/$preset/bin/xffl-train --version >/dev/null 2>&1; then own=$PWD/build/$preset/bin && break; fi
done
if [ -z "$own" ]; then
  echo "check_package: no build here to compare with (scripts/build.sh release); the bundle's programs ran in Debian 11, with:"
  cut -d, -f1-3 "$work/bundle.json" # tokens, loss, perplexity
  exit 0
fi
cd "$work/root"
"$own/xffl-tokenize" encode ${encode//\/work/work} --output work/own.tokens >/dev/null
"$own/xffl-train" init --config work/config.json --seed 1 --output work/own-model >/dev/null
OMP_NUM_THREADS=1 "$own/xffl-train" evaluate --model work/own-model --tokens work/own.tokens --json >"$work/own.json"
cmp work/bundle.tokens work/own.tokens
cmp work/bundle-model/model.safetensors work/own-model/model.safetensors
python3 - "$work/bundle.json" "$work/own.json" <<'P'
import json
import sys
bundle, own = (json.load(open(name)) for name in sys.argv[1:])
print(f"loss in Debian 11 {bundle['nll']}, here {own['nll']}")
sys.exit(abs(bundle["nll"] - own["nll"]) > 1e-6)
P
echo "check_package: the bundle in Debian 11 and this machine's build gave the same tokens, model and loss"
