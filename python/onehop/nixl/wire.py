# SPDX-License-Identifier: Apache-2.0
"""Messages between agents: written and read with bounds checks, never by pickle."""

from __future__ import annotations

import struct
import zlib

from onehop.nixl.errors import nixlMismatchError

__all__ = ["Reader", "Writer", "mismatch"]

VERSION = 1
_HEADER = struct.Struct("<6sBBQI")  # magic, version, kind, size of the body, its CRC


def mismatch(what: str, why: str) -> nixlMismatchError:
    """Return the error for bytes that cannot be read."""
    return nixlMismatchError(
        f"cannot read the {what}: {why}; pass on all of the bytes that an onehop.nixl agent gave, "
        "and run onehop on both sides"
    )


class Writer:
    """Builds the body of a message."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def pack(self, layout: str, *values: object) -> None:
        """Add numbers by a layout of the module struct, little-endian and unaligned."""
        self._parts.append(struct.pack("<" + layout, *values))

    def blob(self, data: bytes) -> None:
        """Add bytes, preceded by their number."""
        self.pack("I", len(data))
        self._parts.append(data)

    def finish(self, magic: bytes, kind: int) -> bytes:
        """Return the message."""
        body = b"".join(self._parts)
        return _HEADER.pack(magic, VERSION, kind, len(body), zlib.crc32(body)) + body


class Reader:
    """Parses a message. Malformed input raises nixlMismatchError."""

    def __init__(self, data: bytes, magic: bytes, what: str) -> None:
        self._what = what
        self._at = _HEADER.size
        self._data = data
        if len(data) < _HEADER.size:
            raise self.mismatch(f"it has {len(data)} bytes, its header alone has {_HEADER.size}")
        found, version, self.kind, size, crc = _HEADER.unpack_from(data)
        if found != magic:
            raise self.mismatch(f"it begins with {bytes(data[:12])!r}, not with {magic!r}")
        if version != VERSION:
            raise self.mismatch(f"it has version {version}, this onehop reads version {VERSION}")
        if size != len(data) - _HEADER.size:
            present = len(data) - _HEADER.size
            raise self.mismatch(f"{size} bytes should follow its header, {present} do")
        if zlib.crc32(data[_HEADER.size :]) != crc:
            raise self.mismatch("its checksum does not fit: bytes were altered on the way")

    def mismatch(self, why: str) -> nixlMismatchError:
        """Return the error for this message."""
        return mismatch(self._what, why)

    def _take(self, size: int) -> int:
        if size > len(self._data) - self._at:
            raise self.mismatch(f"{size} bytes are missing behind byte {self._at}")
        self._at += size
        return self._at - size

    def unpack(self, layout: str) -> tuple[int, ...]:
        """Return numbers."""
        whole = struct.Struct("<" + layout)
        return whole.unpack_from(self._data, self._take(whole.size))

    def number(self, layout: str) -> int:
        """Return one number."""
        return self.unpack(layout)[0]

    def blob(self) -> bytes:
        """Return bytes that are preceded by their number."""
        size = self.number("I")
        at = self._take(size)
        return bytes(self._data[at : at + size])

    def text(self) -> str:
        """Return text."""
        data = self.blob()
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.mismatch(f"{data[:32]!r} is no UTF-8") from None

    def items(self, least: int) -> range:
        """Return a range over the following items, each of at least `least` bytes."""
        count = self.number("I")
        if count * least > len(self._data) - self._at:
            raise self.mismatch(f"it tells of {count} items and has no room for them")
        return range(count)

    def end(self) -> None:
        """Check that no bytes follow."""
        if self._at != len(self._data):
            raise self.mismatch(f"{len(self._data) - self._at} bytes follow its end")
