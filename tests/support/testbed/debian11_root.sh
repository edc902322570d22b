#!/usr/bin/env bash
# Makes a root file system for `scripts/dev_cluster.sh up --root FOLDER`: a Debian 11 (glibc 2.31) with sshd and Slurm 20.11, as of an older
# site. Its user's PATH has bash, coreutils, tar, gzip and Slurm's commands, and nothing else: no Python, awk, sed, grep or rsync.
#
#   debian11_root.sh FOLDER     about 160 MB; a folder that is complete is left as it is
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
root=$(realpath -m "$1")
recipe=$(cat "${BASH_SOURCE[0]}" "$project/scripts/debian_root.sh" "$project/scripts/private_apt.sh" | sha256sum | cut -c1-16)
if [ "$(cat "$root/.recipe" 2>/dev/null)" = "$recipe" ]; then exit 0; fi
rm -rf "$root"
"$project/scripts/debian_root.sh" --closure bullseye amd64 "$root" base-files bash coreutils dash debianutils findutils grep gzip hostname \
  iproute2 libc-bin mount munge openssh-server openssh-client procps sed slurm-wlm tar util-linux
. "$project/scripts/private_apt.sh"
links_inside "$root"
# The packages' own scripts, which make these links, did not run.
ln -sf dash "$root/bin/sh"
for program in "$root"/usr/{bin,sbin}/*-wlm; do
  if [ -e "$program" ]; then ln -sf "${program##*/}" "${program%-wlm}"; fi
done
mkdir -p "$root/opt/site/bin"
for package in bash coreutils dash tar gzip slurm-client; do
  grep -E '^(/usr)?/bin/.' "$root/var/lib/dpkg/info/$package.list" | while read -r file; do ln -sf "$file" "$root/opt/site/bin/"; done
done
ln -sf /bin/sh "$root/opt/site/bin/sh"
echo 'export PATH=/opt/site/bin' >"$root/etc/profile"
# For `su - USER`, by which Slurm gets the environment of a job that is submitted with --export=NONE.
for kind in account auth password session session-noninteractive; do
  echo "${kind%-*} sufficient pam_permit.so" >"$root/etc/pam.d/common-$kind"
done
echo "$recipe" >"$root/.recipe"
