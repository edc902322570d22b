#!/bin/sh
# Runs the fake trainer and writes the times at which it started, had its model, and ended to /scratch/times, outside the
# folders that are removed after a round.
#   timed_trainer.sh PROGRAM --job FILE
program=$1
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0
round=$(basename "$(dirname "$(dirname "$3")")")
mkdir -p /scratch/times
began=$(date -u +%s.%N)
export XFFL_FAKE_UNPACKED="$(dirname "$3")/unpacked"
"$program" "$2" "$3"
code=$?
echo "$round $began $(cat "$XFFL_FAKE_UNPACKED") $(date -u +%s.%N)" >"/scratch/times/$round"
exit $code
