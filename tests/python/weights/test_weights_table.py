# SPDX-License-Identifier: Apache-2.0
"""Tables: what is packed is parsed, and anything else is an error."""

import random
import struct
import zlib

import numpy as np
import onehop
import pytest
from boxes import make_table, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from onehop.weights import Publisher, Subscriber, TableError
from onehop.weights.table import _HEADER, _MAGIC, VERSION, pack, parse


def sample():
    boxes = [
        ("model.w", whole((8, 6)), (0, 2), (8, 3)),
        ("model.b", whole((5,)), (0,), (5,)),
        ("größe", whole(()), (), ()),
    ]
    return make_table("trainer 0", boxes)[0]


def with_crc(body):
    return _HEADER.pack(_MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def test_what_is_packed_is_parsed():
    made = sample()
    found = parse(pack(made))
    for name in vars(made):
        ours, theirs = getattr(made, name), getattr(found, name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours == theirs, name


def test_an_empty_table():
    found = parse(pack(make_table("p", [])[0]))
    assert found.names == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (b"x" * 40, "begins with"),
        (_HEADER.pack(_MAGIC, 2, 0, 0), "version 2"),
        (pack(sample())[:-1], "should follow"),
        (pack(sample())[:-1] + b"\xff", "checksum"),
        (with_crc(b""), "publisher is missing"),
        (with_crc(struct.pack("<Q", 1 << 60)), "some are missing"),
    ],
)
def test_what_is_no_table_says_why(data, text):
    with pytest.raises(TableError, match=text):
        parse(data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_an_error(data):
    for given_bytes in (data, with_crc(data)):
        with pytest.raises(TableError):
            parse(given_bytes)


def mutated(body, rng):
    """Return the body with some bytes, a number or a piece changed."""
    body = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(body))
        match rng.randrange(4):
            case 0:
                body[at] = rng.randrange(256)
            case 1:
                word = rng.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1, len(body)])
                at = min(at, len(body) - 8)
                body[at : at + 8] = struct.pack("<Q", word)
            case 2:
                del body[at : at + rng.randint(1, 9)]
            case 3:
                body[at:at] = bytes(rng.randint(1, 9))
        if len(body) < 9:
            break
    return bytes(body)


def test_altered_tables_are_errors_or_tables():
    """Whatever parse() lets through can be used: all its numbers are in range."""
    rng = random.Random(20261125)
    body = pack(sample())[_HEADER.size :]
    passed = 0
    for _ in range(4000):
        try:
            found = parse(with_crc(mutated(body, rng)))
        except TableError:
            continue
        passed += 1
        count = len(found.names)
        sizes = found.itemsizes[found.dtype] * np.prod(found.extent, axis=1, dtype=np.uint64)
        assert (found.start + found.extent <= found.shape).all()
        held = sizes > 0
        room = found.region_sizes[found.region]
        assert (found.offset[held] + sizes[held] <= room[held]).all()
        assert found.shape.shape[0] == count
    assert passed, "no mutant is a table: the test alters too much"


def test_subscribers_of_altered_tables_get_errors():
    """Addresses and descriptors are not for parse() to judge: what uses them says no."""
    rng = random.Random(7)
    with onehop.Endpoint() as there, onehop.Endpoint() as here:
        publisher = Publisher(there, "p")
        memory = np.arange(64, dtype="u1").reshape(8, 8)
        publisher.add("w", memory)
        sealed = publisher.seal()
        publisher.commit(1)
        body = sealed[_HEADER.size :]
        for _ in range(150):
            target = np.zeros((8, 8), "u1")
            try:
                subscriber = Subscriber(here, [with_crc(mutated(body, rng))], name="s", timeout=0.3)
            except TableError:
                continue
            with subscriber:
                subscriber.want("w", target)
                try:
                    subscriber.prepare()
                    subscriber.pull()
                except onehop.Error:
                    continue
        publisher.close()
