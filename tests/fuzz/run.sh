#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzzer of a build for some seconds:  tests/fuzz/run.sh BUILD [SECONDS] [NAME...]
#
# As many at once as there are processors: a fuzzer computes on one of them.
#
# What a fuzzer finds stays in BUILD/findings: the same fuzzer with that file as its only argument
# shows it again. FUZZ_SECONDS: the seconds where none are given (60).
set -euo pipefail

build=${1:?the build folder, made with -DONEHOP_FUZZ=ON}
seconds=${2:-${FUZZ_SECONDS:-60}}
names=("${@:3}")
if [ ${#names[@]} -eq 0 ]; then
  for program in "$build"/tests/fuzz/fuzz_*; do
    [ -x "$program" ] && [ -f "$program" ] && names+=("${program##*/fuzz_}")
  done
fi
[ ${#names[@]} -gt 0 ] || { echo "no fuzzer in $build" >&2; exit 1; }

scratch=$(mktemp -d)
declare -A running=() # process: the fuzzer's name; each is a process group, which ends with this script
trap 'for group in "${!running[@]}"; do kill -- "-$group" 2>/dev/null || true; done; rm -rf "$scratch"' EXIT
findings=$build/findings
mkdir -p "$findings"
export TMPDIR=$scratch ONEHOP_LOG=off

# fuzz <name>: prints how it ended; its log where it found something.
fuzz() {
  local name=$1 begin=$SECONDS runs
  local corpus=$scratch/$name log=$scratch/$name.log
  mkdir -p "$corpus"
  if "$build/tests/fuzz/fuzz_$name" "$corpus" -max_total_time="$seconds" -timeout=25 \
    -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
    -artifact_prefix="$findings/$name-" >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz_$name: ${runs:-?} inputs in $((SECONDS - begin)) s, nothing found"
  else
    tail -n 60 "$log"
    echo "fuzz_$name failed"
    return 1
  fi
}

failed=()
# await_one: returns once a fuzzer has ended.
await_one() {
  local process name
  if wait -n -p process "${!running[@]}"; then
    unset "running[$process]"
  else
    name=${running[$process]}
    unset "running[$process]"
    failed+=("$name")
  fi
}
for name in "${names[@]}"; do
  [ ${#running[@]} -lt "$(nproc)" ] || await_one
  set -m
  fuzz "$name" &
  set +m
  running[$!]=$name
done
while [ ${#running[@]} -gt 0 ]; do await_one; done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
