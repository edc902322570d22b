#!/bin/sh
# A trainer for the bench: the fake one, with the moments at which it began and ended beside job.json.
#   timed_trainer.sh PROGRAM --job FILE
program=$1
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0
folder=$(dirname "$3")
date -u +%s.%N >"$folder/began"
"$program" "$2" "$3"
code=$?
date -u +%s.%N >"$folder/ended"
exit $code
