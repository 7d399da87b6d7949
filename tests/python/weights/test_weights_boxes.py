# SPDX-License-Identifier: Apache-2.0
"""Who sends what: boxes against numpy's slices, without a transfer."""

import itertools

import numpy as np
import pytest
from boxes import make_table, moved, wanted, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from onehop import InvalidArgument
from onehop.weights.assign import Missing, assign
from onehop.weights.runs import MOST_BLOCKS, runs_of


def grid(publishers, array, cuts, name="w"):
    """Cut an array along each dimension; hand the boxes to publishers in turn."""
    edges = [[0, *cut, size] for cut, size in zip(cuts, array.shape, strict=True)]
    boxes = [
        (name, array, [a for a, _ in box], [b - a for a, b in box])
        for box in itertools.product(*(itertools.pairwise(edge) for edge in edges))
    ]
    return [make_table(f"p{n}", boxes[n::publishers]) for n in range(publishers)]


def check(array, wants, tables, subscriber="s"):
    found, written = moved(wants, tables, subscriber)
    for want, times in zip(wants, written, strict=True):
        assert (times == 1).all(), "a byte is not written once"
        start = want.start or (0,) * array.ndim
        inside = tuple(slice(a, a + n) for a, n in zip(start, want.tensor.shape, strict=True))
        np.testing.assert_array_equal(want.tensor.owner, array[inside])
    return found


def column(shares, name):
    """Return a column of the runs of all publishers."""
    return [value for share in shares for value in getattr(share.runs, name).tolist()]


@st.composite
def cut_arrays(draw):
    """An array, where each dimension is cut, and a box of it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    cuts = [
        sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))) if size > 1 else []
        for size in shape
    ]
    low = [draw(st.integers(0, size - 1)) for size in shape]
    high = [draw(st.integers(a + 1, size)) for a, size in zip(low, shape, strict=True)]
    return shape, cuts, low, high


@settings(max_examples=300, deadline=None)
@given(cut_arrays(), st.integers(1, 4), st.sampled_from(["uint8", "uint16", "float64"]))
def test_any_grid_of_boxes(case, publishers, dtype):
    shape, cuts, low, high = case
    array = whole(shape, dtype)
    edges = [[0, *cut, size] for cut, size in zip(cuts, shape, strict=True)]
    boxes = [
        ("w", array, [a for a, _ in box], [b - a for a, b in box])
        for box in itertools.product(*(itertools.pairwise(edge) for edge in edges))
    ]
    tables = [make_table(f"p{n}", boxes[n::publishers], dtype) for n in range(publishers)]
    target = np.zeros([b - a for a, b in zip(low, high, strict=True)], dtype)
    check(array, [wanted("w", target, tuple(low)), wanted("w", np.zeros(shape, dtype))], tables)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_boxes_that_overlap(data):
    """Publishers have any boxes: what they have together is moved once, a hole is named."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    array, there = whole(shape), np.zeros(shape, bool)
    tables = []
    for number in range(data.draw(st.integers(1, 4))):
        boxes = []
        for _ in range(data.draw(st.integers(0, 3))):
            low = [data.draw(st.integers(0, size - 1)) for size in shape]
            high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, shape, strict=True)]
            there[tuple(map(slice, low, high))] = True
            boxes.append(("w", array, low, [b - a for a, b in zip(low, high, strict=True)]))
        tables.append(make_table(f"p{number}", boxes))
    want = wanted("w", np.zeros(shape, np.uint8))
    if there.all():
        check(array, [want], tables)
    else:
        with pytest.raises(Missing, match=r"tensor 'w' \[0:"):
            assign([want], [one for one, _ in tables], "s")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(1, 40), st.text(min_size=1, max_size=5), st.data())
def test_replicas_share_by_bytes(replicas, tensors, subscriber, data):
    arrays = {f"t{n}": whole((data.draw(st.integers(1, 64)), 1024), seed=n) for n in range(tensors)}
    boxes = [(name, array, (0, 0), array.shape) for name, array in arrays.items()]
    tables = [make_table(f"p{n}", boxes) for n in range(replicas)]
    wants = [wanted(name, np.zeros_like(array)) for name, array in arrays.items()]
    found, written = moved(wants, tables, subscriber)
    assert all((times == 1).all() for times in written)
    for want in wants:
        np.testing.assert_array_equal(want.tensor.owner, arrays[want.name])
    sent = np.zeros(replicas)
    for share in found:
        sent[share.publisher] = share.nbytes.sum()
    # No share is off by more than a tensor of less than 128 KiB at each of its ends.
    assert sent.max() - sent.min() <= 4 * (1 << 17), sent


def test_subscribers_begin_at_different_replicas():
    array = whole((1 << 12, 1 << 10))
    tables = [make_table(f"p{n}", [("w", array, (0, 0), array.shape)]) for n in range(4)]
    firsts = set()
    for number in range(16):
        want = wanted("w", np.zeros_like(array))
        found = assign([want], [one for one, _ in tables], f"engine{number}")
        firsts.update(one.publisher for one in found if one.low[0].min() == 0)
    assert len(firsts) > 1


