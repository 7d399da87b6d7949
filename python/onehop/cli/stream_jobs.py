# SPDX-License-Identifier: Apache-2.0
"""Jobs of what runs in the order of a GPU's stream, or within a kernel, and of their floors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from onehop.cli.gpus import Pair
from onehop.cli.jobs import Job

IN_STREAM = ("stream", "graph", "stream_put", "graph_put")
IN_KERNEL = ("kernel", "kernel_put")
LATENCY_MODES = ("stream", "graph", "kernel")
BANDWIDTH_MODES = ("stream", "stream_put", "graph_put", "kernel_put")
# Threads of a kernel's group: a warp, and blocks.
_GROUPS = (32, 128, 512)
# How NCCL does what is measured; of a kernel there is nothing.
_NCCL = {"stream": "stream", "stream_put": "stream", "graph": "graph", "graph_put": "graph"}


def check_memory(modes: Sequence[str], memory: Pair) -> None:
    """Refuse modes that are about GPUs for memory of the host.

    Raises:
        click.UsageError: naming the mode.

    """
    for mode in modes:
        if mode in ("event", *IN_STREAM, *IN_KERNEL) and "host" in memory:
            raise click.UsageError(f"--mode {mode} is for memory of a GPU on both sides")


def settle(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs as they are measured: those of kernels by themselves, for each group."""
    return [one for job in jobs for one in _settle(job)]


def _settle(job: Job) -> Iterator[Job]:
    if job.mode in IN_STREAM:
        yield replace(job, window=1)
    elif job.mode == "kernel":
        # Side by side, for they are compared.
        for threads in _GROUPS:
            yield replace(job, api="device", threads=threads)
            yield replace(job, api="device", threads=threads, mode="kernel_single")
    elif job.mode == "kernel_put":
        yield replace(job, api="device", window=1)
    else:
        yield job


def nccl_modes(modes: Sequence[str]) -> list[str]:
    """Return how NCCL is measured beside these modes."""
    found = (_NCCL.get(mode, "sendrecv") for mode in modes if mode not in IN_KERNEL)
    return list(dict.fromkeys(found))


def line_floors(base: Job, modes: Sequence[str]) -> Iterator[Job]:
    """Yield the floors of messages by kernels."""
    for mode in modes:
        if mode in ("stream", "graph"):
            yield replace(base, mode=mode)
        elif mode == "kernel":
            for threads in _GROUPS:
                yield replace(base, mode=mode, threads=threads)
