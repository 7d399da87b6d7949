# SPDX-License-Identifier: Apache-2.0
"""The transports between the soak's processes. Each has its own processes."""

from __future__ import annotations

from dataclasses import dataclass

SOCKET = {
    "ONEHOP_TRANSPORT": "socket",
    "ONEHOP_SEGMENT": "off",
    "ONEHOP_UCX_LIBRARY": "off",
    "ONEHOP_LOG": "error",
}
UCX = {"ONEHOP_TRANSPORT": "ucx", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}


@dataclass(frozen=True)
class Transport:
    """The transport of a group of processes, and its memory."""

    path: str  # as in Peer.info()
    environment: dict[str, str]
    gpus: bool = False
    squeezed: bool = True  # whether descriptors may run short


TRANSPORTS = {
    "shm": Transport("shm", {}),
    "socket": Transport("socket", SOCKET),
    # UCX 1.13 and 1.22 abort the process in ucp_worker_progress() when descriptors run out.
    "ucx": Transport("ucx", UCX, squeezed=False),
    # CUDA's driver needs descriptors of its own.
    "cuda": Transport("shm", {}, gpus=True, squeezed=False),
    "cuda_relay": Transport("shm", {"ONEHOP_CUDA_IPC": "off"}, gpus=True, squeezed=False),
    "cuda_ucx": Transport("ucx", UCX, gpus=True, squeezed=False),
}
