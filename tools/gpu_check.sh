#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds, tests and measures on a machine with GPUs, in one call:  tools/gpu_check.sh [step...]
#
#   build         the package with kernels, and the C++ tests where GoogleTest is there
#   tests         the C++ tests that are about GPUs, on the machine's own; tests.md has a table
#   python        tests of the package with torch
#   doctor        every kind of memory on every path, bytes checked
#   latency       messages, puts and gets against the copy engines and NCCL
#   bandwidth     16 MiB and 1 GiB blocking, one way and both ways at once
#   kinds         64 MiB of every kind of memory
#   stream        messages and puts in the order of a stream and in graphs, against bare kernels,
#                 copy engines and NCCL
#   kernel        messages and puts within kernels, against bare lines
#   dual          flows within kernels, 128 KiB to 1 GiB, one way and both ways at once
#   patterns      exchanges among ranks, a rank a GPU, launched and in graphs, against NCCL
#   relay         64 KiB and 16 MiB through the host between the GPUs, and from a GPU to private and
#                 to shared host memory, also batches
#   worker        small messages, puts and gets with ONEHOP_WORKER=1, also from Python
#   setup, batch, matrix, interpreter (from Python)
#   torch, weights   torch.distributed's messages, and weights, against NCCL
#   nixl          blocks by NIXL's Python API
#   soak          SOAK_SECONDS (60) of random traffic of GPU memory among 8 processes, some of them killed
#   sanitizer     stream and kernel under compute-sanitizer: memory, shared memory, barriers
#
# Without arguments all steps but sanitizer and soak. Needs cmake, ninja, g++, nanobind, and no
# network; GoogleTest is installed, or its sources are in GOOGLETEST (build/googletest). A step that
# hangs is ended at its own limit, and all steps after SECONDS_IN_ALL (170); the report names the
# omitted ones. Files in OUT (build/gpu_check):
#
#   report.txt    provenance, each step's time, tables     rows.jsonl     rows of the benchmarks
#   doctor.jsonl  the doctor's findings                    steps.jsonl    steps: seconds, status
#   log.txt       the steps' output
#
# COMMIT: provenance where there is no git. JOBS: of the build (all cores). GPU_TEST_TARGET,
# GPU_TESTS: the C++ tests to run (conformance_tests), and their filter; SLICES (8) run
# concurrently. OUT/tests_left.txt has the filter of the tests that did not run in time.
# Exits with 1 if a step failed or was omitted.
set -uo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${OUT:-build/gpu_check}")
work=$(realpath -m build/gpu_check_build)
jobs=${JOBS:-$(nproc)}
python=${PYTHON:-python3}
deadline=$((SECONDS + ${SECONDS_IN_ALL:-170}))
failed=0
mkdir -p "$out" "$work/rows"
rm -f "$out"/{report.txt,rows.jsonl,doctor.jsonl,steps.jsonl,log.txt}
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

say() { echo "$*" | tee -a "$out/report.txt"; }

# step <name> <limit in seconds> <command...>: its output goes to the log, its tables to the report.
step() {
  local name=$1 limit=$2 left=$((deadline - SECONDS)) begin status text
  shift 2
  if [ "$left" -lt 3 ]; then
    say "== $name: left out, no time is left"
    echo "{\"step\": \"$name\", \"status\": \"left out\"}" >>"$out/steps.jsonl"
    failed=1
    return 1
  fi
  [ "$limit" -le "$left" ] || limit=$left
  begin=$(date +%s.%N)
  # A session of its own, so that its children end with it.
  timeout --kill-after=3 "$limit" "$@" >"$work/step.txt" 2>&1 </dev/null
  status=$?
  text=$("$python" -c "import time; print(f'{time.time() - $begin:.1f}')")
  { echo "==== $name: $*"; cat "$work/step.txt"; } >>"$out/log.txt"
  if [ $status -eq 0 ]; then
    say "== $name: ok in $text s"
  elif [ $status -eq 124 ] || [ $status -eq 137 ]; then
    say "== $name: FAILED, ended at its limit of $limit s"
  else
    say "== $name: FAILED with $status in $text s"
  fi
  if [ $status -ne 0 ]; then
    failed=1
    tail -n 12 "$work/step.txt" | cut -c1-300 | tee -a "$out/report.txt"
  fi
  echo "{\"step\": \"$name\", \"status\": $status, \"seconds\": $text}" >>"$out/steps.jsonl"
  return $status
}

