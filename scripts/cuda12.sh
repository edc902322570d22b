#!/usr/bin/env bash
# Makes the folder of CUDA's compiler for `scripts/package.sh trainer --flavour cu128`: nvcc 12.4 with its headers and runtime.
#
# PyPI has CUDA 12's headers and libraries, and no nvcc: its wheels begin with CUDA 13. Debian 13 has nvcc 12.4 (non-free); the programs
# need glibc 2.7 and start here. Machine code of nvcc 12.4 runs with CUDA 12.8's runtime and with each driver that it supports.
# apt checks the signature of the package; nothing is installed on this machine. XFFL_DEPS_DIR as for scripts/bootstrap.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deps=$(realpath "${XFFL_DEPS_DIR:-$PWD/.deps}")
root=$deps/cuda12
work=$deps/cuda12-work
recipe=$(cat scripts/cuda12.sh scripts/private_apt.sh | sha256sum | cut -c1-16) # a changed script makes the folder again
if [ "$(cat "$root/.recipe" 2>/dev/null)" = "$recipe" ]; then exit 0; fi
rm -rf "$root" "$work"
mkdir -p "$root"/{bin,nvvm/bin,lib64,include}
. scripts/private_apt.sh
private_apt "$work" trixie amd64 non-free
fetch debs nvidia-cuda-toolkit
dpkg-deb -x "$work"/debs/*.deb "$work/root"
"$deps/venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q --no-deps --target "$work/wheels" \
  nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-cccl-cu12==12.8.90
cp "$work"/root/usr/bin/{cudafe++,fatbinary,ptxas,nvlink} "$root/bin/"
cp -r "$work"/root/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$root/bin/"
cp "$work/root/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$root/nvvm/bin/"
cp -r "$work/root/usr/lib/nvidia-cuda-toolkit/libdevice" "$root/nvvm/"
for package in cuda_runtime cuda_nvcc cuda_cccl; do cp -r "$work/wheels/nvidia/$package/include/." "$root/include/"; done
cp "$work/wheels/nvidia/cuda_runtime/lib/libcudart.so.12" "$root/lib64/"
ln -s libcudart.so.12 "$root/lib64/libcudart.so"
# CMake's test programs link the static runtime, which the wheels lack.
echo 'INPUT(libcudart.so.12)' >"$root/lib64/libcudart_static.a"
ar cr "$root/lib64/libcudadevrt.a"
cat >"$root/bin/nvcc.profile" <<'P'
TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
P
"$root/bin/nvcc" --version | tail -n 2
rm -rf "$work"
echo "$recipe" >"$root/.recipe"
