#!/usr/bin/env bash
# Makes images of a facility's programs: a bundle of `scripts/package.sh trainer` in a small Debian 13, as a root file system.
# docs/user/trainer_at_a_facility.md has their use.
#
#   scripts/package.sh image BUNDLE.tar.gz [--output FOLDER]     default: dist/
#
# Writes xffl-image-VERSION-ARCH-FLAVOUR-HASH with four endings, of the same tree: .tar.gz, .sqsh (squashfs; Apptainer, Enroot and Pyxis
# start it), .oci.tar (OCI archive; podman, Apptainer and Enroot import it), and .def (Apptainer builds a .sif from the OCI archive).
# Needs no root, no mount and no network but Debian's mirror. Checks and starts the result (scripts/check_image.sh). The same bundle and
# the same packages of the mirror give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "package: $*" >&2; exit 2; }
bundle= output=dist
while [ $# -gt 0 ]; do
  case "$1" in
    --output) [ $# -ge 2 ] || fail "$1 needs a value"; output=$2; shift 2 ;;
    -*) fail "unknown option $1: expected --output" ;;
    *) [ -z "$bundle" ] || fail "two bundles: $bundle and $1"; bundle=$1; shift ;;
  esac
done
[ -n "$bundle" ] || fail "usage: scripts/package.sh image BUNDLE.tar.gz [--output FOLDER]; scripts/package.sh trainer makes a bundle"
[ -f "$bundle" ] || fail "there is no file $bundle"
[[ $(basename "$bundle") =~ ^xffl-trainer-([0-9][0-9A-Za-z.]*)-([a-z0-9_]+)-([a-z0-9]+)-[0-9a-f]{8}\.tar\.gz$ ]] ||
  fail "'$(basename "$bundle")' is no bundle: expected xffl-trainer-VERSION-ARCH-FLAVOUR-HASH.tar.gz"
version=${BASH_REMATCH[1]} machine=${BASH_REMATCH[2]} flavour=${BASH_REMATCH[3]}
case "$machine" in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) fail "no Debian for the architecture '$machine': expected x86_64 or aarch64" ;; esac

scripts/bootstrap.sh package
mkdir -p "$output"
work=$(mktemp -d -p "$output")
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/root
# Debian 13's glibc, 2.41: the libraries that a site binds into an image (drivers, libfabric of Cray EX) may need glibc 2.38 already.
# The packages are the dependencies of coreutils, tar, gzip, grep and sed, without perl and debconf.
scripts/debian_root.sh trixie "$arch" "$root" base-files libc6 libc-bin dash coreutils tar gzip grep sed libselinux1 libpcre2-8-0 libacl1 \
  libattr1 libgmp10 zlib1g libssl3t64 libzstd1 libsystemd0 libcap2 libgcc-s1 gcc-14-base
mkdir -p "$root/opt" "$root"/usr/local/bin
tar -xzf "$bundle" -C "$root/opt"
mv "$root/opt/$(basename "$bundle" .tar.gz)" "$root/opt/xffl"
for program in "$root"/opt/xffl/bin/*; do
  ln -s "../../../opt/xffl/bin/$(basename "$program")" "$root/usr/local/bin/"
done
# Apptainer and Enroot put the user's name and the host's addresses into these files.
echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"
echo "root:x:0:" >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
touch "$root"/etc/{hosts,resolv.conf,hostname,localtime}
find "$root" -type d ! -path '*/tmp' -exec chmod 755 {} +
find "$root" -type f -exec chmod u+rw,go+r,go-w {} +
find "$root" -exec touch --no-dereference --date=@0 {} +

tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=gnu -C "$root" -cf - . | gzip -n -6 >"$work/image.tar.gz"
name=xffl-image-$version-$machine-$flavour-$(sha256sum "$work/image.tar.gz" | cut -c1-8)
mv "$work/image.tar.gz" "$output/$name.tar.gz"
# A SOURCE_DATE_EPOCH would contradict the options. gzip: each squashfs reader has it.
env -u SOURCE_DATE_EPOCH mksquashfs "$root" "$work/image.sqsh" -noappend -comp gzip -all-root -all-time 0 -mkfs-time 0 -no-xattrs -quiet -no-progress
mv "$work/image.sqsh" "$output/$name.sqsh"
python3 scripts/oci_archive.py "$output/$name.tar.gz" "$output/$name.oci.tar" --tag "$version" --arch "$arch" --command xffl-train info \
  --label "org.opencontainers.image.title=xffl-train and xffl-tokenize ($flavour)" --label "org.opencontainers.image.version=$version" \
  --label org.opencontainers.image.licenses=Apache-2.0
cat >"$output/$name.def" <<D
# apptainer build xffl.sif $name.def      in the folder of $name.oci.tar; needs no network
Bootstrap: oci-archive
From: $name.oci.tar

%labels
    org.opencontainers.image.version $version

%help
    xffl-train and xffl-tokenize of xffl $version ($flavour, $machine) in Debian 13; /opt/xffl/NOTICE names the licences.

%test
    xffl-train --version
    xffl-tokenize --version
D
scripts/check_image.sh "$output/$name" || [ $? = 77 ] # 77: no namespaces here, as it has said
echo "$(find "$root" -type f | wc -l) files"
ls -l "$output/$name".* | awk '{printf "%s: %.1f MB\n", $9, $5 / 1e6}'
