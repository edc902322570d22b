#!/usr/bin/env bash
# From a clean clone to a federation: installs missing dependencies, builds, and runs `xffl demo`.
#
#   scripts/quickstart.sh [options of xffl demo...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
start=$SECONDS
scripts/bootstrap.sh build
echo "quickstart: dependencies: $((SECONDS - start)) s"
start=$SECONDS
scripts/build.sh release
echo "quickstart: build: $((SECONDS - start)) s"
start=$SECONDS
build/release/bin/xffl demo "$@"
echo "quickstart: demo: $((SECONDS - start)) s"
