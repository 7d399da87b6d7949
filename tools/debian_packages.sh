#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The packages of Debian and Ubuntu that the lanes of tools/test.sh use:
#
#   tools/debian_packages.sh [--install] lane...
#
# Prints which are missing and how to get them; fails if a lane cannot run without. --install
# installs them first.
# PYTHON, CXX and CLANGXX have the same meaning as for tools/test.sh.
set -euo pipefail

install=
if [ "${1:-}" = --install ]; then
  install=yes
  shift
fi
lanes=" $* "
python=${PYTHON:-python3}
compiler=${CXX:-c++}
root=()
[ "$(id -u)" = 0 ] || root=(sudo)

# for_lanes <lane...>: whether any of them was requested.
for_lanes() {
  local lane
  for lane in "$@"; do [[ $lanes != *" $lane "* ]] || return 0; done
  return 1
}

has_command() { command -v "$1" >/dev/null; }
has_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }
has_clang() { [ -n "${CLANGXX:-}" ] || compgen -c clang++ | grep -E '^clang\+\+(-[0-9]+)?$' >/dev/null; }
has_python() { "$python" -c "$1" 2>/dev/null; }

# The newest clang in the package lists, with the sanitizers' libraries.
clang_packages() {
  local version
  for version in 19 18 17 16 15 14; do
    if apt-cache show "clang-$version" >/dev/null 2>&1; then
      echo "clang-$version libclang-rt-$version-dev"
      return
    fi
  done
  echo clang
}

# Sets needed, useful (without these a lane does less or is omitted), and less, which describes the
# loss.
look() {
  needed=() useful=() less=()
  if for_lanes quick lint tidy cpp address thread fuzz python integrations; then
    has_command "$compiler" || needed+=(g++)
  fi
  if for_lanes quick tidy cpp address thread fuzz; then
    has_command ninja || needed+=(ninja-build)
    has_header gtest/gtest.h || needed+=(libgtest-dev libgmock-dev)
  fi
  if for_lanes quick tidy cpp address thread fuzz python; then
    has_command cmake || needed+=(cmake)
  fi
  if for_lanes quick lint tidy; then
    has_command git || needed+=(git)
  fi
  has_python 'import ensurepip, venv' || needed+=(python3-venv)
  if for_lanes lint tidy python integrations; then
    has_python 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' || needed+=(python3-dev)
  fi
  if for_lanes python; then
    has_command pkg-config || needed+=(pkg-config)
    has_command ip || { useful+=(iproute2); less+=("no tests between hosts"); }
  fi
  if for_lanes cpp address thread python; then
    has_header ucp/api/ucp.h || { useful+=(libucx-dev); less+=("no tests of the system's UCX"); }
  fi
  if for_lanes address thread fuzz && ! has_clang; then
    useful+=($(clang_packages))
    less+=("sanitizers by gcc, no fuzzers")
  fi
  if for_lanes models; then
    has_command spin || { useful+=(spin); less+=("no models"); }
  fi
}

look
if [ -n "$install" ] && [ $((${#needed[@]} + ${#useful[@]})) -gt 0 ]; then
  has_command apt-get || { echo "tools/test.sh: --install needs apt-get, which is not here" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  "${root[@]}" apt-get update -qq
  look # clang by the new lists
  get=("${root[@]}" apt-get install -y -qq --no-install-recommends)
  [ ${#needed[@]} = 0 ] || "${get[@]}" "${needed[@]}"
  for package in "${useful[@]}"; do "${get[@]}" "$package" || true; done # not every release has each
  look
fi

all=("${needed[@]}" "${useful[@]}")
remedy="apt-get install --no-install-recommends ${all[*]}, or run tools/test.sh --install"
if [ ${#needed[@]} -gt 0 ]; then
  echo "tools/test.sh: these packages of Debian or Ubuntu are missing: ${needed[*]}. $remedy" >&2
  exit 1
fi
if [ ${#useful[@]} -gt 0 ]; then
  printf -v reasons '%s; ' "${less[@]}"
  echo "==== without ${useful[*]}: ${reasons%; }. $remedy"
fi
if ! has_python 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "tools/test.sh: $("$python" --version) is too old, 3.10 or newer is needed: name one in PYTHON" >&2
  exit 1
fi
if has_command "$compiler" && ! "$compiler" -E -x c++ - >/dev/null 2>&1 <<'END'
#if defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 12
#error too old
#endif
END
then
  echo "tools/test.sh: $("$compiler" --version | head -n 1) is too old, g++ 12 or clang 14 or newer is needed:" \
    "name it in CC and CXX (apt-get install g++-12; CC=gcc-12 CXX=g++-12 tools/test.sh)" >&2
  exit 1
fi
