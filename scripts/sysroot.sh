#!/usr/bin/env bash
# Makes the folder of headers and libraries against which scripts/package.sh builds: Debian 11's, whose glibc is the oldest that a
# Debian mirror has, with this machine's C++ headers and header-only libraries, and a static SentencePiece.
#
#   scripts/sysroot.sh [ARCH]     ARCH: x86_64 (default), or aarch64 with a cross compiler
#
# apt checks the signatures of the packages; nothing is installed on this machine. XFFL_DEPS_DIR as for scripts/bootstrap.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
arch=${1:-x86_64}
toolchain=$PWD/cmake/glibc_2_28.cmake
case "$arch" in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 toolchain=$PWD/cmake/glibc_2_28_aarch64.cmake ;;
  *) echo "sysroot: '$arch' is not supported yet: expected x86_64 or aarch64" >&2; exit 2 ;;
esac
deps=$(realpath "${XFFL_DEPS_DIR:-$PWD/.deps}")
root=$deps/sysroot/$arch
work=$deps/sysroot/work-$arch
sentencepiece=0.2.1
sentencepiece_sha256=8138cec27c2f2282f4a34d9a016e3374cd40e5c6e9cb335063db66a0a3b71fad
triplet=$arch-linux-gnu
recipe=$(cat scripts/sysroot.sh scripts/private_apt.sh | sha256sum | cut -c1-16) # a changed script makes the folder again
if [ "$(cat "$root/.recipe" 2>/dev/null)" = "$recipe" ]; then exit 0; fi
rm -rf "$root" "$work"
mkdir -p "$root"
. scripts/private_apt.sh
private_apt "$work" bullseye "$architecture"
fetch debs libc6 libc6-dev linux-libc-dev libcrypt1 libcrypt-dev libstdc++6 libgcc-s1 libgomp1 gcc-10-base \
  libssl-dev libpcre2-dev libzstd-dev libxxhash-dev zlib1g
# The programs of a small Debian 11, in which scripts/check_package.sh starts the bundle.
fetch debs-base libc6 libc-bin dash coreutils tar gzip libselinux1 libpcre2-8-0 libacl1 libattr1 libgmp10 zlib1g
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
mkdir -p "$deps/sysroot/$arch-base"
for deb in "$work"/debs-base/*.deb; do dpkg-deb -x "$deb" "$deps/sysroot/$arch-base"; done

links_inside "$root"
# The compiler's headers belong to the compiler; its library is Debian 11's.
include=$root/usr/include
if [ "$arch" = "$(uname -m)" ]; then # a cross compiler's headers are named in the toolchain file
  mkdir -p "$include/c++" "$include/$triplet/c++"
  version=$(g++ -dumpversion)
  ln -sfn "/usr/include/c++/$version" "$include/c++/$version"
  ln -sfn "/usr/include/$triplet/c++/$version" "$include/$triplet/c++/$version"
fi
ln -sfn libstdc++.so.6 "$root/usr/lib/$triplet/libstdc++.so"
for headers in CLI nlohmann spdlog fmt gloo; do ln -sfn "/usr/include/$headers" "$include/$headers"; done

# Debian 11's SentencePiece is too old for xffl.
(cd "$work" && "$deps/venv/bin/pip" download --disable-pip-version-check --no-deps --no-binary :all: -q "sentencepiece==$sentencepiece" -d .)
echo "$sentencepiece_sha256  $work/sentencepiece-$sentencepiece.tar.gz" | sha256sum -c --quiet
tar -xzf "$work/sentencepiece-$sentencepiece.tar.gz" -C "$work"
source=$work/sentencepiece-$sentencepiece/sentencepiece
cmake -S "$source" -B "$work/sentencepiece" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSPM_ENABLE_SHARED=OFF -DSPM_USE_BUILTIN_PROTOBUF=ON \
  -DSPM_ENABLE_TCMALLOC=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_TOOLCHAIN_FILE="$toolchain" \
  -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
ninja -C "$work/sentencepiece" sentencepiece-static sentencepiece_train-static
cp "$work"/sentencepiece/src/libsentencepiece{,_train}.a "$root/usr/lib/$triplet/"
cp "$source"/src/sentencepiece_{processor,trainer}.h "$include/"
mkdir -p "$root/usr/share/doc/sentencepiece"
cp "$source/LICENSE" "$root/usr/share/doc/sentencepiece/copyright"
rm -rf "$work"
echo "$recipe" >"$root/.recipe"
