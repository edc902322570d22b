#!/usr/bin/env bash
# scripts/check_format.sh [--fix]: checks (or fixes) the format of the C++ and CUDA sources with .clang-format.
# Exits with 77 unless clang-format has the release below, because the output of releases differs.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly release=14

version=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true)
if [ "$version" != $release ]; then
  echo "SKIPPED: expected clang-format $release, found ${version:-none}"
  exit 77
fi
mapfile -t sources < <(find apps include src tests -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | sort)
if [ "${1-}" = --fix ]; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run -Werror --ferror-limit=1 "${sources[@]}" ||
    { echo "check_format: run scripts/check_format.sh --fix" >&2; exit 1; }
fi
