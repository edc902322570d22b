#!/usr/bin/env bash
# Builds the averaging of models for aarch64 with a cross compiler, runs it under QEMU's user emulation, and compares the averages byte
# for byte with numpy's on this machine: a coordinator on either architecture publishes the same model.
#
#   scripts/check_aarch64.sh
#
# Installs the cross compiler and QEMU as root or with sudo; without either, or on another machine than x86-64, it says so and exits
# with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(uname -m)" = x86_64 ] || { echo "check_aarch64: SKIPPED: this machine is $(uname -m), and the check is for x86-64"; exit 77; }
scripts/bootstrap.sh aarch64 || { echo "check_aarch64: SKIPPED: no cross compiler or no QEMU here (scripts/bootstrap.sh aarch64)"; exit 77; }
scripts/build.sh aarch64 aggregate_tool
program=$PWD/build/aarch64/tests/aggregate/aggregate_tool
# A kernel with pages of 64 KiB, such as Grace's, loads no segment of a smaller alignment.
small=$(readelf --wide --segments "$program" | awk '$1 == "LOAD" && length($NF) < length("0x10000")')
[ -z "$small" ] || { echo "check_aarch64: segments with less than 64 KiB alignment: $small"; exit 1; }
tool=$PWD/build/aarch64/emulated_aggregate_tool
printf '#!/bin/sh\nexec qemu-aarch64-static -L "%s" "%s" "$@"\n' "$(realpath "${XFFL_DEPS_DIR:-.deps}")/aarch64" "$program" >"$tool"
chmod +x "$tool"
tests/aggregate/numpy.sh "$PWD/.deps" compare_with_numpy.py "$tool"
