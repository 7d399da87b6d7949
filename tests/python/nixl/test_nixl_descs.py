# SPDX-License-Identifier: Apache-2.0
"""Lists of descriptors, and the bytes that stand for them."""

import logging
import pickle
import zlib

import numpy as np
import pytest
from onehop.nixl import nixl_agent
from onehop.nixl.bindings import (
    DRAM_SEG,
    VRAM_SEG,
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNotFoundError,
    nixlRegDList,
    nixlRemoteDList,
    nixlXferDList,
)
from onehop.nixl.descs import deserialize, serialize

LISTS = [
    (nixlXferDList, [(1, 2, 3), (2**64 - 1, 5, 6)]),
    (nixlRegDList, [(1, 2, 3, b"meta"), (4, 5, 6, b"")]),
    (nixlRemoteDList, [(1, 2, 3, "agent"), (4, 5, 6, "Ä")]),
]


@pytest.fixture(scope="module")
def agent():
    return nixl_agent("A")


@pytest.mark.parametrize(("kind", "rows"), LISTS)
def test_list(kind, rows):
    descs = kind(VRAM_SEG, rows)
    assert descs.getType() is VRAM_SEG
    assert (descs.descCount(), descs.isEmpty()) == (2, False)
    assert [descs[0], descs[1]] == rows == list(descs)
    assert descs.index(rows[1]) == 1
    more = (7, 8, 9, *rows[0][3:])
    with pytest.raises(nixlNotFoundError):
        descs.index(more)
    descs.addDesc(more)
    descs.append(rows[0])
    assert descs.index(more) == 2
    assert list(descs) == [*rows, more, rows[0]]
    descs[0] = more
    assert descs[0] == more
    descs.remDesc(1)
    assert list(descs) == [more, more, rows[0]]
    for place in (3, -1):
        for call in (descs.__getitem__, descs.remDesc, lambda at: descs.__setitem__(at, more)):
            with pytest.raises(IndexError):
                call(place)
    assert descs == kind(VRAM_SEG, [more, more, rows[0]])
    assert descs != kind(DRAM_SEG, [more, more, rows[0]])
    assert descs != kind(VRAM_SEG, [more, more])
    assert descs != 5
    descs.clear()
    assert descs.isEmpty()
    descs.append(more)
    assert list(descs) == [more]


def test_constructors():
    assert nixlXferDList(DRAM_SEG).isEmpty()
    assert nixlXferDList(DRAM_SEG, 3).descCount() == 3
    assert nixlRegDList(DRAM_SEG, 2)[1] == (0, 0, 0, b"")
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    descs = nixlRegDList(DRAM_SEG, array)
    array[:] = 0  # the caller's again
    assert descs[1] == (3, 4, 5, b"")
    trimmed = descs.trim()
    assert isinstance(trimmed, nixlXferDList)
    assert list(trimmed) == [(0, 1, 2), (3, 4, 5)]
    with pytest.raises(ValueError, match="nixl_mem_t"):
        nixlXferDList(9)
    for bad in ([(1, 2)], [(-1, 2, 3)], [(2**64, 1, 1)], [("a", 1, 1)], [(1, 2, 3), (1, 2)]):
        with pytest.raises(nixlInvalidParamError):
            nixlXferDList(DRAM_SEG, bad)
    for kind in (nixlRegDList, nixlRemoteDList):
        for bad in ([(1, 2, 3)], [(1, 2, 3, 4)], [(1, 2, 3, None)]):
            with pytest.raises(nixlInvalidParamError):
                kind(DRAM_SEG, bad)
    with pytest.raises(TypeError):
        hash(descs)


def test_strided(agent):
    rows = np.array([[1000, 10, 0, 20, 5]], np.int64)
    descs = agent.get_xfer_descs(rows, "DRAM")
    assert descs.descCount() == 1
    assert descs[0] == (1000, 10, 0, 20, 5)
    assert agent.deserialize_descs(agent.get_serialized_descs(descs)) == descs


@pytest.mark.parametrize(
    "bad",
    [
        [(1, 2)],
        [(1, 2, 3, 4)],
        np.zeros((2, 4), np.uint64),
        np.zeros(3, np.uint64),
        "text",
        None,
        5,
    ],
)
def test_another_shape_is_none_and_an_error(agent, bad, caplog):
    with caplog.at_level(logging.ERROR, "onehop.nixl"):
        assert agent.get_xfer_descs(bad, "DRAM") is None
    assert "nixlXferDList" in caplog.text


