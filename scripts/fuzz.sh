#!/usr/bin/env bash
# Runs the fuzz targets (tests/fuzz/) for longer than scripts/test.sh, which gives each one 5 seconds.
#
#   scripts/fuzz.sh HOURS [TARGET...]          HOURS: elapsed time, such as 0.5, shared among the targets (default: all)
#   scripts/fuzz.sh --inputs N [TARGET...]     N inputs for each target, in whatever time that takes
#
# Builds the preset fuzz (clang: scripts/bootstrap.sh fuzz). All cores work, each on one target at a time; XFFL_FUZZ_JOBS limits
# their number. A target that finds an input continues until its time is over, up to 20 findings.
#
# build/fuzz/fuzz/corpus/TARGET/ keeps new inputs, from which the next run continues; build/fuzz/fuzz/crashes/TARGET/ the findings;
# build/fuzz/fuzz/TARGET.log the output. To replay a finding: build/fuzz/bin/fuzz_TARGET FILE
#
# The last line is the verdict. Exit code 0: every target ran and found nothing; 1: findings, or a target did not run; 2: usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly max_findings=20

usage() { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
hours='' wanted=''
if [ "${1:-}" = --inputs ]; then
  [[ ${2:-} =~ ^[1-9][0-9]{0,17}$ ]] || usage
  wanted=$2
  shift 2
else
  [[ ${1:-} =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage
  hours=$1
  shift
fi
jobs=${XFFL_FUZZ_JOBS:-$(nproc)}
verdict() { # verdict CODE TEXT: the last line
  echo "fuzz: $2"
  exit "$1"
}
command -v clang++-19 >/dev/null || verdict 1 "FAILED: there is no clang++-19; run scripts/bootstrap.sh fuzz"
scripts/build.sh fuzz || verdict 1 "FAILED: the preset fuzz does not build"
work=build/fuzz/fuzz
known=()
for options in "$work"/*.options; do known+=("$(basename "$options" .options)"); done
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [ -e "$work/$target.options" ] || verdict 2 "FAILED: there is no target '$target'; there are: ${known[*]}"
done
[ "$jobs" -le ${#targets[@]} ] || jobs=${#targets[@]}
seconds=
[ -n "$wanted" ] ||
  seconds=$(awk -v h="$hours" -v j="$jobs" -v n=${#targets[@]} 'BEGIN { s = int(h * 3600 * j / n); print s < 1 ? 1 : s }')

run_target() { # run_target TARGET: writes "<inputs> <findings> <elapsed seconds>" to TARGET.result
  local target=$1 start=$SECONDS inputs=0 findings=0 left limit options=()
  local corpus=$work/corpus/$target crashes=$work/crashes/$target log=$work/$target.log
  mkdir -p "$corpus" "$crashes"
  rm -f "$work/$target.result"
  mapfile -t options <"$work/$target.options"
  : >"$log"
  while [ "$findings" -lt "$max_findings" ]; do
    local code=0 size
    if [ -n "$wanted" ]; then
      left=$((wanted - inputs)) limit=-runs=$left
    else
      left=$((seconds - (SECONDS - start))) limit=-max_total_time=$left
    fi
    [ "$left" -gt 0 ] || break
    size=$(stat -c %s "$log")
    TMPDIR=$scratch build/fuzz/bin/fuzz_"$target" "${options[@]}" "$limit" -print_final_stats=1 \
      -artifact_prefix="$crashes/" "$corpus" tests/fuzz/corpus/"$target" >>"$log" 2>&1 || code=$?
    inputs=$((inputs + $(tail -c +$((size + 1)) "$log" | sed -n 's/^stat::number_of_executed_units: *//p' | tail -n 1 | grep . || echo 0)))
    [ "$code" = 0 ] || findings=$((findings + 1))
  done
  echo "$inputs $findings $((SECONDS - start))" >"$work/$target.result"
}

scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/xffl-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; verdict 1 "FAILED: interrupted"' INT TERM
export scratch work max_findings
echo "fuzz: ${#targets[@]} targets, ${wanted:+$wanted inputs}${seconds:+$seconds s} each, $jobs at a time"
start=$SECONDS
for target in "${targets[@]}"; do
  while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  run_target "$target" &
done
wait

inputs=0 findings=0 missing=()
for target in "${targets[@]}"; do
  if ! read -r count found elapsed <"$work/$target.result" || [ "$count" = 0 ]; then
    missing+=("$target")
    continue
  fi
  inputs=$((inputs + count))
  findings=$((findings + found))
  printf 'fuzz: %-18s %12d inputs in %5d s%s\n' "$target" "$count" "$elapsed" \
    "$([ "$found" = 0 ] || echo "  $found findings: $work/crashes/$target/, $work/$target.log")"
done
[ ${#missing[@]} = 0 ] || verdict 1 "FAILED: these targets executed no input: ${missing[*]} (see $work/*.log); $findings findings of the others"
[ "$findings" = 0 ] || verdict 1 "FAILED: $findings findings in $inputs inputs; the files are below $work/crashes/"
verdict 0 "no finding in $inputs inputs of ${#targets[@]} targets, $((SECONDS - start)) s"
