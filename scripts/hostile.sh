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
scripts/bootstrap.sh test
scripts/build.sh "$preset" hostile_test
logs=build/$preset/hostile
rm -rf "$logs"
mkdir -p "$logs"
begun=() shards=()
interrupted() {
  trap '' INT TERM
  kill "${begun[@]}" 2>/dev/null || true # `timeout` sends the signal to its test
  wait
  echo "hostile: INTERRUPTED after $SECONDS s; repeat it with: scripts/hostile.sh $number $preset $parallel"
  exit 130
}
trap interrupted INT TERM
for ((i = 0; i < parallel && i < number; ++i)); do
  XFFL_HOSTILE_CASES=$number GTEST_TOTAL_SHARDS=$((number < parallel ? number : parallel)) GTEST_SHARD_INDEX=$i \
    timeout --kill-after=60 14400 "build/$preset/bin/hostile_test" >"$logs/$i.log" 2>&1 &
  begun+=($!) shards+=("$i")
done
for i in "${shards[@]}"; do
  wait "${begun[$i]}" && code=0 || code=$?
  echo $code >"$logs/$i.code"
done
cat "$logs"/*.log | sed -n 's/^\[  FAILED  \] \([^ ,]*\).* ms)$/\1/p' | sort -u
echo "hostile: $(cat "$logs"/*.log | grep -c '^case ' || true) cases ran"
scripts/campaign_verdict.sh hostile "$logs" "$SECONDS" "${shards[@]}"
