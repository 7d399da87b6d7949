#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds and runs the tests, lane by lane:  tools/test.sh [--install] [lane...]
#
#   lint     formatting, layers, ruff, mypy            thread   the same tests under ThreadSanitizer
#   cpp      C++ unit and conformance tests            fuzz     every parser under libFuzzer
#   address  the same under ASan and UBSan             python   the package, in an environment of its own
#   models   the protocols' models and their mutants under spin
#   docs     the documentation's site, links and anchors checked, and the tests of what makes it
#
#   integrations  vLLM, SGLang, Ray and programs of NIXL over onehop.nixl, SGLang over onehop.mooncake, vLLM fed by
#                 onehop.weights, torch over onehop.torch; only when named, for it installs some 4 GB
#   quick    for the inner loop: formatting, layers, ruff, unit tests, a smoke of the contract; no package
#   tidy     clang-tidy over the sources; only when named, for it takes minutes
#
# Without arguments all of them but integrations, quick and tidy; the builds of address and thread run behind the tests
# before them. Packages of Debian or Ubuntu that are missing are named at once; --install gets them, as root or by sudo
# (tools/debian_packages.sh has the list). Needs cmake, ninja, GoogleTest and python3; clang for
# the lanes address, thread and fuzz (CLANGXX names one), else gcc does the first two; spin for models; root and
# the ip command for the python lane's tests between hosts, which are skipped without, and listed.
# FUZZ_SECONDS: seconds per fuzzer (60). TEST_DIR: where things are built (build/test). INTEGRATIONS_VENV: the
# environment of the lane integrations, kept between runs (TEST_DIR/integrations-venv).
set -euo pipefail
cd "$(dirname "$0")/.."

build=${TEST_DIR:-build/test}
jobs=$(nproc)
python=${PYTHON:-python3}
install=()
if [ "${1:-}" = --install ]; then
  install=(--install)
  shift
