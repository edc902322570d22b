#!/usr/bin/env bash
# Installs missing dependencies, builds everything and runs all tests.
#
#   scripts/test.sh [options of ctest...]
#
# It also compiles the CUDA preset if nvcc is installed, runs the modules that read hostile input under AddressSanitizer and
# UndefinedBehaviorSanitizer, and runs the concurrent modules under ThreadSanitizer. The tests of whole federations and real
# facilities (labels e2e and testbed) mostly sleep, so they run in parallel with all other steps, at a higher priority. The script ends
# with a report: failed tests with the end of their output, skipped tests with reasons, tests that needed a second try, ctest's verdict.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage() { # stage NAME COMMAND...: prints the seconds that it took; its exit code is the command's
  local name=$1 start=$SECONDS code=0
  shift
  "$@" || code=$?
  echo "test: $name: $((SECONDS - start)) s"
  return $code
}
modules_under() { # modules_under PRESET MODULE...: builds and runs these modules' tests
  local preset=$1 pattern
  shift
  pattern="^($(IFS='|'; echo "$*"))\\."
  stage "build of $preset" scripts/build.sh "$preset" "${@/%/_test}" &&
    stage "tests of $preset" ctest --preset "$preset" -R "$pattern" -LE 'python|testbed' -j2 --progress
}
build_for_cuda() {
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "test: SKIPPED the CUDA build: there is no nvcc on this machine"
    return
  fi
  # One architecture is enough to show that the programs compile, link and start, and that their tests are skipped with a reason.
  stage "build for CUDA" env CUDAARCHS=90-real scripts/build.sh trainer-cuda && build/trainer-cuda/bin/xffl-train info &&
    build/trainer-cuda/bin/kernels_gpu_test --gtest_brief=1 && build/trainer-cuda/bin/trainer_gpu_test --gtest_brief=1
}
stage "dependencies" scripts/bootstrap.sh test
stage "build" scripts/build.sh dev

report=$PWD/build/dev/tests.xml testbeds_report=$PWD/build/dev/testbed_tests.xml testbeds_log=$PWD/build/dev/testbed_tests.log
rm -f "$report" "$testbeds_report"
# Tests of real daemons and whole federations race with a crowded machine: a process that gets no CPU time misses its time-outs.
# Only these tests get a second try; the report lists the tests that needed it. All other tests must pass at once.
ctest --preset dev -j3 --repeat until-pass:2 --output-on-failure --output-junit "$testbeds_report" -L 'testbed|e2e' "$@" >"$testbeds_log" 2>&1 &
testbeds=$! testbeds_start=$SECONDS
trap 'kill "$testbeds" 2>/dev/null || true' EXIT
renice -n 5 -p $$ >/dev/null  # also for the later child processes

code=0
build_for_cuda || code=$?
# asan: modules that parse files and answers of other machines. tsan: modules that share state between threads.
modules_under asan base checkpoint job pack tokens transfer || code=$?
modules_under tsan aggregate history || code=$?
stage "tests" ctest --preset dev -j2 --output-on-failure --output-junit "$report" -LE 'testbed|e2e' "$@" || code=$?
wait "$testbeds" || code=$?
trap - EXIT
cat "$testbeds_log"
echo "test: federations and real facilities: at most $((SECONDS - testbeds_start)) s, $SECONDS s in all"
[ ! -f "$report" ] || python3 scripts/test_report.py "$report"
[ ! -f "$testbeds_report" ] || python3 scripts/test_report.py "$testbeds_report" "$testbeds_log"
[ $code = 0 ] || echo "test: FAILED: the exit code of a part is $code" >&2
exit $code
