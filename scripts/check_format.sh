#!/usr/bin/env bash
# scripts/check_format.sh [--fix]: whether the C++ and CUDA sources are as .clang-format says.
# Exits with 77 where there is no clang-format of the release that the sources were formatted with:
# releases differ in details.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly release=14

version=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true)
if [ "$version" != $release ]; then
  echo "SKIPPED: clang-format $release is needed, here is ${version:-none}"
  exit 77
fi
mapfile -t sources < <(find apps include src tests -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | sort)
if [ "${1-}" = --fix ]; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run -Werror --ferror-limit=1 "${sources[@]}" ||
    { echo "check_format: run scripts/check_format.sh --fix" >&2; exit 1; }
fi
