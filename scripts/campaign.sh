#!/usr/bin/env bash
# Repeats fault tests many times: kills of the coordinator, failed system calls, losses of power, interrupted submissions, damaged
# files, slow links, changed policies, long histories, hostile facilities.
#
#   scripts/campaign.sh [N] [PRESET] [TESTBEDS]     default: 100 of each kind, preset coordinator, 4 testbeds at a time
#
# - SIGKILL at every journal record of a federation of three rounds, also with kept allocations and with a facility of Grid Engine
#   beside one of Slurm, and at N random instants (with Grid Engine N / 4): the model equals an undisturbed run's, and each job
#   trains once;
# - N submissions of whole federations with slurmctld stopped (SIGSTOP) after the record of the intent, and N with slurmctld
#   killed there: each job trains exactly once;
# - the coordinator frozen (SIGSTOP) after every journal record, between every check of its epoch and the effect, and at N random
#   instants; another one takes the run over and completes it: the first one then changes nothing;
# - SIGKILL before every system call of the coordinator that changes the disk or starts a process, in all threads (about 2600), and
#   every such call fails once; power is lost at every journal record and before every 16th such call; from every 16th call on the
#   file system stays read-only, or full;
# - one byte of each file of the run folder is damaged, at each of eight moments;
# - a link without an answer, with the default time limits; a model over a link of 64 kB/s, at 80 % of its rate; 100 pushes at once
#   over a link of 50 Mbit/s;
# - each key of the policy changes before every journal record;
# - whole coordinators in simulated time: 100 facilities x 1,000 rounds and 10 x 4,320 rounds: memory, work per round and the time of
#   `xffl status` stay within their limits;
# - all cases of the hostile suite (scripts/hostile.sh).
# Each part has a limit of one hour, or four hours for the system calls, the loss of power, the damage and the hostile suite, and most
# parts have their own testbeds. 100 of each take about 30 minutes on two cores, without the system calls, the damage, the links, the
# simulated time and the hostile suite. The last line is the verdict (scripts/campaign_verdict.sh); logs are in build/PRESET/campaign.
# An interrupted campaign ends its parts and exits with 130; the next one begins anew. Has the requirements of real facilities
# (docs/developer/testing.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
number=${1:-100} preset=${2:-coordinator} testbeds=${3:-4}
scripts/bootstrap.sh test
scripts/build.sh "$preset" e2e_testbed_test e2e_test e2e_damage_test e2e_scale_test hostile_test remote_test run_test
bin=build/$preset/bin logs=build/$preset/campaign
rm -rf "$logs"
mkdir -p "$logs"
names=()
begin() { # begin NAME COUNT SEED PROGRAM TEST: starts a part when a testbed is free
  while [ "$(jobs -rp | wc -l)" -ge "$testbeds" ]; do sleep 1; done
  { # stores the exit code in a file: `jobs` discards the codes of the jobs that it lists
    XFFL_CAMPAIGN=$2 XFFL_CAMPAIGN_SEED=$3 timeout --kill-after=60 "${limit:-3600}" "$bin/$4" --gtest_filter="$5" >"$logs/$1.log" 2>&1 && code=0 || code=$?
    echo $code >"$logs/$1.code"
  } &
  names+=("$1")
}
interrupted() {
  trap '' INT TERM
  for job in $(jobs -p); do pkill -P "$job" || true; done # `timeout` sends the signal to its test
  wait
  echo "campaign: INTERRUPTED after $SECONDS s; repeat it with: scripts/campaign.sh $number $preset $testbeds"
  exit 130
}
trap interrupted INT TERM
begin records 1 1 e2e_testbed_test TestbedFederation.SurvivesKillsAtJournalRecords
begin kept-allocations 1 1 e2e_testbed_test TestbedKeptAllocation.SurvivesKillsAtJournalRecords
begin grid-engine-records 1 1 e2e_testbed_test TestbedGridEngine.GivesTheModelOfLocalFacilitiesAlsoAfterKillsAtJournalRecords
begin grid-engine-random $(((number + 3) / 4)) 1 e2e_testbed_test TestbedGridEngine.SurvivesKillsAtRandomInstants
for part in 1 2 3 4; do
  export XFFL_CAMPAIGN_PART=$part/4
  limit=14400 begin "calls-killed-$part" 1 1 e2e_test SystemCalls.AKillBeforeAnyOfThemChangesNothing
  limit=14400 begin "calls-failed-$part" 1 1 e2e_test SystemCalls.EachSingleFailureLosesNothing
done
unset XFFL_CAMPAIGN_PART
limit=14400 begin calls-without-power 16 1 e2e_test SystemCalls.ALossOfPowerBeforeAnyOfThemLosesNoRound
limit=14400 begin calls-refused 16 1 e2e_test SystemCalls.AFileSystemThatStaysReadOnlyOrFullIsNamed
limit=14400 begin power-loss 1 1 e2e_test PowerLoss.AtJournalRecordsLosesNoRound
XFFL_DAMAGE=all limit=14400 begin damage 1 1 e2e_damage_test Damage.OfAnyFileNeverGivesAWrongModel
begin dead-link 1 1 remote_test SshLink.ADeadLinkIsDetectedInTime
begin slow-link 1 1 e2e_testbed_test TestbedSlowLinks.AModelPassesAt64KilobytesPerSecondAndACutCostsBlocks
begin shared-link 1 1 e2e_testbed_test TestbedSharedLink.AllPushesFinishAndACutCostsEachABlockAndTheBytesOnTheirWay
begin policy-changes 1 1 run_test 'PolicyChange.*'
begin frozen-at-records 1 1 e2e_test FrozenCoordinator.AfterARecordChangesNothing
begin frozen-at-checks 1 1 e2e_test FrozenCoordinator.BetweenCheckAndEffectChangesNothing
begin frozen-at-random $number 1 e2e_test FrozenCoordinator.AtRandomInstantsChangesNothing
for half in 1 2; do
  some=$((half == 1 ? number / 2 : number - number / 2))
  [ $some -gt 0 ] || continue
  begin "random-$half" $some $half e2e_testbed_test TestbedFederation.SurvivesKillsAtRandomInstants
  begin "frozen-$half" $some $half e2e_testbed_test TestbedFrozenController.EverySubmissionToAFrozenControllerTrainsOnce
  begin "killed-$half" $some $half e2e_testbed_test TestbedFrozenController.EverySubmissionToAKilledControllerTrainsOnce
done
begin scale-wide 1 1 e2e_scale_test 'Campaign/Scale.*/100Facilities1000Rounds'
begin scale-long 1 1 e2e_scale_test 'Campaign/Scale.*/10Facilities4320Rounds'
for shard in 0 1 2 3; do
  GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard limit=14400 begin "hostile-$shard" 1 1 hostile_test '*Hostile.*'
done
wait
grep -hE 'kills at|system calls failed|losses of power|submissions:|steps frozen|taken over$|^scale:' "$logs"/*.log || true
scripts/campaign_verdict.sh campaign "$logs" "$SECONDS" "${names[@]}"
