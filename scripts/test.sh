#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests.
#
#   scripts/test.sh [options of ctest...]
#
# It also compiles the CUDA preset where nvcc is, and runs the modules that read hostile input under AddressSanitizer and
# UndefinedBehaviorSanitizer, and the concurrent ones under ThreadSanitizer. ctest's summary of the main preset comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage() { # stage NAME COMMAND...: prints the seconds that it took
  local name=$1 start=$SECONDS
  shift
  "$@"
  echo "test: $name: $((SECONDS - start)) s"
}
stage "dependencies" scripts/bootstrap.sh test
stage "build" scripts/build.sh dev
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  stage "build for CUDA" scripts/build.sh trainer-cuda
  build/trainer-cuda/bin/xffl-train info
else
  echo "test: SKIPPED the CUDA build: there is no nvcc on this machine"
fi
# What reads files and answers from elsewhere, under AddressSanitizer and UndefinedBehaviorSanitizer.
hostile=(base checkpoint job tokens transfer)
stage "build with sanitizers" scripts/build.sh asan "${hostile[@]/%/_test}"
stage "tests with sanitizers" ctest --preset asan -R "^($(IFS='|'; echo "${hostile[*]}"))\\." -LE python -j2
# What shares state between threads, under ThreadSanitizer.
threaded=(aggregate journal)
stage "build with the thread sanitizer" scripts/build.sh tsan "${threaded[@]/%/_test}"
stage "tests with the thread sanitizer" ctest --preset tsan -R "^($(IFS='|'; echo "${threaded[*]}"))\\." -LE python -j2
start=$SECONDS
code=0
ctest --preset dev -j2 --output-on-failure "$@" || code=$?
echo "test: tests: $((SECONDS - start)) s, $SECONDS s in all"
exit $code
