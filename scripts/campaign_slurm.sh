#!/usr/bin/env bash
# Many submissions to a real Slurm whose controller stops, or dies, in the middle: each must train exactly once.
#
#   scripts/campaign_slurm.sh [SUBMISSIONS] [PRESET]     default: 100 of each kind, preset coordinator
#
# Spread over four beds; prints the figures of each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
submissions=${1:-100} preset=${2:-coordinator}
scripts/build.sh "$preset" slurm_test
test=build/$preset/bin/slurm_test logs=build/$preset/campaign
mkdir -p "$logs"
jobs=()
for kind in Stopped Killed; do
  for half in 1 2; do
    XFFL_CAMPAIGN=$((half == 1 ? submissions / 2 : submissions - submissions / 2)) XFFL_CAMPAIGN_SEED=$half \
      "$test" --gtest_filter="SlurmFaults.SubmissionsWithTheController$kind" >"$logs/$kind-$half.log" 2>&1 &
    jobs+=($!)
  done
done
code=0
for job in "${jobs[@]}"; do wait "$job" || code=1; done
grep -HE 'submissions:|Failure|SKIPPED' "$logs"/*.log
exit $code
