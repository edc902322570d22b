#!/usr/bin/env bash
# Runs federations with a hostile facility behind a real SSH server: one case per fault and place of call.
#
#   scripts/hostile.sh [N] [PRESET] [PARALLEL]     default: all cases, preset dev, 6 at a time
#
# N takes N of the cases, always the same. Logs are in build/PRESET/hostile; the last line is the verdict. A case by name:
# build/dev/bin/hostile_test --gtest_filter='*/Poll_IsHeld'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
number=${1:-100000} preset=${2:-dev} parallel=${3:-6}
scripts/build.sh "$preset" hostile_test
logs=build/$preset/hostile
rm -rf "$logs"
mkdir -p "$logs"
begun=()
for ((i = 0; i < parallel; ++i)); do
  XFFL_HOSTILE_CASES=$number GTEST_TOTAL_SHARDS=$parallel GTEST_SHARD_INDEX=$i timeout --kill-after=60 7200 \
    "build/$preset/bin/hostile_test" >"$logs/$i.log" 2>&1 &
  begun+=($!)
done
trap 'kill "${begun[@]}" 2>/dev/null || true' INT TERM
failed=0
for pid in "${begun[@]}"; do wait "$pid" || failed=1; done
if grep -hm1 -A1 -E '^\[  SKIPPED' "$logs"/*.log; then exit 77; fi
cases=$(cat "$logs"/*.log | grep -c '^case ' || true)
if [ "$failed" != 0 ] || [ "$cases" = 0 ]; then
  cat "$logs"/*.log | sed -n 's/^\[  FAILED  \] \([^ ,]*\).* ms)$/\1/p' | sort -u
  echo "hostile: FAILED: $cases cases in $SECONDS s"
  exit 1
fi
echo "hostile: $cases cases passed in $SECONDS s"
