#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two processes as in two containers of one host: each has its own network, process ids and IPC
# namespace; they share a folder. Needs root, or a kernel that allows user namespaces.
#
#   examples/containers.sh [python]
set -euo pipefail
cd "$(dirname "$0")"
python=${1:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ONEHOP_SOCKET_DIR=$folder

in_container() { unshare --user --map-current-user --net --ipc --pid --fork "$@"; }
[ "$(id -u)" != 0 ] || in_container() { unshare --net --ipc --pid --fork "$@"; }

in_container "$python" shared_folder.py "$folder" accept &
accepting=$!
in_container "$python" shared_folder.py "$folder" connect &
wait $!
wait $accepting
