#!/usr/bin/env bash
# Builds the trainer for NVIDIA GPUs, tests it on a GPU, and compares its speed with Hugging Face, offline, in three stages.
#
#   scripts/gpu_check.sh pack DIR [BIN]       on a machine with Debian's packages: copies the headers and libraries of a build,
#                                             without LibTorch, to DIR; with BIN (build/trainer-cuda/bin) also the programs
#   scripts/gpu_check.sh run --stage 1|2|3 [--only NAME]... [--continue] [--carry DIR]
#   scripts/gpu_check.sh rehearse [--stage N] [--bin DIR]    the same on this machine's CPU with a tiny model
#   scripts/gpu_check.sh table RESULTS.jsonl...              result files as Markdown
#   scripts/gpu_check.sh clean                               removes the models that `run` made
#
# Stage 1 (6 minutes): build or packed programs, GPU tests, micro-benchmark, the 8B model, compute-sanitizer. Stage 2 (6): settings of
# xffl-train. Stage 3 (5): Hugging Face beside the best xffl setting, the lab model, loading and saving. Each stage is useful alone; see
# docs/developer/gpu_check.md. tests/bench/gpu_check/table.py has the table of measurements. --only NAME (repeatable) selects
# measurements; limits do not change. --continue skips the measurements that the same programs passed before.
#
# `run` needs LibTorch with CUDA: XFFL_TORCH_DIR, else the torch of `python3 -c "import torch"`, else that of scripts/bootstrap.sh. It
# uses the programs in DIR/bin if they start on this machine. Otherwise it builds with nvcc, cmake >= 3.25, ninja and a C++20 compiler,
# and takes missing headers and libraries from --carry DIR (default: .carry in the source folder, if it exists). Hugging Face needs a
# Python with torch and transformers (XFFL_PYTHON, default python3); without them its measurements are skipped with the reason.
#
# Writes the result files results.jsonl, gpu_check.log and details.tar after each measurement to $OUT if set, else to gpu_check/ in the
# build folder.
#
# Exit code: 0 all passed; 77 all compiled, but no GPU was found; 1 a measurement failed, or the first losses of the two sides differ;
# 2 no failure, but an aim was missed or a required measurement is missing.
set -euo pipefail
began=$(date +%s)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/trainer-cuda
state=$build/gpu_check
build_limit_s=330
say() { echo "gpu_check: $*"; }
die() { echo "gpu_check: $*" >&2; exit 1; }
check() { PYTHONPATH=tests/bench${PYTHONPATH:+:$PYTHONPATH} exec "${XFFL_CHECK_PYTHON:-python3}" -m gpu_check "$@"; }

# --- pack -------------------------------------------------------------------------------------------------------------
# Copies headers and static libraries to DIR/include and DIR/lib, programs to DIR/bin, and their shared libraries, except those of
# LibTorch, CUDA and the compiler, to DIR/bin/libraries.
carried=(nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev libgtest-dev libgmock-dev libgloo-dev libssl-dev libzstd-dev libxxhash-dev)
pack() {
  local dir=$1 programs=${2:-} package path
  command -v dpkg-query >/dev/null || die "pack: dpkg was not found: use a Debian or Ubuntu machine"
  mkdir -p "$dir/include" "$dir/lib"
  for package in "${carried[@]}"; do
    dpkg-query -W "$package" >/dev/null 2>&1 || die "pack: $package is not installed: run scripts/bootstrap.sh first"
    while IFS= read -r path; do
      [ -f "$path" ] || continue
      case $path in
        /usr/include/*-linux-gnu/*) copy "$path" "$dir/include/${path#/usr/include/*-linux-gnu/}" ;;
        /usr/include/*) copy "$path" "$dir/include/${path#/usr/include/}" ;;
        */libgtest.a | */libgtest_main.a | */libgmock.a | */libgmock_main.a | */libcrypto.a | */libzstd.a) copy "$path" "$dir/lib/${path##*/}" ;;
      esac
    done < <(dpkg-query -L "$package")
  done
  [ -z "$programs" ] || pack_programs "$dir/bin" "$programs"
  say "packed $(find "$dir" -type f | wc -l) files, $(du -sh "$dir" | cut -f1), into $dir"
}
copy() { install -D -m 644 "$1" "$2"; }
pack_programs() {
  local target=$1 programs=$2 program library
  [ -x "$programs/xffl-train" ] || die "pack: $programs has no xffl-train: build the preset trainer-cuda first"
  mkdir -p "$target/libraries"
  for program in xffl-train xffl_test_tool xffl-model-io-bench xffl-kernel-bench kernels_gpu_test trainer_gpu_test; do
    [ -x "$programs/$program" ] || { say "pack: $program is not built: skipped"; continue; }
    install -m 755 "$programs/$program" "$target/$program"
    strip --strip-unneeded "$target/$program"
    while IFS= read -r library; do
      copy "$library" "$target/libraries/${library##*/}"
    done < <(ldd "$programs/$program" | awk '$2 == "=>" && $3 ~ /^\/(usr\/)?lib/ { print $3 }' |
      grep -vE '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libgomp|libcuda|libnvidia[^/]*)\.so' || true)
  done
}

# --- run --------------------------------------------------------------------------------------------------------------
has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

