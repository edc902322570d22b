#!/usr/bin/env bash
# The way of a new user at facilities of Debian 11 (glibc 2.31, Slurm 20.11; in the users' PATH bash, coreutils, tar, gzip and Slurm only),
# with a real bundle: all commands of docs/user/first_federation.md, `xffl deploy` killed at 20 moments, and `xffl doctor --job` at a
# facility whose second node lacks a library, whose driver is old and whose data has another vocabulary.
#
#   scripts/check_older_site.sh [BUNDLE.tar.gz [MOMENTS [IMAGE.sqsh]]]
#     default: the bundle that scripts/package.sh trainer makes; 20 moments; an image (scripts/package.sh image) only if it is named.
#     Apptainer is not among the packages of Debian 12: a user namespace and chroot stand in for it.
#
# About five minutes with a bundle. Has the requirements of real facilities (docs/developer/testing.md); without them it says so and exits
# with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bundle=${1:-} moments=${2:-20} image=${3:-}
scripts/bootstrap.sh test
scripts/build.sh dev xffl xffl-train xffl-tokenize
if [ -z "$bundle" ]; then
  scripts/package.sh trainer
  bundle=$(ls -t dist/xffl-trainer-*-x86_64-cpu-*.tar.gz | head -n 1)
fi
deps=$(realpath "${XFFL_DEPS_DIR:-.deps}")
start=$SECONDS
tests/support/testbed/debian11_root.sh "$deps/debian11"
echo "check_older_site: a root file system of Debian 11: $((SECONDS - start)) s"
python=$deps/venv/bin/python
start=$SECONDS
"$python" tests/docs/tutorial_test.py build/dev/bin --bundle "$bundle" --root "$deps/debian11"
echo "check_older_site: the first federation: $((SECONDS - start)) s"
start=$SECONDS
"$python" tests/e2e/older_site.py build/dev/bin . "$bundle" "$deps/debian11" "$moments" ${image:+"$image"}
echo "check_older_site: kills and faults: $((SECONDS - start)) s"
