# SPDX-License-Identifier: Apache-2.0
"""Which registration each descriptor lies in, against the plain search."""

from dataclasses import dataclass

import numpy as np
import pytest
from onehop.nixl.bindings import DRAM_SEG, VRAM_SEG, nixlInvalidParamError, nixlNotFoundError
from onehop.nixl.places import Table, distinct, paired


@dataclass(frozen=True)
class Registered:
    memory: int
    device: int
    address: int
    size: int


def holds(region, row):
    address, length, device = row
    inside = region.address <= address and address + length <= region.address + region.size
    return region.memory == DRAM_SEG and region.device == device and inside


def test_against_a_plain_search():
    rng = np.random.default_rng(3)
    found = missed = 0
    for _ in range(300):
        regions = [
            Registered(
                DRAM_SEG if rng.integers(0, 4) else VRAM_SEG,
                int(rng.integers(0, 2)),
                int(rng.integers(0, 200)),
                int(rng.integers(0, 60)),
            )
            for _ in range(rng.integers(1, 12))
        ]
        table = Table(regions)
        for _ in range(20):
            count = rng.integers(1, 4)
            rows = np.stack(
                [
                    rng.integers(0, 200, count),
                    rng.integers(0, 30, count),
                    rng.integers(0, 2, count),
                ],
                axis=1,
            ).astype(np.uint64)
            expected = all(any(holds(one, row) for one in regions) for row in rows.tolist())
            if not expected:
                missed += 1
                with pytest.raises(nixlNotFoundError):
                    table.locate(DRAM_SEG, rows, "x")
                continue
            found += 1
            places = table.locate(DRAM_SEG, rows, "x")
            for number, row in enumerate(rows.tolist()):
                region = places.regions[places.index[number]]
                assert holds(region, row)
                assert region.address + places.offset[number] == row[0]
                assert places.length[number] == row[1]
    assert found > 100
    assert missed > 500


def test_strided_rows_stand_for_their_blocks():
    rng = np.random.default_rng(4)
    table = Table([Registered(DRAM_SEG, 0, 1000, 10_000), Registered(DRAM_SEG, 1, 0, 10_000)])
    for _ in range(200):
        count = int(rng.integers(1, 5))
        rows = np.stack(
            [
                rng.integers(1000, 2000, count),
                rng.integers(0, 50, count),
                rng.integers(0, 2, count),
                rng.integers(0, 100, count),
                rng.integers(1, 50, count),
            ],
            axis=1,
        ).astype(np.uint64)
        plain = [
            (address + n * stride, length, device)
            for address, length, device, stride, many in rows.tolist()
            for n in range(many)
        ]
        strided = table.locate(DRAM_SEG, rows, "x")
        each = table.locate(DRAM_SEG, np.array(plain, np.uint64), "x")
        assert strided.blocks == len(plain) == each.blocks
        chosen = rng.integers(0, len(plain), 20)
        for one, other in ((strided.expanded(), each), (strided.take(chosen), each.take(chosen))):
            assert (one.offset == other.offset).all()
            assert (one.length == other.length).all()
            ours = [one.regions[index] for index in one.index]
            assert ours == [other.regions[index] for index in other.index]


