#!/usr/bin/env bash
# Configures and builds a preset quietly; on failure prints errors and the end of the log.
#
#   scripts/build.sh PRESET [target...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Depend mode: ccache does not run the preprocessor, which costs more than it saves with precompiled headers.
export CCACHE_DEPEND=1
preset=$1
shift
mkdir -p "build/$preset"
log=build/$preset/build.log
build() {
  cmake --preset "$preset"
  cmake --build --preset "$preset" ${1:+--target "$@"}
}
if [ -t 1 ]; then
  build "$@"
elif ! build "$@" >"$log" 2>&1; then
  grep -E 'error|Error|FAILED' "$log" | head -n 20 || true
  echo "build: the preset '$preset' failed; the end of $log:" >&2
  tail -n 40 "$log" >&2
  exit 1
fi
