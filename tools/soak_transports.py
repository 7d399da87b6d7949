# SPDX-License-Identifier: Apache-2.0
"""The ways in which the soak links processes. Each has processes of its own."""

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
    """How the processes of a group are linked, and with which memory."""

    path: str  # as Peer.info() has it
    environment: dict[str, str]
    gpus: bool = False
    squeezed: bool = True  # of descriptors


TRANSPORTS = {
    "shm": Transport("shm", {}),
    "socket": Transport("socket", SOCKET),
    # UCX 1.13 and 1.22 abort the process in ucp_worker_progress() for want of descriptors.
    "ucx": Transport("ucx", UCX, squeezed=False),
    # CUDA's driver needs descriptors of its own.
    "cuda": Transport("shm", {}, gpus=True, squeezed=False),
    "cuda_relay": Transport("shm", {"ONEHOP_CUDA_IPC": "off"}, gpus=True, squeezed=False),
    "cuda_ucx": Transport("ucx", UCX, gpus=True, squeezed=False),
}
