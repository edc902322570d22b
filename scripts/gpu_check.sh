#!/usr/bin/env bash
# Builds the trainer for NVIDIA GPUs, tests it on one, and measures it beside Hugging Face, in under 10 minutes and without
# a network.
#
#   scripts/gpu_check.sh pack DIR          on a machine with Debian's packages: puts what a build needs beside LibTorch into DIR
#   scripts/gpu_check.sh run [--carry DIR] [--build-only] [--no-bench] [--only BENCH]...
#
# BENCH is llama_8b_pure_bf16 (the whole Llama-3.1-8B in 16 bits on both sides), llama_8b_pure_bf16_batch_4 (twice the batch:
# ours alone where Hugging Face's activations no longer fit), llama_8b_fp32_masters (as many of its blocks as fit with float32
# masters on both sides), lab, lab_deterministic (ours in that mode: what it costs), or model_io (8 of its blocks loaded and
# saved). All are run in this order while there is time; --only, given once or several times, leaves out the tests and the
# other benches, and takes the time that they take. A run of 6 steps a side and bench fits into 10 minutes; REPEATS=5 takes
# the medians of five.
# `run` needs nvcc, cmake >= 3.25, ninja, a C++20 compiler, and LibTorch with CUDA: XFFL_TORCH_DIR, else that of `python3 -c
# "import torch"`, else that of scripts/bootstrap.sh. Headers and libraries that the system lacks come from --carry DIR
# (default: .carry in the source folder, if it is there). The benchmark needs a Python with torch and transformers
# (XFFL_PYTHON, default python3); without them it is skipped, with the reason.
#
# Exit code: 0 all passed; 77 all compiled, and there is no GPU here; 1 something failed, or the losses of the two sides
# differ; 2 all passed, and an aim was missed (docs/benchmarks.md). Figures go to build/trainer-cuda/gpu_check/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
limit_s=600
build=build/trainer-cuda
results=$build/gpu_check
say() { echo "gpu_check: $*"; }
die() { echo "gpu_check: $*" >&2; exit 1; }

# --- pack -------------------------------------------------------------------------------------------------------------
# Headers, and libraries to be linked statically, as DIR/include and DIR/lib; no shared library travels.
carried=(nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libgloo-dev libssl-dev libzstd-dev)
pack() {
  local dir=$1 package path
  command -v dpkg-query >/dev/null || die "pack: there is no dpkg here: run it on a Debian or Ubuntu machine"
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
  say "packed $(find "$dir" -type f | wc -l) files, $(du -sh "$dir" | cut -f1), into $dir"
}
copy() { install -D -m 644 "$1" "$2"; }

# --- run --------------------------------------------------------------------------------------------------------------
carry=
[ ! -d .carry ] || carry=$PWD/.carry
build_only=
bench=yes
only=
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

check_tools() {
  local tool
  for tool in cmake ninja g++; do command -v $tool >/dev/null || die "$tool is missing"; done
  command -v nvcc >/dev/null || export PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || die "nvcc is missing: put CUDA's tool kit on PATH"
}

# Only the GPU that is here, or an H100's kind: less to compile.
choose_architecture() {
  local capability=9.0
  ! has_gpu || capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
  export CUDAARCHS=${CUDAARCHS:-${capability/./}}
}

configure_and_build() {
  # Another compiler than the project's own may warn of other things.
  local options=(-DXFFL_WARNINGS_ARE_ERRORS=OFF) log=$results/build.log
  if [ -n "$carry" ]; then
    # The system's own come first where they are there.
    export CXXFLAGS="${CXXFLAGS:-} -idirafter $carry/include" CUDAFLAGS="${CUDAFLAGS:-} -Xcompiler=-idirafter,$carry/include"
    options+=(-DCMAKE_PREFIX_PATH="$carry" -DOPENSSL_USE_STATIC_LIBS=TRUE)
  fi
  export CCACHE_DEPEND=1
  if ! { cmake --preset trainer-cuda "${options[@]}" && cmake --build --preset trainer-cuda; } >"$log" 2>&1; then
    grep -E 'error|Error|FAILED' "$log" | head -n 20 >&2 || true
    tail -n 20 "$log" >&2
    die "the build failed: $log"
  fi
}

# Each program once: a process a test would start CUDA some thirty times, seconds each.
run_tests() {
  local program code=0 failed=0
  for program in kernels_gpu_test trainer_gpu_test; do
    code=0
    timeout 150 "$build/bin/$program" --gtest_output="xml:$results/$program.xml" >"$results/$program.log" 2>&1 || code=$?
    grep -E '^\[  (PASSED|FAILED|SKIPPED) ' "$results/$program.log" || true
    [ $code != 0 ] || continue
    failed=1
    say "$program ended with exit code $code$([ $code != 124 ] || echo ': out of time'); the end of $results/$program.log:"
    tail -n 40 "$results/$program.log"
  done
  return $failed
}