find_torch() {
  local python=${XFFL_PYTHON:-python3} candidate
  if [ -z "${XFFL_TORCH_DIR:-}" ]; then
    candidate=$("$python" -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' \
      2>/dev/null || true)
    for candidate in "$candidate" .deps/venv/lib/python3*/site-packages/torch; do
      [ -e "$candidate/lib/libtorch_cuda.so" ] || continue
      XFFL_TORCH_DIR=$(cd "$candidate" && pwd)
      break
    done
  fi
  [ -e "${XFFL_TORCH_DIR:-}/lib/libtorch_cuda.so" ] || die "no LibTorch with CUDA was found: set XFFL_TORCH_DIR"
  export XFFL_TORCH_DIR
}

# Prints the folders of LibTorch and its libraries, which programs built on another machine do not know, and the folders in $@.
library_folders() {
  local folder
  for folder in "$XFFL_TORCH_DIR/lib" "$XFFL_TORCH_DIR"/../nvidia/*/lib "$XFFL_TORCH_DIR"/../torch.libs "$@"; do
    [ ! -d "$folder" ] || (cd "$folder" && pwd)
  done
}

# Sets `folders`. The packed libraries are a last resort, because the system's libraries fit its other programs.
carried_programs_start() {
  local more
  [ -x "$1/xffl-train" ] || return 1
  for more in '' "$1/libraries"; do
    mapfile -t folders < <(library_folders ${more:+"$more"})
    ! LD_LIBRARY_PATH=$(IFS=:; echo "${folders[*]}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 60 "$1/xffl-train" info || return 0
  done
  folders=()
  return 1
}

check_tools() {
  local tool
  for tool in cmake ninja g++; do command -v $tool >/dev/null || die "$tool is missing"; done
  command -v nvcc >/dev/null || export PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || die "nvcc is missing: put CUDA's tool kit on PATH"
}

# Compiles for this machine's GPU only, or for an H100 without a GPU.
choose_architecture() {
  local capability=9.0
  ! has_gpu || capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
  export CUDAARCHS=${CUDAARCHS:-${capability/./}}
}

# Adds a search path of last resort: the system's headers come first.
add_includes() {
  export CXXFLAGS="${CXXFLAGS:-} -idirafter $1" CUDAFLAGS="${CUDAFLAGS:-} -Xcompiler=-idirafter,$1"
}

configure_and_build() {
  # Other compilers may have other warnings, and nvcc does not accept -Werror.
  local options=(-DXFFL_WARNINGS_ARE_ERRORS=OFF)
  [ -z "$1" ] || options+=(-DCMAKE_PREFIX_PATH="$1" -DOPENSSL_USE_STATIC_LIBS=TRUE)
  export CCACHE_DEPEND=1
  cmake --preset trainer-cuda "${options[@]}" && cmake --build --preset trainer-cuda
}

# Builds the programs within the time of stage 1. Sets `built` to the result and seconds of the build.
provide_programs() {
  local carry=$1 start=$SECONDS code=0
  check_tools
  choose_architecture
  [ -z "$carry" ] || add_includes "$carry/include"
  say "building with $(nvcc --version | grep -o 'release [0-9.]*') for architecture $CUDAARCHS; carried: ${carry:-nothing}"
  export -f configure_and_build
  timeout --kill-after=5 "$build_limit_s" bash -c 'configure_and_build "$1"' _ "$carry" >"$state/build.log" 2>&1 || code=$?
  case $code in
    0) built=passed ;;
    124 | 137) built=out_of_time ;;
    *)
      built=failed
      grep -E 'error|Error|FAILED' "$state/build.log" | head -n 20 >&2 || true
      tail -n 20 "$state/build.log" >&2
      ;;
  esac
  built=$built:$((SECONDS - start))
}

run() {
  local carry='' programs=$build/bin built='' folders=() rest=()
  [ ! -d .carry ] || carry=$PWD/.carry
  while [ $# -gt 0 ]; do
    case $1 in
      --carry) carry=$(cd "${2:?--carry: a folder is missing}" && pwd); shift 2 ;;
      --bin) programs=${2:?--bin: a folder is missing}; built=passed:0; shift 2 ;;
      *) rest+=("$1"); shift ;;
    esac
  done
  mkdir -p "$state"
  if [ -z "$built" ]; then
    find_torch
    if [ -n "$carry" ] && carried_programs_start "$carry/bin" >"$state/build.log" 2>&1; then
      programs=$carry/bin
      say "the packed programs start on this machine: no build"
      built=passed:0
    else
      [ ! -d "$carry/bin" ] || say "the packed programs do not start on this machine ($(tail -n 1 "$state/build.log")): building"
      provide_programs "$carry"
    fi
  fi
  check run --bin "$programs" --state "$state" --libraries ${folders[@]+"${folders[@]}"} --began "$began" --built "$built" \
    ${rest[@]+"${rest[@]}"}
}

command=${1:-}
shift || true
case $command in
  pack)
    [ $# = 1 ] || [ $# = 2 ] || die "expected: pack DIR [BIN]"
    pack "$@"
    ;;
  run) run "$@" ;;
  rehearse | table | clean) check "$command" "$@" ;;
  *) die "expected: pack DIR [BIN], run --stage 1|2|3, rehearse, table RESULTS.jsonl, or clean (see the head of this file)" ;;
esac
