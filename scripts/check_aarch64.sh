#!/usr/bin/env bash
# Builds the modules that read and write exchanged files for aarch64 with a cross compiler, runs their unit tests under QEMU's user
# emulation, and compares bytes with this machine's: averages with numpy's, shards of tokens and packed models with the programs of the
# preset dev. A coordinator and facilities on either architecture exchange and publish the same models.
#
#   scripts/check_aarch64.sh [trainer]
#
# With `trainer`: builds xffl-train for aarch64 instead, with LibTorch's wheel for aarch64, starts it under QEMU, compares its losses,
# updates and texts with Hugging Face's, and runs federations of it and this machine's trainer. Not a part of scripts/test.sh: it downloads 420 MB and takes some minutes.
#
# Installs the cross compiler and QEMU as root or with sudo; without either, or on another machine than x86-64, it says so and exits
# with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(uname -m)" = x86_64 ] || { echo "check_aarch64: SKIPPED: this machine is $(uname -m), and the check is for x86-64"; exit 77; }
case "${1:-}" in '' | trainer) ;; *) echo "check_aarch64: '$1' is unknown: expected nothing, or trainer" >&2; exit 2 ;; esac
root=$(realpath -m "${XFFL_DEPS_DIR:-.deps}")/aarch64
fail() { echo "check_aarch64: $*"; exit 1; }
check_alignment() { # a kernel with pages of 64 KiB, such as Grace's, loads no segment of a smaller alignment
  local program small
  for program in "$@"; do
    small=$(readelf --wide --segments "$program" | awk '$1 == "LOAD" && length($NF) < length("0x10000")')
    [ -z "$small" ] || fail "segments of $program with less than 64 KiB alignment: $small"
  done
}
write_emulated() { # write_emulated SCRIPT PROGRAM [OPTION OF QEMU...]: a script that starts the program under emulation
  local script=$1 program=$2
  shift 2
  printf '#!/bin/sh\nexec qemu-aarch64-static -L "%s" %s "%s" "$@"\n' "$root" "$*" "$program" >"$script"
  chmod +x "$script"
}
check_trainer() {
  scripts/bootstrap.sh test
  scripts/bootstrap.sh aarch64-trainer || { echo "check_aarch64: SKIPPED: no cross compiler, QEMU or LibTorch for aarch64 here"; exit 77; }
  scripts/build.sh aarch64-trainer
  scripts/build.sh dev xffl_test_tool
  local bin=$PWD/build/aarch64-trainer/bin torch
  torch=$(realpath "${XFFL_DEPS_DIR:-.deps}")/aarch64_torch
  check_alignment "$bin/xffl-train" "$torch"/torch/lib/lib{torch_cpu,c10}.so
  mkdir -p "$bin/emulated"
  ln -sfn "$PWD/build/dev/bin/xffl_test_tool" "$bin/emulated/" # writes the tests' files
  write_emulated "$bin/emulated/xffl-train" "$bin/xffl-train" -E "LD_LIBRARY_PATH=$torch/torch/lib:$torch/nvidia/cu13/lib"
  "$bin/emulated/xffl-train" info | grep -E '^(version|system|torch|has_gloo) '
  # A hundred steps take about five minutes on an idle machine.
  XFFL_TEST_PATIENCE=1800 XFFL_TEST_BIN=$bin/emulated XFFL_TEST_DEVICE=cpu .deps/venv/bin/python -m pytest -q -p no:cacheprovider \
    tests/train/test_hf_parity.py tests/train/test_hf_training.py tests/train/test_generate.py -k "plain or qwen3 or wsd" ||
    fail "the trainer for aarch64 differs from Hugging Face's model"
  scripts/build.sh dev xffl xffl-train xffl-tokenize
  .deps/venv/bin/python tests/e2e/two_architectures.py build/dev/bin "$PWD" "$bin/emulated/xffl-train" ||
    fail "a federation with the trainer for aarch64 differs from one of this machine's trainers"
  echo "check_aarch64: the trainer for aarch64 computes what Hugging Face computes"
}
if [ "${1:-}" = trainer ]; then
  check_trainer
  exit 0
fi
scripts/bootstrap.sh aarch64 || { echo "check_aarch64: SKIPPED: no cross compiler or no QEMU here (scripts/bootstrap.sh aarch64)"; exit 77; }
modules=(base checkpoint pack aggregate tokens tokenize)
scripts/build.sh aarch64 aggregate_tool xffl-tokenize "${modules[@]/%/_test}"
build=$PWD/build/aarch64
emulated() { qemu-aarch64-static -L "$root" "$@"; }

check_alignment "$build/tests/aggregate/aggregate_tool" "$build/bin/xffl-tokenize"

# Left out: the emulator runs no program that a program starts (LiveLine on a terminal, Program), shows a process a start time of its
# own (ProcessStartTicks), and its own memory and threads count in the limits of the others. The x86-64 build runs them all.
left_out='LiveLine.*:Program.*:ProcessStartTicks.*:AggregateMemory.*:HostilePack.ChecksSizesBeforeItAllocates'
left_out+=':HostilePack.AFrameThatExpandsToAGigabyteIsRejectedWithinTheBlocksMemory:RunInOrder.ContinuesWith*'
echo "check_aarch64: SKIPPED under emulation: $left_out"
for module in "${modules[@]}"; do
  emulated "$build/bin/${module}_test" --gtest_brief=1 --gtest_filter="-$left_out" --gtest_output="xml:$build/${module}_test.xml" ||
    fail "tests of $module failed"
done

tool=$build/emulated_aggregate_tool
write_emulated "$tool" "$build/tests/aggregate/aggregate_tool"
tests/aggregate/numpy.sh "$PWD/.deps" compare_with_numpy.py "$tool"

scripts/build.sh dev pack_test xffl-tokenize
own=build/dev/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hashes() { grep -oE '"(with|without)_reference" value="[0-9a-f]{64}"' "$1" | sort; }
"$own/pack_test" --gtest_brief=1 --gtest_filter=Pack.RecordsTheHashOfItsBytes --gtest_output="xml:$work/pack.xml"
[ "$(hashes "$work/pack.xml" | wc -l)" = 2 ] || fail "pack_test recorded no hashes"
[ "$(hashes "$work/pack.xml")" = "$(hashes "$build/pack_test.xml")" ] || fail "a packed model has other bytes than on x86-64"
data=tests/tokenize/data
for tokenizer in bpe llama2; do
  for options in '--sequence-length 16' '--no-pack --sequence-length 64'; do
    # shellcheck disable=SC2086
    encode=(encode --input $data/it.txt $data/cs.txt --tokenizer $data/$tokenizer --seed 7 --validation-fraction 0.3 $options)
    "$own/xffl-tokenize" "${encode[@]}" --output "$work/own.tokens" --validation-output "$work/own.validation" >/dev/null
    emulated "$build/bin/xffl-tokenize" "${encode[@]}" --output "$work/other.tokens" --validation-output "$work/other.validation" >/dev/null
    cmp "$work/own.tokens" "$work/other.tokens" && cmp "$work/own.validation" "$work/other.validation" ||
      fail "tokens of $tokenizer differ from x86-64's ($options)"
  done
done
echo "check_aarch64: packed models and shards of tokens have the bytes of x86-64"
