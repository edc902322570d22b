#!/usr/bin/env bash
# Prints the result of each part of a campaign that did not pass, and as the last line the verdict.
#
#   scripts/campaign_verdict.sh CAMPAIGN LOGS SECONDS PART...
#
# LOGS/PART.log is the output of a GoogleTest program, LOGS/PART.code its exit code. A part passes if the exit code is 0, at least one
# test ran and passed, and none was skipped. Exit code: 1 if a part failed, did not run or ran no test; else 77 if a part was
# skipped; else 0.
set -euo pipefail
campaign=$1 logs=$2 seconds=$3
shift 3
failed=() skipped=() passed=0
failure() { # failure PART REASON
  failed+=("$1 ($2)")
  grep -HE 'Failure|FAILED|terminate|ERROR: ' "$log" | head -n 5 || true
}
for part; do
  code=$(cat "$logs/$part.code" 2>/dev/null || true)
  log=$logs/$part.log
  [ -e "$log" ] || log=/dev/null
  case $code in
    0)
      if grep -qE '^\[  FAILED' "$log"; then
        failure "$part" 'a test failed'
      elif grep -qE '^\[  SKIPPED' "$log"; then
        skipped+=("$part")
        grep -hm 1 -E 'dev_cluster: SKIPPED' "$log" || grep -hm 1 -A 1 -E ': Skipped$' "$log" || true
      elif grep -qE '^\[  PASSED  \] [1-9]' "$log"; then
        passed=$((passed + 1))
      else
        failure "$part" 'no test ran'
      fi
      ;;
    '') failure "$part" 'it did not run, or did not end' ;;
    124) failure "$part" 'time limit' ;;
    137) failure "$part" 'time limit, or killed' ;;
    *) failure "$part" "exit code $code" ;;
  esac
done
list() { local all; printf -v all "%s, " "$@"; echo "${all%, }"; }
if [ $# = 0 ]; then
  echo "$campaign: FAILED: there is no part"
  exit 1
elif [ ${#failed[@]} -gt 0 ]; then
  [ ${#skipped[@]} = 0 ] || echo "$campaign: skipped: $(list "${skipped[@]}")"
  echo "$campaign: FAILED after $seconds s: ${#failed[@]} of $# parts: $(list "${failed[@]}")"
  exit 1
elif [ ${#skipped[@]} -gt 0 ]; then
  echo "$campaign: SKIPPED after $seconds s: ${#skipped[@]} of $# parts: $(list "${skipped[@]}"); the other $passed passed"
  exit 77
fi
echo "$campaign: all $passed parts passed in $seconds s"
