#!/usr/bin/env bash
# Makes the Debian package of the coordinator: xffl and xffl-tokenize with manual pages, completion and pages, for the Debian release and
# the architecture of this machine. docs/operator/operating.md has its use.
#
#   scripts/package.sh coordinator [--output FOLDER]     default: dist/
#
# Checks the package (scripts/check_deb.sh). Two builds of the same commit give the same bytes: all times are the commit's, or
# SOURCE_DATE_EPOCH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "package: $*" >&2; exit 2; }
output=dist
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case "$1" in
    --output) output=$2 ;;
    *) fail "unknown option $1: expected --output" ;;
  esac
  shift 2
done
command -v dpkg-shlibdeps >/dev/null || fail "no dpkg-shlibdeps here: a Debian package is built on Debian, with the package dpkg-dev"
export CCACHE_NAMESPACE=xffl-deb # ccache leaves -ffile-prefix-map out of its hash
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

scripts/bootstrap.sh package
scripts/build.sh deb
mkdir -p "$output"
output=$(realpath "$output")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
(cd build/deb && cpack -B "$work" >"$work/log" 2>&1) || { cat "$work/log"; exit 1; }
package=$(basename "$work"/*.deb)
mv "$work/$package" "$output/"
scripts/check_deb.sh "$output/$package" || [ $? = 77 ] # 77: no namespaces here, as it has said
dpkg-deb --field "$output/$package" Package Version Architecture Depends Installed-Size
ls -l "$output/$package" | awk '{printf "%s: %.1f MB\n", $9, $5 / 1e6}'
