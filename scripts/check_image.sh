#!/usr/bin/env bash
# Unpacks the images of scripts/package.sh image with public tools, compares the trees, and starts the programs of the tree by a user
# namespace and chroot (scripts/check_package.sh).
#
#   scripts/check_image.sh PREFIX      the files' path without their endings: dist/xffl-image-VERSION-ARCH-FLAVOUR-HASH
#
# An image of another architecture is unpacked and compared, and not started. Apptainer is not among the packages of Debian 12: its use
# of the files was not tested.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
prefix=$(realpath "$(dirname "$1")")/$(basename "$1")
fail() { echo "check_image: $*" >&2; exit 1; }
for ending in tar.gz sqsh oci.tar def; do [ -s "$prefix.$ending" ] || fail "there is no $prefix.$ending"; done
work=$(mktemp -d -p "$(dirname "$prefix")")
trap 'chmod -R u+rwX "$work"; rm -rf "$work"' EXIT
mkdir "$work"/{tar,layout}
tar -xzpf "$prefix.tar.gz" -C "$work/tar" --no-same-owner
unsquashfs -quiet -no-progress -dest "$work/squashfs" "$prefix.sqsh" >/dev/null
tar -xf "$prefix.oci.tar" -C "$work/layout"
skopeo inspect --override-arch "$(sed -n 's/.*"architecture":"\([a-z0-9]*\)".*/\1/p' "$work/layout/index.json")" "oci-archive:$prefix.oci.tar" >"$work/skopeo.json" ||
  fail "skopeo does not read $prefix.oci.tar"
tag=$(sed -n 's/.*"org.opencontainers.image.ref.name":"\([^"]*\)".*/\1/p' "$work/layout/index.json")
umoci unpack --rootless --image "$work/layout:$tag" "$work/bundle" >"$work/log" 2>&1 || { cat "$work/log"; fail "umoci does not unpack $prefix.oci.tar"; }
state() { # paths, kinds, modes, times, links, hashes
  (cd "$1" && find . ! -path . -printf '%p %y %m %T@ %l\n' | LC_ALL=C sort && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2)
}
state "$work/tar" >"$work/tar.state"
for other in squashfs bundle/rootfs; do
  state "$work/$other" | diff "$work/tar.state" - >"$work/difference" || { head -n 20 "$work/difference"; fail "the tree of $other is not the tar's"; }
done
[ -z "$(find "$work/tar" -perm /6000)" ] || fail "a file of the image is setuid: $(find "$work/tar" -perm /6000 | head -n 1)"
(cd "$work/tar/opt/xffl" && sha256sum -c --quiet MANIFEST) || fail "the bundle of the image is damaged"
echo "check_image: tar, squashfs and OCI archive have the same $(wc -l <"$work/tar.state") entries; skopeo and umoci read the OCI archive"
case "$prefix" in *-"$(uname -m)"-*) ;; *) echo "check_image: this machine is $(uname -m): the image was not started"; exit 0 ;; esac
scripts/check_package.sh "$work/squashfs/opt/xffl" "$work/squashfs"