def test_who_has_more_to_send_sends_less_of_a_replica():
    array, own = whole((1024, 1024)), whole((512, 1024), seed=1)
    boxes = [("shared", array, (0, 0), array.shape)]
    tables = [make_table("a", [*boxes, ("own", own, (0, 0), own.shape)]), make_table("b", boxes)]
    wants = [wanted("shared", np.zeros_like(array)), wanted("own", np.zeros_like(own))]
    found, _ = moved(wants, tables)
    sent = [int(share.nbytes.sum()) for share in found]
    assert sent == [array.nbytes * 3 // 4] * 2


def test_a_row_split_is_one_block_a_publisher():
    array = whole((64, 48))
    tables = grid(4, array, ([16, 32, 48], []))
    found = check(array, [wanted("w", np.zeros_like(array))], tables)
    assert column(found, "count") == [1] * 4
    assert column(found, "length") == [16 * 48] * 4


def test_a_column_split_is_one_run_a_publisher():
    array = whole((64, 48))
    tables = grid(4, array, ([], [12, 24, 36]))
    found = check(array, [wanted("w", np.zeros_like(array))], tables)
    assert column(found, "count") == [64] * 4
    assert column(found, "length") == [12] * 4
    assert column(found, "local_stride") == [48] * 4
    assert column(found, "remote_stride") == [12] * 4


def test_inner_dimensions_that_join_make_one_run():
    array = whole((8, 6, 5))
    tables = grid(2, array, ([], [], [2]))
    found = check(array, [wanted("w", np.zeros_like(array))], tables)
    assert len(column(found, "count")) == 2, "8 x 6 rows with one stride are one run"


def test_scalars_and_empty_tensors():
    scalar, empty = np.array(3, np.uint8), np.zeros((0, 4), np.uint8)
    tables = [make_table("p", [("scalar", scalar, (), ()), ("empty", empty, (0, 0), (0, 4))])]
    wants = [wanted("scalar", np.array(0, np.uint8)), wanted("empty", np.zeros((0, 4), np.uint8))]
    found, _ = moved(wants, tables)
    assert wants[0].tensor.owner == 3
    assert [share.nbytes.tolist() for share in found] == [[1]]


@pytest.mark.parametrize(
    ("target", "start", "text"),
    [
        (np.zeros((4, 8), "f4"), None, r"'w' \[0:4, 0:8\].*float32.*uint8 \(4, 8\)"),
        (np.zeros(32, "u1"), None, r"'w' \[0:32\].*1 dimensions.*\(4, 8\)"),
        (np.zeros((4, 7), "u1"), None, r"'w' \[0:4, 0:7\].*shape \(4, 8\): give start="),
        (np.zeros((4, 8), "u1"), (1, 0), r"'w' \[1:5, 0:8\].*shape \(4, 8\)"),
        (np.zeros((4, 8), "u1"), (0, -1), r"'w' \[0:4, -1:7\].*shape \(4, 8\)"),
    ],
)
def test_what_does_not_fit_is_named(target, start, text):
    array = whole((4, 8))
    tables = grid(2, array, ([2], []))
    with pytest.raises(InvalidArgument, match=text):
        assign([wanted("w", target, start)], [one for one, _ in tables], "s")


def test_publishers_that_disagree_are_named():
    one, other = whole((4, 8)), whole((4, 9))
    tables = [
        make_table("a", [("w", one, (0, 0), (2, 8))]),
        make_table("b", [("w", other, (2, 0), (2, 9))]),
    ]
    with pytest.raises(InvalidArgument, match=r"'b' has \[2:4, 0:9\].*\(4, 9\).*'a'.*\(4, 8\)"):
        assign([wanted("w", np.zeros((4, 8), "u1"))], [one for one, _ in tables], "s")


def test_a_hole_is_named():
    array = whole((4, 8))
    tables = [make_table("a", [("w", array, (0, 0), (2, 8)), ("w", array, (2, 0), (2, 5))])]
    with pytest.raises(Missing, match=r"'w' \[0:4, 0:8\].*\('a'\) has \[2:4, 5:8\] of it"):
        assign([wanted("w", np.zeros((4, 8), "u1"))], [one for one, _ in tables], "s")
    with pytest.raises(Missing, match=r"'v' \[0:3\].*\('a'\) has \[0:3\]"):
        assign([wanted("v", np.zeros(3, "u1"))], [one for one, _ in tables], "s")


def test_a_hole_and_an_overlap_of_one_size_are_a_hole():
    array = whole((4, 4))
    boxes = [((0, 0), (4, 2)), ((0, 1), (4, 2))]
    tables = [make_table("a", [("w", array, *box) for box in boxes])]
    with pytest.raises(Missing, match=r"has \[0:4, 3:4\]"):
        assign([wanted("w", np.zeros((4, 4), "u1"))], [one for one, _ in tables], "s")


def test_long_runs_are_divided_into_batches():
    rows = MOST_BLOCKS * 2 + 5
    extent = np.array([[rows], [3]])
    shape = np.array([[rows], [8]])
    start = np.array([[0], [2]])
    runs = runs_of(extent, (extent, start * 0), (shape, start), np.array([1]))
    batches = runs.batches()
    assert [int(one.count.sum()) for one in batches] == [MOST_BLOCKS, MOST_BLOCKS, 5]
    at = 0
    for one in batches:
        assert int(one.local[0]) == at * 3
        assert int(one.remote[0]) == at * 8 + 2
        at += int(one.count.sum())
