#!/usr/bin/env bash
# Checks a Debian package of scripts/package.sh coordinator: lintian finds no error and no warning; a small Debian of this machine's
# release installs the package with its dependencies, runs it with an empty environment, and keeps nothing after its removal.
#
#   scripts/check_deb.sh PACKAGE.deb
#
# Needs root or user namespaces, and a Debian mirror; without namespaces it says so and exits with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
package=$(realpath "$1")
fail() { echo "check_deb: $*" >&2; exit 1; }
lintian --fail-on error,warning --allow-root "$package" || fail "lintian has found faults of $package"
version=$(dpkg-deb --field "$package" Version)
arch=$(dpkg-deb --field "$package" Architecture)
[ "$(basename "$package")" = "xffl_${version}_$arch.deb" ] || fail "the file's name is not xffl_${version}_$arch.deb"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cat >"$work/inside" <<'S2' # in the small Debian; $1: the package
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
# The files of the system, with the content of the regular ones; apt's, dpkg's and the loader's own records change with any package.
state() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/lib/apt -o -path /var/lib/dpkg \
    -o -path /var/cache -o -path /var/log -o -path /run -o -path /etc/ld.so.cache -o -path "$1" \) -prune -o -printf '%p %y %m %l\n' | sort
  find /etc /usr -xdev -type f ! -path /etc/ld.so.cache -exec sha256sum {} + | sort -k 2
}
state "$1" >/tmp/before
apt-get install -q -y --no-install-recommends "$1" >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
bare="env -i"
[ "$($bare /usr/bin/xffl --version)" = "xffl $2" ]
[ "$($bare /usr/bin/xffl-tokenize --version)" = "$2" ]
if ldd /usr/bin/xffl /usr/bin/xffl-tokenize | grep 'not found'; then exit 1; fi
cd /tmp
mkdir project
cp /tmp/xffl.yaml project/
$bare xffl config validate -p project
$bare xffl render -p project brno 2>/dev/null | grep -q '^#SBATCH --account=my_account'
i=0
while [ $i -lt 400 ]; do i=$((i + 1)); echo "The quick brown fox number $i jumps over $((i * 7 % 13)) lazy dogs."; done >text.txt
$bare xffl-tokenize train --input text.txt --vocab-size 300 --output tokenizer >/dev/null
$bare xffl-tokenize encode --tokenizer tokenizer --sequence-length 32 --input text.txt --output text.tokens
for file in man/man1/xffl.1.gz man/man1/xffl-run.1.gz man/man1/xffl-tokenize.1.gz bash-completion/completions/xffl \
  zsh/site-functions/_xffl fish/vendor_completions.d/xffl.fish doc/xffl/README.md; do
  # The Debian of a container leaves manual pages and pages out (/etc/dpkg/dpkg.cfg.d).
  [ -s /usr/share/$file ] || { echo "no /usr/share/$file"; exit 1; }
done
apt-get purge -q -y --auto-remove xffl >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
state "$1" >/tmp/after
diff /tmp/before /tmp/after || { echo "the removal has left these files"; exit 1; }
! dpkg -s xffl 2>/dev/null
S2
awk '/^```yaml$/ {on = 1; next} /^```$/ {on = 0} on' README.md >"$work/xffl.yaml" # its minimal project
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mode=root
if [ "$(id -u)" != 0 ]; then
  mode=unshare
  unshare --map-root-user true 2>/dev/null || { echo "check_deb: no namespaces here: the package was not installed"; exit 77; }
fi
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$' || echo http://deb.debian.org/debian/)
name=/$(basename "$package")
mmdebstrap --quiet --variant=apt --mode="$mode" --format=null --aptopt='APT::Sandbox::User "root"' \
  --customize-hook="copy-in $work/inside $work/xffl.yaml /tmp" --customize-hook="copy-in $package /" \
  --customize-hook="chroot \"\$1\" sh /tmp/inside $name ${version%-*}" "$suite" /dev/null "$mirror" 2>"$work/log" || {
  tail -n 40 "$work/log"
  fail "the package does not install, run and leave a small Debian $suite"
}
echo "check_deb: $(basename "$package") installs, runs and leaves nothing in a small Debian $suite; lintian finds nothing"
