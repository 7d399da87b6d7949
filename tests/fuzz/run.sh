#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzzer of a build for some seconds:  tests/fuzz/run.sh BUILD [SECONDS] [NAME...]
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
trap 'rm -rf "$scratch"' EXIT
findings=$build/findings
mkdir -p "$findings"
export TMPDIR=$scratch ONEHOP_LOG=off

failed=()
for name in "${names[@]}"; do
  corpus=$scratch/$name
  mkdir -p "$corpus"
  begin=$SECONDS
  if "$build/tests/fuzz/fuzz_$name" "$corpus" -max_total_time="$seconds" -timeout=25 \
    -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
    -artifact_prefix="$findings/$name-" >"$scratch/$name.log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/$name.log")
    echo "fuzz_$name: ${runs:-?} inputs in $((SECONDS - begin)) s, nothing found"
  else
    failed+=("$name")
    tail -n 60 "$scratch/$name.log"
    echo "fuzz_$name failed"
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
