#!/usr/bin/env bash
# Installs the dependencies to build and run xffl on Debian 12 and its derivatives; safe to repeat.
#
#   scripts/bootstrap.sh [build|test|fuzz|package|package-cu13|package-cu128|package-aarch64|package-aarch64-cu13|aarch64|aarch64-trainer]
#     build (default)  compiler, libraries, LibTorch (without its GPU libraries on a machine without a GPU)
#     test             also the Python packages that the tests use as references (torch, transformers), and the daemons of
#                      scripts/dev_cluster.sh (sshd, Slurm, ...), which the script neither starts nor enables
#     fuzz             only the libraries, and clang with libFuzzer, for the preset fuzz
#     package          as build, the libraries of scripts/sysroot.sh for the preset bundle-cpu, and the checkers of packages
#     package-cu13     as package, and LibTorch's GPU libraries and nvcc (PyPI), for the preset bundle-cu13
#     package-cu128    as package, LibTorch 2.10 with its libraries of CUDA 12.8 (5 GB), and nvcc 12.4 (scripts/cuda12.sh)
#     package-aarch64  as aarch64-trainer, and the libraries of scripts/sysroot.sh for the preset bundle-cpu-aarch64
#     package-aarch64-cu13  the same with nvcc, and LibTorch for aarch64 with its GPU libraries (3 GB)
#     aarch64          as build, a cross compiler, QEMU and the libraries of scripts/aarch64_root.sh for the preset aarch64
#     aarch64-trainer  as aarch64, and LibTorch for aarch64 (420 MB, without its GPU libraries) for the preset aarch64-trainer
#
# Environment:
#   XFFL_TORCH_DIR   an existing LibTorch or Python "torch" folder, used instead of a download
#   XFFL_DEPS_DIR    the folder for Python packages and LibTorch (default: .deps in the source folder)
#
# Installs Debian packages by apt as root or with sudo; without either it prints the command to run.
# Prints one line per step with its duration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=${1:-build}
case "$profile" in build | test | fuzz | package | package-cu13 | package-cu128 | package-aarch64 | package-aarch64-cu13 | aarch64 | aarch64-trainer) ;; *) echo "bootstrap: unknown profile '$profile': expected build, test, fuzz, package, package-cu13, package-cu128, package-aarch64, package-aarch64-cu13, aarch64 or aarch64-trainer" >&2; exit 2 ;; esac
deps=${XFFL_DEPS_DIR:-$PWD/.deps}
torch_version=2.11.0
log=$deps/bootstrap.log
mkdir -p "$deps"

step() { # step NAME COMMAND...: runs quietly, prints seconds, shows the log's end on failure
  local name=$1 start=$SECONDS
  shift
  if ! "$@" >"$log" 2>&1; then
    echo "bootstrap: $name failed; the end of $log:" >&2
    tail -n 25 "$log" >&2
    exit 1
  fi
  echo "bootstrap: $name: $((SECONDS - start)) s"
}

# --- Debian packages --------------------------------------------------------------------------------------------------
packages=(g++ cmake ninja-build ccache git python3 python3-venv
  libssl-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev
  libsentencepiece-dev libpcre2-dev libsqlite3-dev libzstd-dev libxxhash-dev libssh-dev libgtest-dev libgmock-dev libgloo-dev)
# The daemons of the test facilities; their services stay disabled.
testbed_packages=(openssh-server openssh-client munge slurm-wlm slurmdbd mariadb-server gridengine-master gridengine-exec iproute2 util-linux procps)
# Fault injection: failing system calls, a jumping clock.
fault_packages=(strace libfaketime)
# For the lint tests.
source_packages=(clang-format)
# For the tests of completion scripts and manual pages.
shell_packages=(zsh fish groff mandoc)
# A writer of squashfs, and public readers of the images that scripts/package_image.sh writes.
image_packages=(squashfs-tools skopeo umoci)
# For the test of the report's page; a distribution without these packages skips the test.
browser_packages=(chromium-headless-shell poppler-utils)
# For the packages of scripts/package.sh: lintian and a Debian in a folder check the Debian package.
package_packages=(lintian mmdebstrap "${image_packages[@]}")
aarch64_packages=(g++-aarch64-linux-gnu qemu-user-static)
fuzz_packages=(clang-19 libclang-rt-19-dev)
testbed_services=(ssh munge slurmctld slurmd slurmdbd mariadb gridengine-master gridengine-exec)

