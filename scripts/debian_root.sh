#!/usr/bin/env bash
# Unpacks packages of a Debian release into a folder, which becomes a root file system, without root and without the packages' own
# scripts.
#
#   scripts/debian_root.sh [--closure] SUITE ARCH FOLDER PACKAGE...
#     ARCH: Debian's word, such as amd64; --closure: also the packages that these depend on
#
# apt checks the signatures of the packages; nothing is installed on this machine. The folder keeps the licences and the record of the
# packages (var/lib/dpkg: their status, for scanners, and their files), and no manuals or translations.
set -euo pipefail
fetcher=fetch
[ "${1:-}" != --closure ] || { fetcher=fetch_closure; shift; }
[ $# -ge 4 ] || { echo "usage: scripts/debian_root.sh [--closure] SUITE ARCH FOLDER PACKAGE..." >&2; exit 2; }
suite=$1 arch=$2 root=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
mkdir -p "$root"
. "$(dirname "${BASH_SOURCE[0]}")/private_apt.sh"
private_apt "$work" "$suite" "$arch"
$fetcher debs "$@"
# base-files first: it has the links /bin -> usr/bin.
for deb in "$work"/debs/base-files_* "$work"/debs/*.deb; do
  if [ -e "$deb" ]; then dpkg-deb -x "$deb" "$root"; fi
done
rm -rf "$root"/usr/share/{man,info,locale,lintian,bug}
find "$root/usr/share/doc" ! -type d ! -name copyright -delete
find "$root/usr/share/doc" -xtype l -delete
find "$root/usr/share/doc" -type d -empty -delete
mkdir -p "$root/var/lib/dpkg/info"
for deb in "$work"/debs/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's,^\.,,' >"$root/var/lib/dpkg/info/$(dpkg-deb --field "$deb" Package).list"
  dpkg-deb --field "$deb" Package | sed 's/^/Package: /'
  echo "Status: install ok installed"
  dpkg-deb --field "$deb" | sed '/^Package:/d'
  echo
done >"$root/var/lib/dpkg/status"
