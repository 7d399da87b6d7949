# SPDX-License-Identifier: Apache-2.0
"""GPUs on the command line: the available ones, kinds of memory, and the GPUs of a row's sides."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import onehop
from onehop import _bench

MEMORY = {
    "host": _bench.Memory.HOST,
    "pinned": _bench.Memory.PINNED,
    "cuda": _bench.Memory.CUDA,
    "cuda-vmm": _bench.Memory.CUDA_VMM,
    "cuda-pool": _bench.Memory.CUDA_POOL,
    "cuda-async": _bench.Memory.CUDA_ASYNC,
    "cuda-managed": _bench.Memory.CUDA_MANAGED,
}

_RELEASE = Path("/proc/driver/nvidia/version")

Pair = tuple[str, str]

HOST: Pair = ("host", "host")
NO_DEVICES: Pair = ("", "")


@dataclass(frozen=True)
class Gpus:
    """The driver, and the machine's topology."""

    library: str
    cuda: int  # CUDA version of the driver: 13000 is CUDA 13.0
    machine: onehop.Topology

    @property
    def devices(self) -> Sequence[onehop.Gpu]:
        """Return the GPUs."""
        return self.machine.devices


def facts() -> Gpus | str:
    """Return the driver and its devices, or why there is none."""
    try:
        cuda = _bench.cuda_version()
    except _bench.GpuError as failure:
        return str(failure)
    return Gpus(_bench.cuda_library(), cuda, onehop.topology())


def needed_facts(without: str) -> Gpus:
    """Return the driver and its devices.

    Raises:
        click.ClickException: there is none; `without` names the feature that needs it.

    """
    found = facts()
    if isinstance(found, str):
        raise click.ClickException(f"{without}: {found}")
    return found


def version(found: Gpus) -> str:
    """Return the driver's release, if it reports one, and its CUDA version."""
    speaks = f"CUDA {found.cuda // 1000}.{found.cuda % 1000 // 10}"
    try:
        release = re.search(r"\d+\.\d+(\.\d+)?", _RELEASE.read_text())
    except OSError:
        release = None
    return f"{release[0]}, {speaks}" if release else speaks


def with_gpus(known: dict[str, str]) -> dict[str, str]:
    """Return a provenance with the GPUs and the driver added, if there is one."""
    found = facts()
    if isinstance(found, str):
        return known
    names = " + ".join(device.name for device in found.devices)
    return {**known, "gpu": names, "driver": version(found)}


def parse_memory(_: click.Context, __: click.Parameter, value: str | None) -> Pair | None:
    """Parse one kind of memory, or one for each side: ``cuda,host``."""
    if value is None:
        return None
    kinds = value.split(",")
    for kind in kinds:
        if kind not in MEMORY:
            known = ", ".join(MEMORY)
            raise click.BadParameter(f"'{kind}' is no kind of memory: there are {known}")
    if len(kinds) > 2:
        raise click.BadParameter(f"'{value}' names {len(kinds)} kinds; there are two sides")
    return kinds[0], kinds[-1]


def parse_numbers(value: str | None, what: str) -> list[int]:
    """Parse a list of numbers of devices or CPUs."""
    if value is None:
        return []
    try:
        return [int(number) for number in value.split(",")]
    except ValueError as failure:
        raise click.BadParameter(f"'{value}' is no list of {what} numbers") from failure


def parse_devices(_: click.Context, __: click.Parameter, value: str | None) -> list[int]:
    """Parse a list of device numbers."""
    return parse_numbers(value, "device")


def check_numbers(numbers: Sequence[int], found: Gpus) -> None:
    """Reject devices that do not exist.

    Raises:
        click.UsageError: naming the device.

    """
    count = len(found.devices)
    for number in numbers:
        if not 0 <= number < count:
            raise click.UsageError(f"--devices {number}: there are {count}, 0 to {count - 1}")


def choose(memory: Pair, numbers: Sequence[int], *, apart: bool = False) -> Pair:
    """Return the devices of both sides: as requested, else two different ones if there are two.

    `apart`: side 1 is on another host, which selects its device itself; by default the first.

    Raises:
        click.ClickException: there is no driver.
        click.UsageError: a device does not exist, or none is needed.

    """
    if memory == HOST:
        if numbers:
            raise click.UsageError("--devices goes with --memory cuda and its kin")
        return NO_DEVICES
    count = 1
    if memory[0] != "host" or not apart:
        found = needed_facts(f"--memory {','.join(dict.fromkeys(memory))}")
        check_numbers(numbers[:1] if apart else numbers, found)
        count = len(found.devices)
    if len(numbers) > 2:
        raise click.UsageError("--devices takes one device or two")
    chosen = list(numbers) or ([0, 1] if count > 1 and not apart else [0])
    names = [f"cuda:{number}" for number in (chosen[0], chosen[-1])]
    first, second = (
        "" if kind == "host" else name for kind, name in zip(memory, names, strict=True)
    )
    return first, second


def shown(devices: Sequence[str]) -> str:
    """Write the devices of a row's sides: ``0,1``."""
    return ",".join(name.removeprefix("cuda:") or "host" for name in devices)


def nccl_libraries(path: str | None) -> tuple[str, ...]:
    """Return candidates for NCCL: the given path, the loader's name, or Python packages."""
    if path:
        return (path,)
    found = [Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for folder in sys.path]
    return ("libnccl.so.2", *(str(place) for place in found if place.exists()))