onehop() { "$python" -m onehop.cli "$@"; }
export -f onehop
export python

# rows <name> <limit> <arguments of onehop bench...>
rows() {
  local name=$1 limit=$2
  shift 2
  rm -f "$work/rows/$name.jsonl"
  step "$name" "$limit" "$python" -m onehop.cli bench "$@" --json "$work/rows/$name.jsonl"
  grep -v '^machine ' "$work/step.txt" >>"$out/report.txt"
  cat "$work/rows/$name.jsonl" >>"$out/rows.jsonl" 2>/dev/null
}

provenance() {
  echo "date $(date -u +%FT%TZ)"
  echo "commit ${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}"
  echo "kernel $(uname -r), $(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
  g++ --version | head -n 1
  cmake --version | head -n 1
  (nvcc --version || /usr/local/cuda/bin/nvcc --version) 2>/dev/null | grep release
  "$python" - <<'P'
import importlib.metadata as m, platform
names = ("nanobind", "torch", "numpy", "cupy-cuda13x", "nvidia-nccl-cu13")
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return "none"
print("python", platform.python_version(), *(f"{name} {version(name)}," for name in names))
P
  nvidia-smi --query-gpu=index,name,uuid,pci.bus_id,driver_version,memory.total,clocks.sm,power.limit \
    --format=csv
  nvidia-smi topo -m | head -n 12
}

configure_and_build() {
  local tests=OFF sources=${GOOGLETEST:-build/googletest}
  local architecture
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0 | tr -d .) || return 1
  local options=(-S . -G Ninja -DCMAKE_BUILD_TYPE=Release -DONEHOP_CUDA=ON
    -DONEHOP_CUDA_ARCHITECTURES="$architecture")
  if [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ]; then
    tests=ON
  elif [ -e "$sources/CMakeLists.txt" ]; then
    cmake -S "$sources" -G Ninja -B "$work/googletest" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_INSTALL_PREFIX="$work/prefix" >/dev/null &&
      cmake --build "$work/googletest" -j "$jobs" --target install >/dev/null || return 1
    tests=ON
    options+=(-DCMAKE_PREFIX_PATH="$work/prefix")
  fi
  cmake "${options[@]}" -B "$work/package" -DONEHOP_PYTHON=ON \
    -DPython_EXECUTABLE="$(command -v "$python")" || return 1
  # Both in one run: separately, each would wait for its slowest file.
  if [ $tests = ON ]; then
    (cmake "${options[@]}" -B "$work/tests" -DONEHOP_TESTS=ON &&
      cmake --build "$work/tests" -j "$jobs" --target ${GPU_TEST_TARGET:-conformance_tests}) >"$work/tests.txt" 2>&1 &
  else
    echo "no GoogleTest here: the C++ tests are not built"
  fi
  cmake --build "$work/package" -j "$jobs" || return 1
  rm -rf "$work/site"
  cmake --install "$work/package" --prefix "$work/site" || return 1
  cp -r python/onehop "$work/site/" || return 1
  wait
  [ $tests = OFF ] || tail -n 20 "$work/tests.txt"
  onehop info
}
export -f provenance configure_and_build
export work jobs

# The filter of ctest: the whole contract runs over one link kind of each way.
gpu_filter() {
  ctest --test-dir "$work/tests" --show-only=json-v1 | "$python" -c '
import json, sys
tests = {test["name"]: test["command"] for test in json.load(sys.stdin)["tests"]}
print(tests["gpu_conformance_tests_0"][-1].partition("=")[2])'
}

# run_slices <seconds>
run_slices() {
  local binary=$work/tests/tests/${GPU_TEST_TARGET:-conformance_tests} failed=0
  local filter=${GPU_TESTS:-}
  rm -rf "$work/results"
  [ -n "$filter" ] || filter=$(gpu_filter) || return 1
  "$python" tools/gpu_tests.py "$binary" "$filter" "$work/results" "$1" || failed=1
  cp "$work/results/left.txt" "$out/tests_left.txt"
  "$python" tools/gpu_test_table.py "$work/results" >"$out/tests.md" || failed=1
  tail -n 3 "$out/tests.md"
  return $failed
}
export -f run_slices gpu_filter
export out

