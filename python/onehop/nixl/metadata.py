# SPDX-License-Identifier: Apache-2.0
"""The metadata of an agent: how to reach its endpoints, and its registrations."""

from __future__ import annotations

from dataclasses import dataclass, field

from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.wire import Reader, Writer, mismatch

__all__ = ["NAME_MAX", "EndpointRecord", "Metadata", "RegionRecord", "pack", "parse"]

_MAGIC = b"OHNXMD"
_WHAT = "agent's metadata"
_FULL, _PARTIAL = 0, 1
_INSTANCE = 16  # bytes that distinguish an agent from a later one with the same name
NAME_MAX = 1024  # bytes of an agent's name
_ENDPOINT_LEAST = 4 + 4 + 4 + 4
_REGION_LEAST = 8 + 1 + 8 + 4 + 8 + 8 + 4
_LIMIT = 1 << 64


@dataclass(frozen=True)
class EndpointRecord:
    """One endpoint of an agent."""

    number: int
    device: int  # -1: host memory
    uuid: str  # of the device, or empty
    address: bytes


@dataclass(frozen=True)
class RegionRecord:
    """One registration of an agent."""

    number: int  # increases with each registration
    memory: nixl_mem_t
    device: int
    endpoint: int
    address: int
    size: int
    descriptor: bytes  # empty for a registration of 0 bytes


@dataclass
class Metadata:
    """The metadata of an agent, or a part of it."""

    name: str
    instance: bytes
    sequence: int  # grows with each change of the registrations
    full: bool
    endpoints: list[EndpointRecord] = field(default_factory=list)
    regions: list[RegionRecord] = field(default_factory=list)


def pack(metadata: Metadata) -> bytes:
    """Return the bytes that parse() reads."""
    out = Writer()
    out.blob(metadata.name.encode())
    out.blob(metadata.instance)
    out.pack("Q", metadata.sequence)
    out.pack("I", len(metadata.endpoints))
    for endpoint in metadata.endpoints:
        out.pack("Ii", endpoint.number, endpoint.device)
        out.blob(endpoint.uuid.encode())
        out.blob(endpoint.address)
    out.pack("I", len(metadata.regions))
    for region in metadata.regions:
        out.pack("QBQI", region.number, int(region.memory), region.device, region.endpoint)
        out.pack("QQ", region.address, region.size)
        out.blob(region.descriptor)
    return out.finish(_MAGIC, _FULL if metadata.full else _PARTIAL)


def parse(data: bytes) -> Metadata:
    """Return the metadata in the bytes; nixlMismatchError: pack() did not write them."""
    if data[:16].find(b"nixlSerDes") >= 0:
        # Metadata of the real NIXL begins with this word.
        raise mismatch(_WHAT, "it is of the real NIXL, which onehop.nixl cannot talk to")
    reader = Reader(data, _MAGIC, _WHAT)
    if reader.kind not in (_FULL, _PARTIAL):
        raise reader.mismatch(f"it is of kind {reader.kind}")
    name = reader.text()
    instance = reader.blob()
    if not 0 < len(name.encode()) <= NAME_MAX or len(instance) != _INSTANCE:
        raise reader.mismatch(f"its agent is {name[:64]!r}, instance of {len(instance)} bytes")
    found = Metadata(name, instance, reader.number("Q"), reader.kind == _FULL)
    found.endpoints = [_endpoint(reader) for _ in reader.items(_ENDPOINT_LEAST)]
    found.regions = [_region(reader) for _ in reader.items(_REGION_LEAST)]
    reader.end()
    return found


def _endpoint(reader: Reader) -> EndpointRecord:
    number, device = reader.unpack("Ii")
    return EndpointRecord(number, device, reader.text(), reader.blob())


def _region(reader: Reader) -> RegionRecord:
    number, memory, device, endpoint = reader.unpack("QBQI")
    address, size = reader.unpack("QQ")
    if memory not in (nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG):
        raise reader.mismatch(f"registration {number} is of memory kind {memory}")
    if address + size >= _LIMIT:
        raise reader.mismatch(f"registration {number} is of {size} bytes at {address:#x}")
    kind = nixl_mem_t(memory)
    return RegionRecord(number, kind, device, endpoint, address, size, reader.blob())
