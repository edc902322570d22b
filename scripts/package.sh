#!/usr/bin/env bash
# Makes a bundle of the facility's programs, xffl-train and xffl-tokenize with their libraries, that starts on any Linux of this
# architecture with glibc 2.28 or newer, from any folder. docs/user/trainer_at_a_facility.md has its use.
#
#   scripts/package.sh trainer [--flavour cpu] [--arch x86_64] [--output FOLDER]     default: dist/
#   scripts/package.sh coordinator [--output FOLDER]                                 see scripts/package_coordinator.sh
#
# Prints the files and their sizes, checks the result (scripts/check_package.py) and starts it in a small Debian 11. Two builds of the
# same sources give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "package: $*" >&2; exit 2; }
case "${1:-}" in coordinator) exec "scripts/package_$1.sh" "${@:2}" ;; esac
[ "${1:-}" = trainer ] || fail "usage: scripts/package.sh trainer [--flavour cpu] [--arch x86_64] [--output FOLDER]"
shift
flavour=cpu arch=x86_64 output=dist
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case "$1" in
    --flavour) flavour=$2 ;;
    --arch) arch=$2 ;;
    --output) output=$2 ;;
    *) fail "unknown option $1: expected --flavour, --arch or --output" ;;
  esac
  shift 2
done
[ "$flavour" = cpu ] || fail "the flavour '$flavour' is not supported yet: expected cpu"
[ "$arch" = x86_64 ] || fail "the architecture '$arch' is not supported yet: expected x86_64"
[ "$(uname -m)" = "$arch" ] || fail "this machine is $(uname -m): the bundle for $arch is built on $arch"

# ccache leaves -ffile-prefix-map out of its hash: an object of another build could have paths of this machine.
export CCACHE_NAMESPACE=xffl-bundle

scripts/bootstrap.sh package
scripts/build.sh "bundle-$flavour"
deps=$(realpath "${XFFL_DEPS_DIR:-.deps}")
root=$deps/sysroot/$arch
site=$(echo "$deps"/venv/lib/python3*/site-packages)
version=$(sed -n 's/^project(xffl VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
mkdir -p "$output"
stage=$output/stage
rm -rf "$stage"
mkdir -p "$stage"/{bin,lib,licenses}
cp "build/bundle-$flavour/bin/"{xffl-train,xffl-tokenize} "$stage/bin/"

# The libraries that the programs need, and those that they need in turn; glibc's are the host's.
folders=("$site/torch/lib" "$site"/nvidia/*/lib "$root/usr/lib/$arch-linux-gnu" "$root/lib/$arch-linux-gnu")
host='^(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv)\.so\..*)$'
queue=("$stage"/bin/*)
while [ ${#queue[@]} -gt 0 ]; do
  file=${queue[0]}
  queue=("${queue[@]:1}")
  while read -r needed; do
    if [[ $needed =~ $host ]] || [ -e "$stage/lib/$needed" ]; then continue; fi
    found=
    for folder in "${folders[@]}"; do
      if [ -e "$folder/$needed" ]; then found=$folder/$needed && break; fi
    done
    [ -n "$found" ] || fail "$(basename "$file") needs $needed, which is in none of: ${folders[*]}"
    cp -L "$found" "$stage/lib/$needed"
    queue+=("$stage/lib/$needed")
  done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
done

# The licences of what is shipped.
cp LICENSE "$stage/licenses/xffl"
for package in torch nvidia_cuda_runtime nvidia_cuda_cupti; do
  for info in "$site/$package"-*.dist-info; do
    find "$info" -iname 'licen[sc]e*' -type f -print0 -o -iname 'notice*' -type f -print0 | sort -z | xargs -0 cat >"$stage/licenses/$package"
  done
done
for package in libstdc++6 libgcc-s1 libgomp1 libssl-dev libpcre2-dev libzstd-dev libxxhash-dev sentencepiece; do
  for name in "$package" gcc-10-base; do # GCC's libraries share one file
    if [ -e "$root/usr/share/doc/$name/copyright" ]; then cp -L "$root/usr/share/doc/$name/copyright" "$stage/licenses/$package" && break; fi
  done
  [ -s "$stage/licenses/$package" ] || fail "no licence of $package under $root/usr/share/doc"
done
for package in libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libgloo-dev; do
  cp -L "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
done
cat >"$stage/NOTICE" <<N
xffl $version, the programs of a facility (flavour $flavour, $arch).

licenses/ has the licence of each part: xffl; LibTorch (torch); NVIDIA's CUDA runtime and CUPTI, which LibTorch's CPU library needs to
start; GCC's runtime libraries (GPL with the GCC Runtime Library Exception); linked into the programs: OpenSSL, PCRE2, zstd, xxHash,
SentencePiece, CLI11, nlohmann-json, spdlog, fmt and Gloo's headers.
N
# The same modes in the archive whatever the umask here.
find "$stage" -type d -exec chmod 755 {} +
find "$stage" -type f -exec chmod 644 {} +
chmod 755 "$stage"/bin/*
(cd "$stage" && find bin lib licenses NOTICE -type f | LC_ALL=C sort | xargs sha256sum >MANIFEST && chmod 644 MANIFEST)
name=xffl-trainer-$version-$arch-$flavour-$(sha256sum "$stage/MANIFEST" | cut -c1-8)
rm -rf "${output:?}/$name"
mv "$stage" "$output/$name"
python3 scripts/check_package.py "$output/$name"
scripts/check_package.sh "$output/$name" || [ $? = 77 ] # 77: no namespaces here, as it has said
(cd "$output" && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" | gzip -n -6 >"$name.tar.gz")
(cd "$output/$name" && du -ch --apparent-size bin/* lib/* | sort -rh | head -n 8)
echo "$(find "$output/$name" -type f | wc -l) files"
ls -l "$output/$name.tar.gz" | awk '{printf "%s: %.1f MB\n", $9, $5 / 1e6}'