missing_packages() {
  local p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || printf '%s\n' "$p"
  done
}

install_packages() {
  local sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo -n)
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Installs packages of daemons without starting a daemon, now or at the next boot. Services that existed before do not change.
install_without_daemons() {
  local sudo=() policy=/usr/sbin/policy-rc.d ours= service new=() code=0
  [ "$(id -u)" = 0 ] || sudo=(sudo -n)
  for service in "${testbed_services[@]}"; do [ -e "/lib/systemd/system/$service.service" ] || new+=("$service"); done
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
    "${sudo[@]}" chmod 755 $policy
    ours=1
  fi
  install_packages "$@" || code=$?
  [ -z "$ours" ] || "${sudo[@]}" rm -f $policy
  if command -v systemctl >/dev/null; then
    for service in "${new[@]}"; do "${sudo[@]}" systemctl disable -q "$service.service" || true; done
  fi
  return $code
}

[ "$profile" != fuzz ] || packages+=("${fuzz_packages[@]}")
[ "$profile" != package ] || packages+=("${package_packages[@]}")
case "$profile" in *aarch64*) packages+=("${aarch64_packages[@]}") ;; esac
if command -v dpkg-query >/dev/null; then
  mapfile -t missing < <(missing_packages "${packages[@]}")
  if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
      step "${#missing[@]} Debian packages" install_packages "${missing[@]}"
    else
      echo "bootstrap: these packages are missing and need root; run:" >&2
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  if [ "$profile" = test ]; then
    mapfile -t missing < <(missing_packages "${testbed_packages[@]}" "${fault_packages[@]}" "${source_packages[@]}" "${shell_packages[@]}" "${image_packages[@]}")
    if [ ${#missing[@]} -gt 0 ]; then
      if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
        step "${#missing[@]} packages for test facilities, fault injection, shells and lint" install_without_daemons "${missing[@]}"
      else
        echo "bootstrap: missing packages: ${missing[*]}; without them tests with real facilities and faults are skipped (installing needs root)" >&2
      fi
    fi
  fi
  if [ "$profile" = test ] && [ -n "$(missing_packages "${browser_packages[@]}")" ] && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    start=$SECONDS
    if install_packages "${browser_packages[@]}" >"$log" 2>&1; then
      echo "bootstrap: a browser for the report's page: $((SECONDS - start)) s"
    else
      echo "bootstrap: no package ${browser_packages[*]} here: the test of the report's page in a browser is skipped" >&2
    fi
  fi
else
  echo "bootstrap: no dpkg here: the libraries named in scripts/bootstrap.sh must come from your system or modules" >&2
fi

[ "$profile" != fuzz ] || exit 0

# --- Python packages: LibTorch is the torch wheel ---------------------------------------------------------------------
# One virtual environment holds LibTorch and, for the tests, the dependencies of `import torch`.
venv=$deps/venv
installed() { # installed NAME[==VERSION]...: true if all packages are installed, with the given versions
  "$venv/bin/python" - "$@" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version
for want in sys.argv[1:]:
    name, _, pin = want.partition("==")
    try:
        have = version(name)
    except PackageNotFoundError:
        sys.exit(1)
    if pin and have.split("+")[0] != pin:
        sys.exit(1)
PY
}
make_venv() {
  if [ ! -x "$venv/bin/pip" ]; then
    local python=python3
    [ -x /usr/bin/python3 ] && python=/usr/bin/python3
    step "Python environment" "$python" -m venv "$venv"
  fi
}
pip_install() { "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q "$@"; }

if [ -z "${XFFL_TORCH_DIR:-}" ]; then
  make_venv
  if [ "$profile" = package-cu13 ] || { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
    installed "torch==$torch_version" nvidia-nccl-cu13 sympy || step "LibTorch $torch_version with CUDA" pip_install "torch==$torch_version"
  else
    want=("torch==$torch_version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85) # the versions of its own dependencies
    installed "${want[@]}" || step "LibTorch $torch_version" pip_install --no-deps "${want[@]}"
  fi
fi

# libarrow is the pyarrow wheel, for Parquet and Arrow files.
arrow_version=26.0.1
case "$profile" in build | test | package*)
  make_venv
  installed "pyarrow==$arrow_version" || step "libarrow $arrow_version" pip_install --no-deps "pyarrow==$arrow_version" ;;
esac

if [ "$profile" = test ]; then
  make_venv
  want=("torch==$torch_version" transformers==5.17.0 safetensors numpy sentencepiece protobuf pytest)
  # nvidia-nccl has nccl.h for the CUDA preset; sympy shows that torch's own dependencies are installed.
  installed "${want[@]}" nvidia-nccl-cu13 sympy || step "Python packages for the tests" pip_install "${want[@]}"
  # PEFT's other dependencies are installed already.
  want=(peft==0.21.2 accelerate==1.15.0 psutil==7.2.2)
  installed "${want[@]}" || step "PEFT for the tests" pip_install --no-deps "${want[@]}"
  # Public readers of the formats that `xffl export` writes: 13 MB, in a folder of their own, without their dependencies.
  if [ ! -d "$deps/readers/tensorboard" ]; then
    rm -rf "$deps/readers"
    step "Readers of exports" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q --no-deps \
      --target "$deps/readers" tensorboard==2.21.0 absl-py==2.5.1 prometheus_client==0.26.0 \
      jsonschema==4.26.0 jsonschema-specifications==2025.9.1 referencing==0.37.0 rpds-py==2026.9.1 attrs==26.1.0
  fi
  # The public RO-Crate validator: 32 MB; the package rocrate has the JSON-LD context.
  if [ ! -d "$deps/rocrate/rocrate" ]; then
    rm -rf "$deps/rocrate"
    step "RO-Crate validator" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q \
      --target "$deps/rocrate" roc-validator==0.13.0
    step "RO-Crate context" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q --no-deps \
      --target "$deps/rocrate" rocrate==0.16.0
  fi
  # The public verifier of OpenSSF model signatures: 51 MB.
  if [ ! -d "$deps/model_signing/model_signing" ]; then
    rm -rf "$deps/model_signing"
    step "model_signing" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q \
      --target "$deps/model_signing" model-signing==1.1.1 pyopenssl
  fi
  # docs/ as a web site: 17 MB.
  if [ ! -d "$deps/mkdocs/mkdocs" ]; then
    rm -rf "$deps/mkdocs"
    step "mkdocs" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q --target "$deps/mkdocs" mkdocs==1.6.1
  fi
  # The writer of Hugging Face datasets: 97 MB; pyarrow, numpy, fsspec and huggingface_hub are the venv's.
  if [ ! -d "$deps/datasets/datasets" ]; then
    rm -rf "$deps/datasets"
    step "datasets" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q --no-deps \
      --target "$deps/datasets" datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 xxhash pandas==3.1.1 python-dateutil six
  fi
  # transformers 4 writes the older format of HF's config.json; its folder is separate from the venv's version 5.
  if [ ! -d "$deps/transformers4/requests" ]; then
    rm -rf "$deps/transformers4"
    step "transformers 4 beside it" "$venv/bin/pip" install --disable-pip-version-check --no-input --no-compile -q \
      --no-deps --target "$deps/transformers4" transformers==4.57.6 huggingface-hub==0.36.0 tokenizers==0.22.1 \
      requests urllib3 certifi idna charset-normalizer
  fi
fi

case "$profile" in aarch64*) step "Libraries for aarch64" scripts/aarch64_root.sh ;; esac
# LibTorch for aarch64: libtorch_cpu.so needs two libraries of CUDA, as on x86-64. The flavour cu13 has a folder of its own.
aarch64_torch= wheels=("torch==$torch_version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
case "$profile" in
  aarch64-trainer | package-aarch64) aarch64_torch=$deps/aarch64_torch ;;
  package-aarch64-cu13)
    aarch64_torch=$deps/aarch64_torch_cu13
    wheels+=(nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88 nvidia-cudnn-cu13==9.19.0.56 nvidia-cufft==12.0.0.61 nvidia-cufile==1.15.1.6
      nvidia-curand==10.4.0.35 nvidia-cusolver==12.0.4.66 nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.0 nvidia-nccl-cu13==2.28.9
      nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5 nvidia-nvtx==13.0.85)
    ;;
esac
install_for_aarch64() { # install_for_aarch64 NAME FOLDER PACKAGE...: the wheels for aarch64 in a new folder
  local name=$1 folder=$2 platforms=() glibc
  shift 2
  make_venv
  rm -rf "$folder"
  for glibc in {17..28}; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  step "$name for aarch64" pip_install --no-deps --only-binary=:all: "${platforms[@]}" --platform manylinux2014_aarch64 \
    --python-version "$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" --implementation cp \
    --target "$folder" "$@"
}
if [ -n "$aarch64_torch" ] && [ ! -e "$aarch64_torch/nvidia/cu13/lib/libcupti.so.13" ]; then
  install_for_aarch64 "LibTorch $torch_version" "$aarch64_torch" "${wheels[@]}"
fi
if [[ $profile == package-aarch64* ]] && [ ! -e "$deps/aarch64_arrow/pyarrow-$arrow_version.dist-info" ]; then
  install_for_aarch64 "libarrow $arrow_version" "$deps/aarch64_arrow" "pyarrow==$arrow_version"
fi
case "$profile" in
  package | package-cu13 | package-cu128) step "Libraries of Debian 11" scripts/sysroot.sh ;;
  package-aarch64*) step "Libraries of Debian 11 for aarch64" scripts/sysroot.sh aarch64 ;;