run_tests() {
  if [ ! -x "$work/tests/tests/${GPU_TEST_TARGET:-conformance_tests}" ]; then
    say "== tests: not built here"
    return
  fi
  local seconds=$((deadline - SECONDS - 10)) most=${TESTS_SECONDS:-400}
  step tests "$most" bash -c "run_slices $((seconds < most - 10 ? seconds : most - 10))"
}

# The worker is not started while other processes use the GPU.
run_python() {
  local worker=tests/python/test_torch_gpu_worker.py
  step python-worker 60 "$python" -m pytest -q -p no:cacheprovider $worker
  step python 240 "$python" -m pytest -q -p no:cacheprovider --deselect=$worker tests/python/*torch*.py
}

run_doctor() {
  step doctor 60 "$python" -m onehop.cli doctor --json "$out/doctor.jsonl"
  cat "$work/step.txt" >>"$out/report.txt"
}

run_latency() {
  local modes=(--mode sendrecv --mode put --mode get)
  local vs=memcpy,nccl
  rows latency 40 latency --memory cuda --sizes 1K,4K,16K,64K,256K,1M --iters 2000 --vs $vs \
    "${modes[@]}" --mode event --mode put_signal
  rows latency-large 30 latency --memory cuda --sizes 4M,16M,64M,256M --iters 100 --vs $vs "${modes[@]}"
}

run_bandwidth() {
  local one=(--memory cuda --window 1)
  local modes=(--mode sendrecv --mode put --mode get) vs=memcpy,nccl,nccl-registered
  rows bandwidth-16M 25 bandwidth "${one[@]}" --sizes 16M --iters 500 --vs $vs "${modes[@]}"
  rows bandwidth 45 bandwidth "${one[@]}" --sizes 1G --iters 30 --vs $vs "${modes[@]}"
  rows both 35 bandwidth "${one[@]}" --sizes 1G --iters 20 --both --vs $vs
  rows windowed 20 bandwidth --memory cuda --sizes 64K,1M,16M --vs memcpy
}

# One limit for both: the second gets the remaining time.
run_stream() {
  local begin=$SECONDS
  rows stream 50 latency --memory cuda --sizes 8,1K,4K,16K,64K,256K,512K,1M,4M --iters 2000 \
    --vs floor,nccl,nccl-registered --mode stream --mode graph
  rows stream-bandwidth $((110 - SECONDS + begin)) bandwidth --memory cuda --sizes 1M,16M,64M,1G \
    --iters 60 --vs memcpy,nccl,nccl-registered --mode stream --mode stream_put --mode graph_put
}

run_kernel() {
  local begin=$SECONDS
  rows kernel 40 latency --memory cuda --sizes 8,128,1K,4K,16K,64K --iters 10000 --vs floor \
    --mode kernel
  rows kernel-put $((55 - SECONDS + begin)) bandwidth --memory cuda --sizes 16M,1G --iters 100 \
    --vs memcpy --mode kernel_put
}

# One group per direction; either both sides poll their own memory, or the sender polls the
# receiver's.
run_dual() {
  local flow=(bandwidth --memory cuda --mode kernel --groups 512,cluster)
  rows dual 30 "${flow[@]}" --sizes 128K,1M,8M,64M --iters 40
  rows dual-both 30 "${flow[@]}" --sizes 128K,1M,8M,64M --iters 40 --both
  rows dual-large 60 "${flow[@]}" --sizes 512M,1G --iters 10
  rows dual-large-both 60 "${flow[@]}" --sizes 512M,1G --iters 10 --both
}

# sanitized <tool> <arguments of onehop bench latency...>
sanitized() {
  local tool=$1 sanitizer
  shift
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
  step "$tool" 40 "${sanitizer:-compute-sanitizer}" --tool "$tool" --target-processes all \
    --error-exitcode 9 "$python" -m onehop.cli bench latency --memory cuda --iters 60 "$@"
  grep -E 'SUMMARY' "$work/step.txt" >>"$out/report.txt"
}

# With everything that synccheck runs, the other two tools would take more than a minute.
run_sanitizer() {
  sanitized memcheck --sizes 8,64K,1M --mode stream --mode graph
  sanitized memcheck --sizes 8,64K --mode kernel
  sanitized racecheck --sizes 8 --mode stream
  sanitized racecheck --sizes 8,64K --mode kernel
  sanitized synccheck --sizes 8,4K,64K,1M --mode stream --mode graph --mode kernel
}

run_kinds() {
  for kind in cuda-vmm cuda-pool cuda-async; do
    rows "$kind" 20 bandwidth --memory "$kind" --window 1 --sizes 64M --iters 100 --vs memcpy
    rows "$kind-latency" 20 latency --memory "$kind" --sizes 1K,64K,1M --iters 1000
  done
}

run_step() {
  case $1 in
    build) step build 180 bash -c configure_and_build ;;
    tests) run_tests ;;
    python) run_python ;;
    doctor) run_doctor ;;
    latency) run_latency ;;
    bandwidth) run_bandwidth ;;
    kinds) run_kinds ;;
    stream) run_stream ;;
    kernel) run_kernel ;;
    dual) run_dual ;;
    sanitizer) run_sanitizer ;;
    patterns) rows patterns 80 patterns --sizes 1K,64K,1M,16M --iters 500 --vs nccl,nccl-registered ;;
    relay)
      ONEHOP_CUDA_IPC=off rows relay 20 latency --memory cuda --sizes 64K,16M --iters 200
      rows relay-host 20 latency --memory cuda,host --sizes 64K,16M --iters 200
      local shared=(--memory cuda,host --buffers shared)
      rows shared-host 20 latency "${shared[@]}" --sizes 64K,16M --iters 200
      rows shared-host-batch 20 batch "${shared[@]}" --sizes 71K --blocks 256 --iters 100
      ;;
    setup) rows setup 20 setup --memory cuda --iters 50 ;;
    batch)
      for shape in 4K,32K:1024 512K:128 16K:8192 4K:2; do
        rows "batch-$shape" 20 batch --memory cuda --sizes "${shape%:*}" --blocks "${shape#*:}" \
          --mode put --mode get --mode put_prepared --mode get_prepared \
          --mode put_stream --mode get_stream --mode put_graph --mode get_graph
      done
      ;;
    worker)
      ONEHOP_WORKER=1 rows worker 30 latency --memory cuda --sizes 16,1K,4K,16K,64K --iters 5000 \
        --mode sendrecv --mode event --mode put --mode get --mode put_signal
      ONEHOP_WORKER=1 rows worker-interpreter 20 latency --api python --memory cuda --sizes 16,4K \
        --iters 5000
      ;;
    matrix) rows matrix 40 matrix --sizes 1K,64M --iters 50 ;;
    interpreter)
      rows interpreter 30 latency --api python --memory cuda --sizes 1K,64K --iters 2000
      ;;
    torch) rows torch 60 torch --memory cuda --vs nccl ;;
    weights) rows weights 60 weights --memory cuda --vs nccl --engines 1 --rounds 3 ;;
    soak) step soak 150 "$python" tools/soak.py --seconds "${SOAK_SECONDS:-60}" --transports cuda --processes 8 ;;
    nixl) rows nixl 60 nixl --memory cuda --rounds 3 --mode write --mode read ;;
    *)
      echo "tools/gpu_check.sh: no step \"$1\"" >&2
      exit 2
      ;;
  esac
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] ||
  steps=(build doctor latency worker stream kernel dual patterns bandwidth setup kinds relay batch interpreter matrix torch weights nixl tests python)
step provenance 15 bash -c provenance
cat "$work/step.txt" >>"$out/report.txt"
for name in "${steps[@]}"; do
  run_step "$name"
  # Without the package there is nothing to test.
  [ "$name" != build ] || [ -d "$work/site/onehop" ] || break
done
say "== all: $SECONDS s, $([ $failed = 0 ] && echo ok || echo FAILED); $out/report.txt"
exit $failed
