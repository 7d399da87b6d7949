# SPDX-License-Identifier: Apache-2.0
"""The table of a publisher's tensors: the bytes of Publisher.seal.

    | "OHWGHT" | version, u16 | size of the body, u64 | CRC of the body, u32 |
    | body: items, each preceded by its size, u64 |

The items, in order: name, endpoint address and token of the publisher; the size of each region; the
regions' descriptors, concatenated, and the size of each; the dtypes' names, concatenated, and the
size of each; then one column each for all boxes: tensor's name, dtype, number of dimensions,
region, offset; and, with D numbers for each box, padded with leading ones: shape of the tensor,
start and extent of the box. Numbers are little-endian; names are UTF-8, separated by NUL.

The content is not trusted. The parser checks that columns have equal lengths, that numbers are in
range, and that a box lies within its tensor and its bytes within the region.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from onehop.weights.errors import TableError

__all__ = ["MOST_DIMENSIONS", "NAME_MAX", "Table", "pack", "parse"]

VERSION = 1
MOST_DIMENSIONS = 16
NAME_MAX = 1024  # bytes of a publisher's or subscriber's name
_MAGIC = b"OHWGHT"
_HEADER = struct.Struct("<6sHQI")
_SIZE = struct.Struct("<Q")
_TOKEN = struct.Struct("<Q")
_MOST_ITEM = 64  # bytes of an element
_MOST_BYTES = 1 << 62

U64 = npt.NDArray[np.uint64]


@dataclass
class Table:
    """The boxes of one publisher, a row each. Arrays of shape (rows, D) have D >= 1 dimensions."""

    publisher: str
    address: bytes
    token: int
    descriptors: list[bytes]
    region_sizes: U64
    dtypes: list[str]
    itemsizes: U64  # of each dtype
    names: list[str]
    dtype: npt.NDArray[np.uint16]  # index into dtypes
    ndim: npt.NDArray[np.uint8]
    region: npt.NDArray[np.uint32]
    offset: U64
    shape: U64  # (rows, D), of the whole tensor
    start: U64  # (rows, D)
    extent: U64  # (rows, D)
    name_bytes: bytes = field(default=b"", repr=False)  # equal for tables with the same names


def pack(table: Table) -> bytes:
    """Return the bytes that parse() reads."""
    if any(any("\0" in name for name in names) for names in (table.names, table.dtypes)):
        raise TableError("a name contains NUL")
    items = [
        table.publisher.encode(),
        table.address,
        _TOKEN.pack(table.token),
        _column(table.region_sizes, "<u8"),
        b"".join(table.descriptors),
        _column([len(one) for one in table.descriptors], "<u8"),
        "\0".join(table.dtypes).encode(),
        _column(table.itemsizes, "<u8"),
        "\0".join(table.names).encode(),
        _column(table.dtype, "<u2"),
        _column(table.ndim, "<u1"),
        _column(table.region, "<u4"),
        _column(table.offset, "<u8"),
        _column(table.shape, "<u8"),
        _column(table.start, "<u8"),
        _column(table.extent, "<u8"),
    ]
    body = b"".join(_SIZE.pack(len(item)) + item for item in items)
    return _HEADER.pack(_MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def _column(numbers: Any, layout: str) -> bytes:  # noqa: ANN401 - an array or a list
    return np.asarray(numbers).astype(layout).tobytes()


def parse(data: bytes) -> Table:
    """Return the table in the bytes. TableError: anything that pack() does not write."""
    reader = _Reader(bytes(data))
    publisher, address, token = (
        reader.text("publisher"),
        reader.item("address"),
        reader.item("token"),
    )
    if not 0 < len(publisher.encode()) <= NAME_MAX:
        raise TableError(f"the publisher's name is {publisher[:64]!r}")
    if len(token) != _TOKEN.size:
        raise TableError(f"its token has {len(token)} bytes")
    region_sizes = reader.column("sizes of regions", "<u8")
    descriptors = reader.pieces(len(region_sizes))
    dtypes = reader.names("dtypes")[0]
    itemsizes = reader.column("sizes of dtypes", "<u8")
    names, name_bytes = reader.names("tensors")
    table = Table(
        publisher,
        address,
        _TOKEN.unpack(token)[0],
        descriptors,
        region_sizes,
        dtypes,
        itemsizes,
        names,
        reader.column("dtypes of tensors", "<u2"),
        reader.column("dimensions", "<u1"),
        reader.column("regions of tensors", "<u4"),
        reader.column("offsets", "<u8"),
        reader.rows("shapes", len(names)),
        reader.rows("starts", len(names)),
        reader.rows("extents", len(names)),
        name_bytes,
    )
    reader.end()
    _check(table)
    return table


class _Reader:
    """Reads the items of a table."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER.size:
            raise TableError(f"it has {len(data)} bytes, its header alone has {_HEADER.size}")
        magic, version, size, crc = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise TableError(f"it begins with {data[:8]!r}, not with {_MAGIC!r}")
        if version != VERSION:
            raise TableError(f"it has version {version}, this onehop reads version {VERSION}")
        self._left = memoryview(data)[_HEADER.size :]
        if size != len(self._left):
            raise TableError(f"{size} bytes should follow its header, {len(self._left)} do")
        if zlib.crc32(self._left) != crc:
            raise TableError("its checksum does not fit: bytes were altered on the way")

    def item(self, what: str) -> bytes:
        """Return the bytes of the next item."""
        if len(self._left) < _SIZE.size:
            raise TableError(f"the item {what} is missing")
        (size,) = _SIZE.unpack_from(self._left)
        if size > len(self._left) - _SIZE.size:
            raise TableError(f"the item {what} has {size} bytes, of which some are missing")
        found = bytes(self._left[_SIZE.size : _SIZE.size + size])
        self._left = self._left[_SIZE.size + size :]
        return found

    def text(self, what: str) -> str:
        """Return text."""
        data = self.item(what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise TableError(f"the item {what}, {data[:32]!r}, is no UTF-8") from None

    def names(self, what: str) -> tuple[list[str], bytes]:
        """Return names, and the bytes that they were read from."""
        data = self.item(f"names of {what}")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise TableError(f"the names of {what} are no UTF-8") from None
        return (text.split("\0") if text else []), data

    def column(self, what: str, layout: str) -> npt.NDArray[Any]:
        """Return numbers."""
        data, kind = self.item(what), np.dtype(layout)
        if len(data) % kind.itemsize:
            raise TableError(f"the column {what} has {len(data)} bytes")
        return np.frombuffer(data, kind).astype(kind.newbyteorder("="), copy=False)

    def rows(self, what: str, count: int) -> U64:
        """Return numbers, as many for each of `count` boxes."""
        numbers = self.column(what, "<u8")
        if count == 0 and len(numbers) == 0:
            return np.empty((0, 1), np.uint64)
        if count == 0 or len(numbers) == 0 or len(numbers) % count:
            raise TableError(f"the column {what} has {len(numbers)} numbers for {count} boxes")
        return numbers.reshape(count, -1)

    def pieces(self, count: int) -> list[bytes]:
        """Return the descriptors of this many regions."""
        data, sizes = self.item("descriptors"), self.column("sizes of descriptors", "<u8")
        if len(sizes) != count or sum(sizes.tolist()) != len(data):
            raise TableError(f"the descriptors of its {count} regions are incomplete")
        ends = np.cumsum(sizes, dtype=np.uint64).tolist()
        return [data[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]

    def end(self) -> None:
        """Check that nothing follows."""
        if len(self._left):
            raise TableError(f"{len(self._left)} bytes follow its end")


def _check(table: Table) -> None:
    """Raise if a number is out of range."""
    count, dims = len(table.names), table.shape.shape[1]
    columns = (table.dtype, table.ndim, table.region, table.offset)
    if any(len(column) != count for column in columns):
        raise TableError(f"its columns do not all have {count} entries")
    if not 1 <= dims <= MOST_DIMENSIONS or {table.start.shape[1], table.extent.shape[1]} != {dims}:
        raise TableError(f"its boxes have {dims} dimensions: 1 to {MOST_DIMENSIONS} are possible")
    sizes = table.itemsizes
    if len(sizes) != len(table.dtypes) or ((sizes < 1) | (sizes > _MOST_ITEM)).any():
        raise TableError("the sizes of its dtypes are out of range")
    if any(not name for name in table.names) or any(not name for name in table.dtypes):
        raise TableError("a name is empty")
    if count == 0:
        return
    _check_rows(table, dims)


def _check_rows(table: Table, dims: int) -> None:
    bad = (
        (table.dtype >= len(table.dtypes))
        | (table.ndim > dims)
        | (table.region >= len(table.region_sizes))
    )
    _complain(table, bad, "names a dtype, a number of dimensions or a region that there is not")
    itemsize = table.itemsizes[table.dtype]
    # Products without overflow: what is too large for the next factor stays too large.
    total, box = itemsize.copy(), itemsize.copy()
    huge = np.zeros(len(total), bool)
    for dim in range(dims):
        shape, start, extent = table.shape[:, dim], table.start[:, dim], table.extent[:, dim]
        bad = (start > shape) | (extent > shape - np.minimum(start, shape))
        padding = dims - dim > table.ndim
        bad |= padding & ((shape != 1) | (start != 0) | (extent != 1))
        _complain(table, bad, "has a box that is not within it")
        huge |= total > _MOST_BYTES // np.maximum(shape, np.uint64(1))
        total = np.where(huge, total, total * shape)
        box = np.where(huge, box, box * extent)
    _complain(table, huge, f"has more than {_MOST_BYTES} bytes")
    room = table.region_sizes[table.region]
    bad = (box > room) | (table.offset > room - np.minimum(box, room))
    _complain(table, bad & (box > 0), "has a box whose bytes are not within its region")


def _complain(table: Table, bad: npt.NDArray[np.bool_], why: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise TableError(f"tensor {table.names[row][:64]!r} (row {row}) {why}")