def test_getting_descs(agent, caplog):
    assert list(agent.get_xfer_descs([(1, 2, 3)], "cuda")) == [(1, 2, 3)]
    assert agent.get_xfer_descs([(1, 2, 3)], "cuda").getType() is VRAM_SEG
    assert list(agent.get_xfer_descs(((1, 2, 3),), "cpu")) == [(1, 2, 3)]
    assert list(agent.get_reg_descs([(1, 2, 3, "m")], "DRAM")) == [(1, 2, 3, b"m")]
    assert list(agent.get_remote_descs([(1, 2, 3, "B")], "DRAM")) == [(1, 2, 3, "B")]
    assert agent.get_xfer_descs([], "DRAM").isEmpty()
    assert agent.get_reg_descs([(1, 2, 3)], "DRAM") is None
    assert agent.get_remote_descs([(1, 2, 3)], "DRAM") is None
    assert agent.get_remote_descs(np.zeros((1, 3), np.uint64), "DRAM") is None
    assert agent.get_xfer_descs([(1, 2, 3)]) is None
    assert "without mem_type" in caplog.text
    for kind, rows in LISTS:
        descs = kind(DRAM_SEG, rows)
        get = {"nixlXferDList": agent.get_xfer_descs, "nixlRegDList": agent.get_reg_descs}
        assert get.get(kind.__name__, agent.get_remote_descs)(descs) is descs
    for bad in (np.zeros((1, 3), np.int32), np.zeros((1, 3)), np.zeros((4, 6), "u8")[:, ::2]):
        with pytest.raises(ValueError, match="descs"):
            agent.get_xfer_descs(bad, "DRAM")


class Tensor:
    """What of torch's tensors is asked for."""

    def __init__(self, address, device=-1, contiguous=True) -> None:
        self.address, self.device, self.contiguous = address, device, contiguous
        self.shape, self.is_cuda = (5, 2), device >= 0

    def data_ptr(self):
        return self.address

    def numel(self):
        return 10

    def element_size(self):
        return 4

    def get_device(self):
        return self.device

    def is_contiguous(self):
        return self.contiguous


def test_tensors(agent, monkeypatch, caplog):
    import sys
    import types

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    assert list(agent.get_xfer_descs(Tensor(100))) == [(100, 40, 0)]
    on_gpu = agent.get_reg_descs([Tensor(100, 2), Tensor(200, 1)])
    assert list(on_gpu) == [(100, 40, 2, b""), (200, 40, 1, b"")]
    assert on_gpu.getType() is VRAM_SEG
    assert agent.get_xfer_descs([Tensor(1), Tensor(2, 0)]) is None
    assert "both host and GPU" in caplog.text
    assert agent.get_xfer_descs(Tensor(1, contiguous=False)) is None
    assert "not contiguous" in caplog.text


# ---- Bytes


@pytest.mark.parametrize(("kind", "rows"), LISTS)
def test_bytes_and_pickles(agent, kind, rows):
    descs = kind(VRAM_SEG, rows)
    data = agent.get_serialized_descs(descs)
    back = agent.deserialize_descs(data)
    assert type(back) is kind
    assert back == descs
    assert back.getType() is VRAM_SEG
    # The application's own pickles, of lists that it made.
    again = pickle.loads(pickle.dumps(descs))
    assert again == descs
    assert again.getType() is VRAM_SEG


def test_what_is_no_list_is_not_serialized(agent):
    with pytest.raises(nixlInvalidParamError, match="a list"):
        agent.get_serialized_descs([(1, 2, 3)])


def test_no_pickle_is_loaded(agent):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit",))

    for data in (pickle.dumps(Trap()), pickle.dumps(nixlXferDList(DRAM_SEG, [(1, 2, 3)]))):
        with pytest.raises(nixlMismatchError):
            agent.deserialize_descs(data)


def sealed(data):
    """Return the bytes with a checksum that fits them, so that the parser behind it is reached."""
    return data[:16] + zlib.crc32(data[20:]).to_bytes(4, "little") + data[20:]


def damaged(data, rng, count):
    """Give damaged copies: cut, longer, with other bytes; half of them with a fitting checksum."""
    for number in range(count):
        copy = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            choice = rng.integers(0, 4)
            place = int(rng.integers(0, max(len(copy), 1)))
            if choice == 0:
                copy = copy[:place]
            elif choice == 1 and copy:
                copy[min(place, len(copy) - 1)] = rng.integers(0, 256)
            elif choice == 2:
                copy[place:place] = rng.bytes(int(rng.integers(1, 9)))
            elif len(copy) > place + 4:
                copy[place : place + 4] = b"\xff\xff\xff\xff"
        if number % 2 and len(copy) >= 20:
            copy[8:16] = (len(copy) - 20).to_bytes(8, "little")
            copy = sealed(bytes(copy))
        yield bytes(copy)


@pytest.mark.parametrize(("kind", "rows"), LISTS)
def test_garbage_is_a_mismatch(kind, rows):
    data = serialize(kind(DRAM_SEG, rows))
    for size in range(len(data)):
        with pytest.raises(nixlMismatchError):
            deserialize(data[:size])
    rng = np.random.default_rng(1)
    refused = 0
    for copy in damaged(data, rng, 3000):
        try:
            assert type(deserialize(copy)).__name__.endswith("DList")
        except nixlMismatchError:
            refused += 1
    assert refused > 1500
    for _ in range(500):
        with pytest.raises(nixlMismatchError):
            deserialize(rng.bytes(int(rng.integers(0, 100))))
