#!/usr/bin/env bash
# What tests do a few times, a hundred times, on real facilities: the coordinator is killed, submissions are interrupted.
#
#   scripts/campaign.sh [N] [PRESET] [BEDS]     default: 100 of each kind, preset coordinator, 4 beds at a time
#
# - SIGKILL at every journal record of a federation of three rounds, and at N random instants: the model of an undisturbed
#   run, every training once;
# - N submissions of whole federations with slurmctld stopped (SIGSTOP) from the record of their intent on, and N
#   with it killed there: each trains exactly once.
# Seven parts, each on a bed of its own for an hour at most; 100 of each take about 30 minutes on two cores. The last line is
# the verdict; logs are in build/PRESET/campaign. Needs what real facilities need (docs/developer/testing.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
number=${1:-100} preset=${2:-coordinator} beds=${3:-4}
scripts/build.sh "$preset" e2e_bed_test
bin=build/$preset/bin logs=build/$preset/campaign
rm -rf "$logs"
mkdir -p "$logs"
names=()
begin() { # begin NAME COUNT SEED PROGRAM TEST: as soon as a bed is free
  while [ "$(jobs -rp | wc -l)" -ge "$beds" ]; do sleep 1; done
  { # its exit code goes to a file: a shell forgets those of jobs that it has listed
    XFFL_CAMPAIGN=$2 XFFL_CAMPAIGN_SEED=$3 timeout --kill-after=60 3600 "$bin/$4" --gtest_filter="$5" >"$logs/$1.log" 2>&1 && code=0 || code=$?
    echo $code >"$logs/$1.code"
  } &
  names+=("$1")
}
trap 'for job in $(jobs -p); do pkill -P "$job" || true; done' INT TERM
begin records 1 1 e2e_bed_test BedFederation.SurvivesKillsAtJournalRecords
for half in 1 2; do
  some=$((half == 1 ? number / 2 : number - number / 2))
  [ $some -gt 0 ] || continue
  begin "random-$half" $some $half e2e_bed_test BedFederation.SurvivesKillsAtRandomInstants
  begin "frozen-$half" $some $half e2e_bed_test BedFrozen.EverySubmissionToAFrozenControllerTrainsOnce
  begin "killed-$half" $some $half e2e_bed_test BedFrozen.EverySubmissionToAControllerThatIsKilledTrainsOnce
done
failed=()
wait
for name in "${names[@]}"; do
  [ "$(cat "$logs/$name.code" 2>/dev/null)" = 0 ] || failed+=("$name")
  grep -qE '^\[  SKIPPED' "$logs/$name.log" && { grep -hE 'dev_cluster: SKIPPED' "$logs/$name.log"; exit 77; }
done
grep -hE 'kills at|submissions:' "$logs"/*.log || true
if [ ${#failed[@]} -gt 0 ]; then
  for name in "${failed[@]}"; do grep -HE 'Failure|FAILED|terminate' "$logs/$name.log" | head -n 5 || true; done
  echo "campaign: FAILED after $SECONDS s: ${failed[*]}"
  exit 1
fi
echo "campaign: passed in $SECONDS s"
