#!/usr/bin/env bash
# Makes a bundle of the facility's programs, xffl-train and xffl-tokenize with their libraries, that starts on any Linux of this
# architecture with glibc 2.28 or newer, from any folder. docs/user/trainer_at_a_facility.md has its use.
#
#   scripts/package.sh trainer [--flavour cpu|cu13|cu128] [--arch x86_64|aarch64] [--output FOLDER]     default: dist/
#   scripts/package.sh coordinator [--output FOLDER]                                      see scripts/package_coordinator.sh
#   scripts/package.sh image BUNDLE.tar.gz [--output FOLDER]                              see scripts/package_image.sh
#
# cpu: no GPU. cu13: NVIDIA's GPUs from A100 on, with a driver for CUDA 13; needs 12 GB in .deps and in the output folder. cu128: the same
# GPUs with a driver for CUDA 12 (525 or newer), on x86_64.
#
# aarch64: built on x86-64 by a cross compiler, and started there under QEMU; cu13 for Grace Hopper.
#
# Prints the files and their sizes, checks the result (scripts/check_package.py) and starts it in a small Debian 11. Two builds of the
# same sources give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "package: $*" >&2; exit 2; }
case "${1:-}" in coordinator | image) exec "scripts/package_$1.sh" "${@:2}" ;; esac
[ "${1:-}" = trainer ] || fail "usage: scripts/package.sh trainer [--flavour cpu|cu13|cu128] [--arch x86_64|aarch64] [--output FOLDER]"
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
# packages: the wheels whose libraries are in the bundle.
packages=(nvidia_cuda_runtime nvidia_cuda_cupti)
profile=package
opened=() # libraries that others open by name
cudart=libcudart.so.13
case "$flavour" in
  cpu) ;;
  cu13)
    profile=package-cu13
    packages+=(nvidia_cublas nvidia_cuda_nvrtc nvidia_cudnn_cu13 nvidia_cufft nvidia_cufile nvidia_curand nvidia_cusparse nvidia_cusparselt_cu13
      nvidia_nccl_cu13 nvidia_nvjitlink nvidia_nvshmem_cu13)
    # LibTorch opens libcaffe2_nvrtc.so to compile kernels, and NVRTC opens its builtins. The program itself needs the libraries that
    # cuDNN opens (cmake/torch.cmake). Nothing here calls cuDNN's convolutions and recurrent networks (cnn, adv), torch's linear algebra
    # (libtorch_cuda_linalg.so, cuSOLVER) or NVSHMEM's transports.
    opened=(libcaffe2_nvrtc.so libnvrtc-builtins.so.13.0)
    ;;
  cu128)
    profile=package-cu128
    packages=(nvidia_cuda_runtime_cu12 nvidia_cuda_cupti_cu12 nvidia_cublas_cu12 nvidia_cuda_nvrtc_cu12 nvidia_cudnn_cu12 nvidia_cufft_cu12
      nvidia_cufile_cu12 nvidia_curand_cu12 nvidia_cusparse_cu12 nvidia_cusparselt_cu12 nvidia_nccl_cu12 nvidia_nvjitlink_cu12 nvidia_nvshmem_cu12)
    opened=(libcaffe2_nvrtc.so libnvrtc-builtins.so.12.8) # as for cu13
    cudart=libcudart.so.12
    ;;
  *) fail "the flavour '$flavour' is not known: expected cpu, cu13 or cu128" ;;
esac
case "$arch" in x86_64 | aarch64) ;; *) fail "the architecture '$arch' is not supported yet: expected x86_64 or aarch64" ;; esac
[ "$arch $flavour" != "aarch64 cu128" ] || fail "there is no LibTorch for CUDA 12 on aarch64: expected the flavour cpu or cu13"
[ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m): bundles are built on x86_64"
preset=bundle-$flavour
if [ "$arch" = aarch64 ]; then
  profile=package-aarch64 preset+=-aarch64
  [ "$flavour" = cpu ] || profile+=-$flavour
fi

# ccache leaves -ffile-prefix-map out of its hash: an object of another build could have paths of this machine.
export CCACHE_NAMESPACE=xffl-bundle

scripts/bootstrap.sh "$profile"
scripts/build.sh "$preset"
deps=$(realpath "${XFFL_DEPS_DIR:-.deps}")
root=$deps/sysroot/$arch
site=$(echo "$deps"/venv/lib/python3*/site-packages)
arrow=$site
if [ "$arch" = aarch64 ]; then
  site=$deps/aarch64_torch arrow=$deps/aarch64_arrow
  [ "$flavour" = cpu ] || site+=_$flavour
elif [ "$flavour" = cu128 ]; then
  site=$deps/torch_cu128