# Rows of (first block, blocks): address 1000 + 100 * first, blocks of 10 bytes, 100 apart.
@pytest.mark.parametrize(
    ("ours", "theirs", "numbers", "stays"),
    [
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], None, True),
        ([(0, 3), (8, 5)], [(20, 5), (40, 3)], None, False),
        ([(0, 3), (8, 5)], [(20, 8)], None, False),
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], (range(8), range(8)), True),
        ([(0, 3), (8, 5), (20, 1)], [(20, 1), (30, 3), (40, 5)], (range(8), range(1, 9)), True),
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], (range(3, 8), range(3, 8)), True),
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], (range(2, 8), range(2, 8)), False),
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], (range(7), range(7)), False),
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], ([0, 2, 1], [0, 2, 1]), False),
        ([(0, 3), (8, 5)], [(20, 3), (40, 5)], ([0, 0, 2], [0, 1, 2]), False),
        ([(0, 30), (8, 1)], [(20, 30), (40, 1)], None, False),
    ],
)
def test_rows_stay_strided_where_both_sides_agree(ours, theirs, numbers, stays):
    table = Table([Registered(DRAM_SEG, 0, 1000, 10_000)])
    sides = [
        table.locate(
            DRAM_SEG,
            np.array([(1000 + 100 * at, 10, 0, 100, many) for at, many in rows], np.uint64),
            "x",
        )
        for rows in (ours, theirs)
    ]
    chosen = None if numbers is None else tuple(np.array(one, np.int64) for one in numbers)
    found = paired(*sides, chosen, 30)
    assert [one.counts is not None for one in found] == [stays, stays]
    if stays:
        assert (found[0].counts == found[1].counts).all()
    for which, one in enumerate(found):
        every = sides[which].expanded()
        plain = every if chosen is None else every.take(chosen[which])
        assert one.blocks == plain.blocks
        assert one.bytes == plain.bytes
        assert (one.expanded().offset == plain.offset).all()


def test_a_strided_and_a_plain_list():
    table = Table([Registered(DRAM_SEG, 0, 1000, 10_000)])
    strided = table.locate(DRAM_SEG, np.array([(1000, 10, 0, 20, 3)], np.uint64), "x")
    plain = table.locate(DRAM_SEG, np.array([(1000 + 50 * n, 10, 0) for n in range(3)], "u8"), "x")
    for sides in ((strided, plain), (plain, strided)):
        for numbers in (None, (np.arange(3), np.arange(3))):
            found = paired(*sides, numbers, 30)
            assert [one.counts for one in found] == [None, None]
            assert [one.blocks for one in found] == [3, 3]


MOST = 2**64 - 1


@pytest.mark.parametrize(
    "row",
    [
        (1000, 10, 0, 100, 101),
        (1000, 10, 0, MOST, 2),
        (1000, 10, 0, MOST, MOST),
        (1000, MOST, 0, 1, 2),
        (1000, 1, 0, 2**63, 3),
        (999, 1, 0, 0, 1),
        (1000, 10_001, 0, 0, 5),
    ],
)
def test_strided_rows_outside(row):
    table = Table([Registered(DRAM_SEG, 0, 1000, 10_000)])
    rows = np.array([(1000, 10, 0, 100, 100), row], np.uint64)
    table.locate(DRAM_SEG, rows[:1], "x")
    with pytest.raises(nixlNotFoundError, match="descriptor 1"):
        table.locate(DRAM_SEG, rows, "x")


def test_no_blocks():
    table = Table([Registered(DRAM_SEG, 0, 1000, 10_000)])
    with pytest.raises(nixlInvalidParamError, match="0 blocks"):
        table.locate(DRAM_SEG, np.array([(1000, 10, 0, 100, 0)], np.uint64), "x")
    with pytest.raises(nixlInvalidParamError, match="is empty"):
        table.locate(DRAM_SEG, np.zeros((0, 3), np.uint64), "x")
    with pytest.raises(nixlNotFoundError):
        Table([]).locate(DRAM_SEG, np.zeros((1, 3), np.uint64), "x")


def test_distinct():
    assert distinct(np.array([3, 1, 3, 2, 1])) == [1, 2, 3]
    assert distinct(np.array([], np.uint64)) == []


def test_long_lists():
    """They are looked at in pieces; the text names the row of the whole list."""
    count = 50_000
    table = Table([Registered(DRAM_SEG, device, 1000, 8 * count) for device in (0, 1)])
    rows = np.zeros((count, 3), np.uint64)
    rows[:, 0] = 1000 + 8 * np.arange(count)
    rows[:, 1] = 8
    for devices in (np.zeros(count), np.arange(count) % 2):
        rows[:, 2] = devices
        places = table.locate(DRAM_SEG, rows, "x")
        assert (places.offset == 8 * np.arange(count)).all()
        found = np.array([region.device for region in places.regions])[places.index]
        assert (found == devices).all()
        wrong = rows.copy()
        wrong[40_001, 1] = 2**63
        with pytest.raises(nixlNotFoundError, match="descriptor 40001"):
            table.locate(DRAM_SEG, wrong, "x")
