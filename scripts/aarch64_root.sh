#!/usr/bin/env bash
# Makes .deps/aarch64: this Debian's libraries for aarch64, for the preset aarch64 (scripts/check_aarch64.sh).
# Nothing is installed on this machine. XFFL_DEPS_DIR as for scripts/bootstrap.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deps=$(realpath "${XFFL_DEPS_DIR:-$PWD/.deps}")
root=$deps/aarch64
work=$deps/aarch64.work
recipe=$(cat scripts/aarch64_root.sh scripts/private_apt.sh | sha256sum | cut -c1-16) # a changed script makes the folder again
if [ "$(cat "$root/.recipe" 2>/dev/null)" = "$recipe" ]; then exit 0; fi
rm -rf "$root" "$work"
mkdir -p "$root"
. scripts/private_apt.sh
private_apt "$work" "$(. /etc/os-release && echo "$VERSION_CODENAME")" arm64
fetch debs libssl-dev libssl3 libyaml-cpp-dev libyaml-cpp0.7 libsentencepiece-dev libsentencepiece0 libprotobuf-lite32 libpcre2-dev \
  libpcre2-8-0 libsqlite3-dev libsqlite3-0 libzstd-dev libzstd1 libxxhash-dev libxxhash0 libssh-dev libssh-4 libgtest-dev libgmock-dev \
  zlib1g libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libgoogle-perftools4 libtcmalloc-minimal4 \
  libunwind8 liblzma5 libc6 libgcc-s1 libstdc++6 libgomp1
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
links_inside "$root"
for headers in CLI nlohmann spdlog fmt gloo; do ln -sfn "/usr/include/$headers" "$root/usr/include/$headers"; done
rm -rf "$work"
echo "$recipe" >"$root/.recipe"
