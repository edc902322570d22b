#!/usr/bin/env bash
# Installs missing dependencies, builds everything and runs all tests.
#
#   scripts/test.sh [options of ctest...]
#
# Parts: the preset dev with all tests; the CUDA preset if nvcc is installed (compile, link, start); the modules that read hostile
# input under AddressSanitizer and UndefinedBehaviorSanitizer; the concurrent modules under ThreadSanitizer; the fuzz targets, 5
# seconds each, if clang is installed or can be installed; the coordinator of the preset release; averages by an emulated aarch64
# program; the bundle of the trainer for CPUs, built and started in a small Debian 11 (4 minutes of CPU time without ccache). The
# tests of whole federations and real facilities (labels e2e and testbed) mostly sleep, so they run in parallel with all parts after
# the first build, at a higher priority. Each part prints its seconds. The script ends with a report: failed tests with the end of
# their output, and skipped tests with reasons.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
failed=()
stage() { # stage NAME COMMAND...: prints the command's seconds and failure, and returns its exit code
  local name=$1 start=$SECONDS code=0
  shift
  "$@" || code=$?
  echo "test: $name: $((SECONDS - start)) s$([ $code = 0 ] || echo ", FAILED with exit code $code")"
  [ $code = 0 ] || failed+=("$name (exit code $code)")
  return $code
}
modules_under() { # modules_under PRESET MODULE...: builds and runs these modules' tests
  local preset=$1 pattern
  shift
  pattern="^($(IFS='|'; echo "$*"))\\."
  stage "build of $preset" scripts/build.sh "$preset" "${@/%/_test}" &&
    stage "tests of $preset" ctest --preset "$preset" -R "$pattern" -LE 'python|testbed' -j"$jobs" --progress \
      --output-junit "$PWD/build/$preset/tests.xml"
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
fuzz() {
  if ! command -v clang++-19 >/dev/null && ! stage "clang for the fuzz targets" scripts/bootstrap.sh fuzz; then
    echo "test: SKIPPED the fuzz targets: there is no clang++-19 on this machine, and installing it failed (scripts/bootstrap.sh fuzz);" \
      "the preset dev runs their corpora"
    return
  fi
  stage "build of fuzz" scripts/build.sh fuzz &&
    stage "fuzz targets" ctest --preset fuzz -L fuzz -j"$jobs" --progress --output-junit "$PWD/build/fuzz/tests.xml"
}
# The preset release compiles a module's files together: names that clash there do not clash in dev.
release() { stage "build of release" scripts/build.sh release xffl; }
aarch64() {
  local code=0 start=$SECONDS
  scripts/check_aarch64.sh || code=$?
  echo "test: aarch64: $((SECONDS - start)) s"
  [ $code = 0 ] || [ $code = 77 ] || { # 77: skipped, as it has said
    failed+=("aarch64 (exit code $code)")
    return $code
  }
}
bundle() {
  if ! scripts/bootstrap.sh package; then
    echo "test: SKIPPED the bundle: installing the packages for it failed (scripts/bootstrap.sh package)"
    return
  fi
  stage "bundle for CPUs" scripts/package.sh trainer --output build/bundle-cpu/dist
}
stage "dependencies" scripts/bootstrap.sh test
stage "build" scripts/build.sh dev

report=$PWD/build/dev/tests.xml federations_report=$PWD/build/dev/federation_tests.xml federations_log=$PWD/build/dev/federation_tests.log
rm -f build/*/tests.xml "$federations_report"
# No test gets a second try. Real daemons need CPU time within their own time limits, hence the priority over all other parts.
ctest --preset dev -j$((jobs + 1)) --output-on-failure --output-junit "$federations_report" -L 'testbed|e2e' "$@" >"$federations_log" 2>&1 &
federations=$!
trap 'kill "$federations" 2>/dev/null || true' EXIT
renice -n 5 -p $$ >/dev/null  # also for the later child processes

code=0
build_for_cuda || {
  code=$?
  [ ${#failed[@]} != 0 ] || failed+=("programs for CUDA (exit code $code)")
}
# asan: modules that parse files and answers of other machines. tsan: modules that share state between threads.
modules_under asan base checkpoint job pack tokens transfer || code=$?
modules_under tsan aggregate history observe || code=$?
fuzz || code=$?
release || code=$?
aarch64 || code=$?
bundle || code=$?
stage "tests" ctest --preset dev -j"$jobs" --output-on-failure --output-junit "$report" -LE 'testbed|e2e' "$@" || code=$?
wait "$federations" || {
  code=$?
  failed+=("federations (exit code $code)")
}
trap - EXIT
cat "$federations_log"
echo "test: $SECONDS s in all"
reports=()
for file in build/*/tests.xml "$federations_report"; do [ ! -f "$file" ] || reports+=("$file"); done
[ ${#reports[@]} = 0 ] || python3 scripts/test_report.py "${reports[@]}"
if [ $code != 0 ]; then
  for log in build/*/build.log; do
    grep -qE 'FAILED: |CMake Error' "$log" || continue
    echo "test: the errors of $log:"
    grep -E 'error|Error|FAILED: ' "$log" | cut -c -300 | head -n 20
  done
  printf 'test: FAILED: %s\n' "${failed[@]}"
fi
exit $code