# measure NAME SECONDS COMMAND...: if that many seconds are left, and within what is left.
unmeasured=()
missed=()
measure() {
  local name=$1 needed=$2 left=$((limit_s - SECONDS - 5)) code=0
  shift 2
  [ -z "$only" ] || [[ " $only " == *" $name "* ]] || return 0
  if [ -z "$only" ] && [ $left -lt "$needed" ]; then
    say "SKIPPED $name: $left s are left, it takes about $needed"
    unmeasured+=("$name")
    return 0
  fi
  [ -z "$only" ] || left=0  # asked for by name, a bench may take its time
  timeout --kill-after=20 "$left" "$@" 2>&1 | tee "$results/$name.log" || code=$?
  case $code in
    0) ;;
    2) missed+=("$name") ;;
    124 | 137)
      say "SKIPPED the rest of $name: out of time"
      unmeasured+=("$name")
      ;;
    *)
      say "$name ended with exit code $code"
      return 1
      ;;
  esac
}

# run_bench NAME SECONDS OPTIONS...
run_bench() {
  local name=$1 needed=$2
  shift 2
  measure "$name" "$needed" "${XFFL_PYTHON:-python3}" tests/bench/trainer_vs_hf.py --bin "$build/bin" --device cuda \
    --repeats "${REPEATS:-1}" --json "$results/$name.json" "$@"
}

run_benches() {
  local code=0
  if ! "${XFFL_PYTHON:-python3}" -c 'import numpy, torch, transformers' 2>"$results/python.log"; then
    say "SKIPPED the benchmark: ${XFFL_PYTHON:-python3} has no torch, transformers and numpy: $(tail -n 1 "$results/python.log")"
    return 0
  fi
  local large=(--shapes llama-3.1-8b --length 2048 --warm-up 2 --steps 6)
  # The whole model: 8 bytes a parameter on both sides.
  run_bench llama_8b_pure_bf16 120 "${large[@]}" --batch-size 2 --layers 32 --class pure-bf16 --aim ratio=1.15 memory=1 || code=1
  run_bench llama_8b_pure_bf16_batch_4 120 "${large[@]}" --batch-size 4 --layers 32 --class pure-bf16 --aim rate=12000 || code=1
  # HF's float32 weights of all blocks do not fit one GPU: the largest part of which both sides do.
  run_bench llama_8b_fp32_masters 120 "${large[@]}" --batch-size 2 --layers 20 16 --class fp32-masters --aim ratio=1.3 memory=1 || code=1
  run_bench lab 60 --vocab 32000 --class fp32 bf16 || code=1
  run_bench lab_deterministic 60 --vocab 32000 --class bf16 --training '{"deterministic": true}' || code=1
  measure model_io 60 "${XFFL_PYTHON:-python3}" tests/bench/model_io.py --bin "$build/bin" --device cuda --layers 8 --repeats 2 --aim load=2 save=2 || code=1
  return $code
}

run() {
  local failed=()
  check_tools
  find_torch
  choose_architecture
  mkdir -p "$results"
  say "LibTorch at $XFFL_TORCH_DIR; $(nvcc --version | grep -o 'release [0-9.]*'); architecture $CUDAARCHS;" \
    "carried: ${carry:-nothing}"
  configure_and_build
  say "built in $SECONDS s: $(grep -c 'Building CUDA' "$results/build.log" || true) CUDA files"
  "$build/bin/xffl-train" info
  if ! has_gpu; then
    say "SKIPPED the tests and the benchmark: nvidia-smi names no GPU here; everything was compiled and starts"
    exit 77
  fi
  [ -z "$build_only" ] || exit 0
  [ -n "$only" ] || run_tests || failed+=(tests)
  [ -z "$bench" ] || run_benches || failed+=(benchmark)
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
  if [ ${#failed[@]} -gt 0 ]; then
    say "FAILED: ${failed[*]}; $SECONDS s; see $results"
    exit 1
  fi
  [ ${#unmeasured[@]} = 0 ] || say "not measured: ${unmeasured[*]} (run again with --only)"
  say "passed; $SECONDS s; figures in $results"
  if [ ${#missed[@]} -gt 0 ]; then
    say "aims MISSED in: ${missed[*]}"
    exit 2
  fi
}

command=${1:-}
shift || true
case $command in
  pack)
    [ $# = 1 ] || die "expected: pack DIR"
    pack "$1"
    ;;
  run)
    while [ $# -gt 0 ]; do
      case $1 in
        --carry) carry=$(cd "$2" && pwd); shift 2 ;;
        --build-only) build_only=yes; shift ;;
        --no-bench) bench=; shift ;;
        --only)
          case ${2:-} in
            llama_8b_pure_bf16 | llama_8b_fp32_masters | lab | lab_deterministic | model_io | llama_8b_pure_bf16_batch_4) only="$only $2"; shift 2 ;;
            *) die "--only: expected the name of a bench (see the head of this file), found '${2:-}'" ;;
          esac
          ;;
        *) die "unknown option '$1'" ;;
      esac
    done
    run
    ;;
  *) die "expected: pack DIR, or run [--carry DIR] [--build-only] [--no-bench]" ;;
esac
