#!/usr/bin/env bash
# Builds the modules that read and write exchanged files for aarch64 with a cross compiler, runs their unit tests under QEMU's user
# emulation, and compares bytes with this machine's: averages with numpy's, shards of tokens and packed models with the programs of the
# preset dev. A coordinator and facilities on either architecture exchange and publish the same models.
#
#   scripts/check_aarch64.sh
#
# Installs the cross compiler and QEMU as root or with sudo; without either, or on another machine than x86-64, it says so and exits
# with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(uname -m)" = x86_64 ] || { echo "check_aarch64: SKIPPED: this machine is $(uname -m), and the check is for x86-64"; exit 77; }
scripts/bootstrap.sh aarch64 || { echo "check_aarch64: SKIPPED: no cross compiler or no QEMU here (scripts/bootstrap.sh aarch64)"; exit 77; }
modules=(base checkpoint pack aggregate tokens tokenize)
scripts/build.sh aarch64 aggregate_tool xffl-tokenize "${modules[@]/%/_test}"
build=$PWD/build/aarch64
root=$(realpath "${XFFL_DEPS_DIR:-.deps}")/aarch64
fail() { echo "check_aarch64: $*"; exit 1; }
emulated() { qemu-aarch64-static -L "$root" "$@"; }

# A kernel with pages of 64 KiB, such as Grace's, loads no segment of a smaller alignment.
for program in "$build/tests/aggregate/aggregate_tool" "$build/bin/xffl-tokenize"; do
  small=$(readelf --wide --segments "$program" | awk '$1 == "LOAD" && length($NF) < length("0x10000")')
  [ -z "$small" ] || fail "segments of $program with less than 64 KiB alignment: $small"
done

# Left out: the emulator runs no program that a program starts (LiveLine on a terminal, Program), and its own memory and threads
# count in the limits of the others. The x86-64 build runs them all.
left_out='LiveLine.*:Program.*:AggregateMemory.*:HostilePack.ChecksSizesBeforeItAllocates'
left_out+=':HostilePack.AFrameThatExpandsToAGigabyteIsRejectedWithinTheBlocksMemory:RunInOrder.ContinuesWith*'
echo "check_aarch64: SKIPPED under emulation: $left_out"
for module in "${modules[@]}"; do
  emulated "$build/bin/${module}_test" --gtest_brief=1 --gtest_filter="-$left_out" --gtest_output="xml:$build/${module}_test.xml" ||
    fail "tests of $module failed"
done

tool=$build/emulated_aggregate_tool
printf '#!/bin/sh\nexec qemu-aarch64-static -L "%s" "%s" "$@"\n' "$root" "$build/tests/aggregate/aggregate_tool" >"$tool"
chmod +x "$tool"
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