fi
version=$(sed -n 's/^project(xffl VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
mkdir -p "$output"
stage=$output/stage
rm -rf "$stage"
mkdir -p "$stage"/{bin,lib,licenses}
cp "build/$preset/bin/"{xffl-train,xffl-tokenize} "$stage/bin/"

# The libraries that the programs need, and those that they need in turn; glibc's are the host's.
folders=("$arrow/pyarrow" "$site/torch/lib" "$site"/nvidia/*/lib "$root/usr/lib/$arch-linux-gnu" "$root/lib/$arch-linux-gnu")
# libcuda.so.1 comes with the site's driver.
host='^(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|cuda)\.so\..*)$'
find_library() { # find_library NAME: its path in the first folder that has it
  local folder
  for folder in "${folders[@]}"; do
    if [ -e "$folder/$1" ]; then echo "$folder/$1" && return; fi
  done
  fail "$1, which the programs need, is in none of: ${folders[*]}"
}
queue=("$stage"/bin/*)
for library in "${opened[@]}"; do
  found=$(find_library "$library")
  cp -L "$found" "$stage/lib/"
  queue+=("$stage/lib/$library")
done
while [ ${#queue[@]} -gt 0 ]; do
  file=${queue[0]}
  queue=("${queue[@]:1}")
  while read -r needed; do
    if [[ $needed =~ $host ]] || [ -e "$stage/lib/$needed" ]; then continue; fi
    found=$(find_library "$needed")
    cp -L "$found" "$stage/lib/$needed"
    queue+=("$stage/lib/$needed")
  done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
done

# Network plug-ins open the CUDA runtime by this name. A link, because a copy would be a second runtime.
if [ "$flavour" != cpu ]; then ln -s "$cudart" "$stage/lib/libcudart.so"; fi

# The licences of what is shipped.
cp LICENSE "$stage/licenses/xffl"
for package in torch pyarrow "${packages[@]}"; do
  places=("$site/$package"-*.dist-info)
  if [ "$package" = pyarrow ]; then places=("$arrow/$package"-*.dist-info); fi
  beside=${package#nvidia_}
  beside=$site/nvidia/${beside%_cu1[23]} # cuSPARSELt's licence
  if [ -d "$beside" ]; then places+=("$beside"); fi
  find "${places[@]}" -iname 'licen[sc]e*' -type f -print0 -o -iname 'notice*' -type f -print0 | sort -z | xargs -0 cat >"$stage/licenses/$package"
  [ -s "$stage/licenses/$package" ] || fail "no licence of $package in $site"
done
zlib=()
if [ -e "$stage/lib/libz.so.1" ]; then zlib=(zlib1g); fi
for package in "${zlib[@]}" libstdc++6 libgcc-s1 libgomp1 libssl-dev libpcre2-dev libzstd-dev libxxhash-dev sentencepiece; do
  for name in "$package" gcc-10-base; do # GCC's libraries share one file
    if [ -e "$root/usr/share/doc/$name/copyright" ]; then cp -L "$root/usr/share/doc/$name/copyright" "$stage/licenses/$package" && break; fi
  done
  [ -s "$stage/licenses/$package" ] || fail "no licence of $package under $root/usr/share/doc"
done
for package in libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libgloo-dev; do
  cp -L "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
done
parts="NVIDIA's CUDA runtime and CUPTI, which LibTorch's CPU library needs to start"
if [ "$flavour" != cpu ]; then parts="NVIDIA's libraries for CUDA (nvidia_*), unmodified"; fi
{
  fmt -w 130 <<N
xffl $version, the programs of a facility (flavour $flavour, $arch).

licenses/ has the licence of each part: xffl; LibTorch (torch); Apache Arrow (pyarrow); $parts; GCC's runtime libraries (GPL with the GCC Runtime Library
Exception)${zlib:+; zlib}; linked into the programs: OpenSSL, PCRE2, zstd, xxHash, SentencePiece, CLI11, nlohmann-json, spdlog, fmt and Gloo's headers.
N
  if [ "$flavour" != cpu ]; then
    fmt -w 130 <<N

Do not publish this bundle or hand it on. The licence of CUDA (Attachment A of ${packages[2]}) lists the files that an application may
distribute. It does not list libcufile.so.0, libnvJitLink.so.${cudart##*.} and libnvshmem_host.so.3, which LibTorch and cuSPARSE cannot start without.
scripts/package.sh has fetched them from PyPI for the person who started it, and for this person's use at a facility. Another person
starts scripts/package.sh too.
N
  fi
  if [ "$arch" = aarch64 ]; then
    fmt -w 130 <<N

Do not publish this bundle or hand it on. LibTorch for aarch64 comes with the Arm Compute Library (MIT) and with NVIDIA's libraries NVPL
(libnvpl_*), whose licence is not in LibTorch's package. scripts/package.sh has fetched them from PyPI for the person who started it, and
for this person's use at a facility. Another person starts scripts/package.sh too.
N
  fi
} >"$stage/NOTICE"
# The same modes in the archive whatever the umask here.
find "$stage" -type d -exec chmod 755 {} +
find "$stage" -type f -exec chmod 644 {} +
chmod 755 "$stage"/bin/*
(cd "$stage" && find bin lib licenses NOTICE ! -type d | LC_ALL=C sort | xargs sha256sum >MANIFEST && chmod 644 MANIFEST)
name=xffl-trainer-$version-$arch-$flavour-$(sha256sum "$stage/MANIFEST" | cut -c1-8)
rm -rf "${output:?}/$name"
mv "$stage" "$output/$name"
python3 scripts/check_package.py "$output/$name"
scripts/check_package.sh "$output/$name" || [ $? = 77 ] # 77: no namespaces here, as it has said
(cd "$output" && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$name" | gzip -n -6 >"$name.tar.gz")
(cd "$output/$name" && du -ch --apparent-size bin/* lib/* | sort -rh | head -n 30)
echo "$(find "$output/$name" -type f | wc -l) files"
ls -l "$output/$name.tar.gz" | awk '{printf "%s: %.1f MB\n", $9, $5 / 1e6}'
