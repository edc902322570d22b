#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests.
#
#   scripts/test.sh [options of ctest...]
#
# It also compiles the CUDA preset where nvcc is, and runs the modules that read hostile input under AddressSanitizer and
# UndefinedBehaviorSanitizer, and the concurrent ones under ThreadSanitizer. The main preset comes last; at the very end
# stand the tests that failed, with the end of what they printed, those skipped, with their reasons, and ctest's verdict.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage() { # stage NAME COMMAND...: prints the seconds that it took
  local name=$1 start=$SECONDS
  shift
  "$@"
  echo "test: $name: $((SECONDS - start)) s"
}
modules_under() { # modules_under PRESET MODULE...: builds and runs these modules' tests
  local preset=$1 pattern
  shift
  pattern="^($(IFS='|'; echo "$*"))\\."
  stage "build of $preset" scripts/build.sh "$preset" "${@/%/_test}"
  stage "tests of $preset" ctest --preset "$preset" -R "$pattern" -LE 'python|bed' -j2 --progress
}
stage "dependencies" scripts/bootstrap.sh test
stage "build" scripts/build.sh dev
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  # One architecture: this only shows that everything compiles, links, starts, and skips its tests with a reason.
  stage "build for CUDA" env CUDAARCHS=90-real scripts/build.sh trainer-cuda
  build/trainer-cuda/bin/xffl-train info
  for tests in kernels_gpu trainer_gpu; do "build/trainer-cuda/bin/${tests}_test" --gtest_brief=1; done
else
  echo "test: SKIPPED the CUDA build: there is no nvcc on this machine"
fi
# What reads files and answers from elsewhere; what shares state between threads.
modules_under asan base checkpoint job tokens transfer
modules_under tsan aggregate journal
report=$PWD/build/dev/tests.xml beds_report=$PWD/build/dev/bed_tests.xml
rm -f "$report" "$beds_report"
start=$SECONDS
code=0
# Whole federations, on real facilities too (docs/testing.md), mostly wait: several at a time. A crowded machine can starve a
# process past its time-outs: a test is tried once more, and ctest says so.
ctest --preset dev -j3 --repeat until-pass:2 --output-on-failure --output-junit "$beds_report" -L 'bed|e2e' "$@" || code=$?
ctest --preset dev -j2 --output-on-failure --output-junit "$report" -LE 'bed|e2e' "$@" || code=$?
echo "test: tests: $((SECONDS - start)) s, $SECONDS s in all"
for each in "$report" "$beds_report"; do
  [ ! -f "$each" ] || python3 scripts/test_report.py "$each"
done
[ $code = 0 ] || echo "test: FAILED: ctest's exit code is $code" >&2
exit $code