fi
lanes=("$@")
[ ${#lanes[@]} -gt 0 ] || lanes=(lint docs models cpp address python thread fuzz)
skipped=()

find_clang() {
  local name
  for name in "${CLANGXX:-}" clang++ clang++-{19,18,17,16,15,14}; do
    if [ -n "$name" ] && command -v "$name" >/dev/null; then
      echo "$name"
      return
    fi
  done
}

# configure <directory> <compiler or ""> <options...>
configure() {
  local directory=$1 compiler=$2
  shift 2
  local options=(-G Ninja -DONEHOP_WERROR=ON -DONEHOP_CUDA=OFF "$@")
  if [ -n "$compiler" ]; then
    options+=("-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_C_COMPILER=${compiler/clang++/clang}")
  fi
  cmake -S . -B "$build/$directory" "${options[@]}" >/dev/null
}

environment() {
  if [ ! -x "$build/venv/bin/python" ]; then
    "$python" -m venv "$build/venv"
    "$build/venv/bin/pip" install --quiet --upgrade pip
  fi
}

# Installs the package into an environment of its own, from the wheel of the sdist, as releases are
# made. Built once for all lanes.
package() {
  [ -z "${packaged:-}" ] || return 0
  environment
  local bin=$build/venv/bin made=$build/package
  "$bin/pip" install --quiet --group lint --group package
  rm -rf "$made"
  mkdir -p "$made/source"
  "$bin/python" -m build --quiet --sdist --no-isolation --skip-dependency-check --outdir "$made" .
  tar -xzf "$made"/onehop-*.tar.gz --strip-components=1 -C "$made/source"
  # Kernels for one architecture, as no test runs them: for the newest, as test_device_ptx.py compiles
  # for sm_80 and sm_90.
  "$bin/pip" wheel --quiet --no-deps --wheel-dir "$made" \
    -C cmake.define.ONEHOP_CUDA_ARCHITECTURES=120 "$made/source"
  SDIST=$(realpath "$made"/onehop-*.tar.gz) WHEEL=$(realpath "$made"/onehop-*.whl)
  export SDIST WHEEL
  "$bin/pip" uninstall --quiet --yes onehop
  "$bin/pip" install --quiet "$WHEEL[test]"
  packaged=yes
}

# run_tests <directory> <options of ctest...>; prints the slowest cases. The last -j applies.
run_tests() {
  local directory=$1
  shift
  rm -rf "$build/$directory/times"
  ${launcher:-} ctest --test-dir "$build/$directory" -j "$jobs" --output-on-failure "$@"
  "$python" tools/slowest_tests.py "$build/$directory/times"
}

format_and_layers() {
  local bin=$build/venv/bin
  git ls-files -- '*.h' '*.hpp' '*.cc' | xargs "$bin/clang-format" --dry-run --Werror
  "$bin/python" tools/check_layers.py
  "$bin/ruff" check bench examples python tests tools
  "$bin/ruff" format --check bench examples python tests tools
}

lane_quick() {
  local ccache
  ccache=$(command -v ccache || true)
  configure_tests quick "" -O1 \
    ${ccache:+"-DCMAKE_CXX_COMPILER_LAUNCHER=$ccache"}
  cmake --build "$build/quick" -j "$jobs"
  run_tests quick -L quick
  environment
  "$build/venv/bin/pip" install --quiet --group format
  format_and_layers
}

lane_lint() {
  package
  local bin=$build/venv/bin
  format_and_layers
  "$bin/mypy"
  # Type-checks typed programs for each Python version.
  for version in 3.10 3.11 3.12 3.13; do
    "$bin/mypy" --python-version "$version" tests/python/typing_sample.py
  done
}

lane_docs() {
  environment
  local bin=$build/venv/bin
  "$bin/pip" install --quiet --group docs
  # Without --quiet, so that warnings are errors. The variable suppresses an advertisement.
  NO_MKDOCS_2_WARNING=1 PATH="$bin:$PATH" "$bin/mkdocs" build --strict --site-dir "$build/site"
  "$bin/python" -m pytest tests/tools/test_docs_*.py
}

lane_tidy() {
  package
  configure tidy "$clang" -DONEHOP_UNITY=OFF
  git ls-files -- 'src/*.cc' |
    xargs -P "$jobs" -n 4 "$build/venv/bin/clang-tidy" -p "$build/tidy" --quiet
}

# configure_tests <directory> <compiler or ""> <flags> <options...>
configure_tests() {
  configure "$1" "$2" -DONEHOP_TESTS=ON -DONEHOP_PCH=ON \
    "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$3 -DNDEBUG" "${@:4}"
}

build_cpp() {
  # Without debug symbols, compiling takes a quarter of the time. The lane python tests the library as it
  # is released, at -O3.
  local flags=-O1
  # KiB of heap before gcc first collects garbage: a sixth of its time.
  "${CXX:-c++}" --version | grep -q clang || flags+=" --param=ggc-min-heapsize=1048576"
  configure_tests cpp "" "$flags"
  cmake --build "$build/cpp" -j "$jobs"
}

# Sanitizers report functions and lines, but no variables. Tests and fuzzers share a build, so that
# the core is compiled once.
build_address() {
  configure_tests address "$clang" "-O1 -g1" ${clang:+-DONEHOP_FUZZ=ON} -DONEHOP_SANITIZE=address,undefined
  cmake --build "$build/address" -j "$jobs"
}

build_thread() {
  configure_tests thread "$clang" "-O1 -g1" -DONEHOP_SANITIZE=thread
  cmake --build "$build/thread" -j "$jobs"
}

# Builds by lane: each has a process group, and "done" once it has succeeded.
declare -A builds=()
trap 'for group in "${builds[@]#done}"; do [ -z "$group" ] || kill -- "-$group" 2>/dev/null || true; done' EXIT

# start_build <lane>: in the background, at the lowest priority.
start_build() {
  [ -z "${builds[$1]:-}" ] || return 0
  mkdir -p "$build"
  set -m
  (renice -n 19 -p "$BASHPID" >/dev/null; "build_$1") >"$build/$1.log" 2>&1 &
  set +m
  builds[$1]=$!
}

# start_next_build: starts the build of the first lane whose build has not begun.
start_next_build() {
  local lane
  for lane in "${lanes[@]}"; do
    if [ -z "${builds[$lane]:-}" ] && declare -F "build_$lane" >/dev/null; then
      start_build "$lane"
      return
    fi
  done
}

# finish_build <lane>: waits for it, and starts the next lane's build beside the tests that follow,
# which mostly wait for other processes.
finish_build() {
  start_build "$1"
  if [ "${builds[$1]}" != done ]; then
    wait "${builds[$1]}" || { cat "$build/$1.log"; exit 1; }
    builds[$1]=done
  fi
  start_next_build
}

lane_cpp() {
  finish_build cpp
  run_tests cpp -j $((jobs * 2))
}

lane_address() {
  finish_build address
  run_tests address -j $((jobs * 2))
}

lane_thread() {
  finish_build thread
  # ThreadSanitizer does not support every random layout of the address space. By default it lets each
  # process sleep for a second before it exits; 10 ms still show races there.
  TSAN_OPTIONS="atexit_sleep_ms=10 ${TSAN_OPTIONS:-}" launcher="setarch -R" run_tests thread -j $((jobs * 2))
}

lane_fuzz() {
  if [ -z "$clang" ]; then
    skipped+=("fuzz: libFuzzer needs clang")
    return
  fi
  finish_build address
  tests/fuzz/run.sh "$build/address" "${FUZZ_SECONDS:-60}"
}

lane_models() {
  if ! command -v spin >/dev/null; then
    skipped+=("models: spin is not installed")
    return
  fi
  "$python" tools/check_models.py
}

lane_python() {
  package
  # Not while another build of that folder runs.
  [ -z "${builds[cpp]:-}" ] || finish_build cpp
  # Uses the fake driver of the lane cpp, if it was built; otherwise the tests compile it.
  if [ -e "$build/cpp/tests/fake_cuda/libonehop_fake_cuda.so" ]; then
    cmake --build "$build/cpp" --target onehop_fake_cuda
    FAKE_CUDA_LIBRARY=$(realpath "$build/cpp/tests/fake_cuda/libonehop_fake_cuda.so")
    export FAKE_CUDA_LIBRARY
  fi
  # Tests mostly wait for processes. The folder's name is short, since socket paths have at most 107
  # bytes. The folder is kept if a test fails.
  local folder
  folder=$(mktemp -d /tmp/oh.XXXXXX)
  "$build/venv/bin/python" -m pytest --durations=10 -n $((jobs + 1)) --dist worksteal --basetemp="$folder/t"
  rm -rf "$folder"
}

lane_integrations() {
  local venv=${INTEGRATIONS_VENV:-$build/integrations-venv} with why
  # vLLM's torch for CPUs is not built for every Python.
  with=$(command -v python3.11 || echo "$python")
  if ! why=$(tools/integrations_venv.sh "$venv" "$with"); then
    skipped+=("integrations: $why")
    return
  fi
  "$venv/bin/pip" install --quiet --no-deps --force-reinstall -C cmake.define.ONEHOP_CUDA=OFF .
  "$venv/bin/python" -m pytest --durations=10 tests/integrations
}

for lane in "${lanes[@]}"; do
  declare -F "lane_$lane" >/dev/null || {
    echo "tools/test.sh: no lane \"$lane\"; there are quick, lint, docs, tidy, models, cpp, address, thread, fuzz, python, integrations" >&2
    exit 2
  }
done
tools/debian_packages.sh "${install[@]}" "${lanes[@]}"
clang=$(find_clang)
start_next_build  # beside lint, docs and models
for lane in "${lanes[@]}"; do
  echo "==== $lane"
  begin=$SECONDS
  "lane_$lane"
  echo "==== $lane passed in $((SECONDS - begin)) s"
done
for reason in "${skipped[@]}"; do echo "==== skipped: $reason"; done