esac
# The newest LibTorch of PyPI for CUDA 12, in a folder of its own.
if [ "$profile" = package-cu128 ]; then
  if [ ! -e "$deps/torch_cu128/torch/lib/libtorch_cuda.so" ]; then
    rm -rf "$deps/torch_cu128"
    step "LibTorch 2.10.0 for CUDA 12.8" pip_install --no-deps --target "$deps/torch_cu128" torch==2.10.0 nvidia-cublas-cu12==12.8.4.1 \
      nvidia-cuda-cupti-cu12==12.8.90 nvidia-cuda-nvrtc-cu12==12.8.93 nvidia-cuda-runtime-cu12==12.8.90 nvidia-cudnn-cu12==9.10.2.21 \
      nvidia-cufft-cu12==11.3.3.83 nvidia-cufile-cu12==1.13.1.3 nvidia-curand-cu12==10.3.9.90 nvidia-cusolver-cu12==11.7.3.90 \
      nvidia-cusparse-cu12==12.5.8.93 nvidia-cusparselt-cu12==0.7.1 nvidia-nccl-cu12==2.27.5 nvidia-nvjitlink-cu12==12.8.93 \
      nvidia-nvshmem-cu12==3.4.5 nvidia-nvtx-cu12==12.8.90
  fi
  step "nvcc 12.4" scripts/cuda12.sh
fi
# nvcc with the version of LibTorch's CUDA libraries, whatever this machine has.
if [[ $profile =~ ^package.*cu13$ ]] && [ ! -e "$deps/cuda/nvidia/cu13/lib/libcudart.so" ]; then
  rm -rf "$deps/cuda"
  step "nvcc 13.0" pip_install --no-deps --target "$deps/cuda" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  ln -sfn lib "$deps/cuda/nvidia/cu13/lib64" # nvcc's own profile names it
  ln -sfn libcudart.so.13 "$deps/cuda/nvidia/cu13/lib/libcudart.so"
fi
