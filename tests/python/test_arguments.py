# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: a TypeError that names the argument, what was given and what is accepted."""

import asyncio
import inspect

import numpy as np
import onehop
import pytest
from test_looks import METHODS


class Strange:
    """It fits nowhere."""


# These take anything: what was given is compared, or handed on to with.
TAKE_ANYTHING = {"__exit__"}
# What has to be right for the argument behind it to be looked at.
RIGHT = {
    "slot": 0,
    "n": 1,
    "lane": 0,
    "tag": 0,
    "timeout": 0.0,
    "dst": 0,
    "src": 0,
    "rank": 0,
    "offsets": [0],
    "lengths": [1],
    "local_offsets": [0],
    "remote_offsets": [0],
    "local_index": None,
    "remote_index": None,
    "stream": 0,
    "key": slice(0, 1),
    "notify": None,
    "after": None,
    "device": None,
    "ranks": [0],
    "size": 2,
    "access": "rw",
    "value": 0,
    "expected": 0,
    "before": None,
}


@pytest.fixture(scope="module")
def things():
    """One object of each class, where there can be one without a GPU."""
    communicator = onehop.Communicator(0, 1)
    peer = communicator.peer(0)
    region = communicator.endpoint.register(bytearray(8))
    remote = peer.attach(region.descriptor, timeout=30)
    made = [communicator, communicator.endpoint, peer, region, remote, peer.on(0)]
    made += [communicator.on(0), peer.prepare_put(region, remote, [0], [0], [1])]
    request = peer.irecv(bytearray(4))
    peer.send(b"1234")
    made += [request, request.wait(timeout=30), onehop.CURRENT_STREAM, onehop.group()]
    yield {type(thing): thing for thing in made}
    communicator.close()


def arguments_of(things, signature):
    right = {**RIGHT, "remote": things[onehop.RemoteRegion], "descriptor": b"", "address": b""}
    right |= dict.fromkeys(("buffer", "data"), bytearray()) | {"local": things[onehop.Region]}
    right |= {"locals": [things[onehop.Region]], "remotes": [things[onehop.RemoteRegion]]}
    return {name: right[name] for name in signature.parameters if name in right}


def test_all_classes_but_one_are_there(things):
    missing = {kind for kind, _ in METHODS} - set(things)
    assert missing == {onehop.LaneHandle, onehop.CommunicatorHandle}  # need kernels


def call(function, given):
    result = function(**given)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize(
    ("kind", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_argument_is_named(things, kind, name):
    thing = kind if name == "__init__" else things.get(kind)
    function = kind if name == "__init__" else getattr(thing, name, None)
    if thing is None or name in TAKE_ANYTHING:
        return
    signature = inspect.signature(function)
    for parameter in signature.parameters:
        for wrong in (Strange(), None):
            annotation = str(signature.parameters[parameter].annotation)
            if wrong is None and ("None" in annotation or annotation.endswith(("After", "Device"))):
                continue
            given = {**arguments_of(things, signature), parameter: wrong}
            with pytest.raises(TypeError) as caught:
                call(function, given)
            text = str(caught.value)
            assert type(wrong).__name__ in text, (parameter, text)
            assert "incompatible" not in text, (parameter, text)
            assert isinstance(caught.value, onehop.InvalidType), (parameter, text)
            # Buffers are named by their type: "a Strange is no buffer".
            assert parameter in text or "is no buffer" in text, (parameter, text)


INTEGERS = [np.int64, np.uint64, np.int32, np.uint8]


@pytest.mark.parametrize("kind", INTEGERS)
def test_numpy_integers_are_integers(kind):
    with onehop.Communicator(kind(0), kind(1), max_inline=kind(64)) as communicator:
        peer = communicator.peer(kind(0))
        received = bytearray(3)
        request = peer.irecv(received, tag=kind(7))
        peer.send(b"abc", kind(7))
        assert request.wait(timeout=30).tag == 7
        request = communicator.irecv(received, kind(0), kind(8))
        communicator.send(b"def", kind(0), tag=kind(8))
        request.wait(timeout=30)
        assert received == b"def"
        region = communicator.endpoint.register(bytearray(range(16)))
        remote = peer.attach(region.descriptor, timeout=30)
        got = bytearray(8)
        peer.get(got, remote[kind(4) : kind(12)]).wait(timeout=30)
        assert got == bytes(range(4, 12))
        blocks = np.array([8, 0], kind)
        peer.get_batch(got, remote, [kind(0), kind(4)], blocks, kind(4)).wait(timeout=30)
        assert got == bytes([8, 9, 10, 11, 0, 1, 2, 3])
        peer.get_batch(got, remote, range(0, 8, 4), range(0, 8, 4), kind(4)).wait(timeout=30)
        assert got == bytes(range(8))
        peer.signal(kind(3), kind(2))
        peer.wait_signal(kind(3), n=kind(2), timeout=30)
    assert onehop.empty(kind(5)).nbytes == 5
    assert onehop.empty((kind(2), 3), "u1").shape == (2, 3)
    assert onehop.empty(kind(4), "i2").shape == (4,)
    assert onehop.empty(np.array([2, 3]), "u1").shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda peer: peer.send(b"", tag=-1), "tag is -1: give an integer, 0 to 2**63 - 1"),
        (lambda peer: peer.send(b"", tag=2**64), f"tag is {2**64}: give"),
        (lambda peer: peer.signal(-1), "slot is -1: give a slot, 0 to 63"),
        (lambda peer: peer.signal(2**32), f"slot is {2**32}: give a slot"),
        (lambda peer: peer.signal(0, -1), "n is -1: give a count"),
        (lambda peer: peer.on(0).send(b"", lane=-1), "lane is -1: give a lane, 0 to 15"),
        (lambda peer: peer.attach(b""), "these 0 bytes are no region descriptor"),
        (lambda peer: onehop.Endpoint().connect(b""), "these 0 bytes are no onehop address"),
        (lambda peer: onehop.Endpoint("gpu"), 'device is gpu: give None, "host" or "cpu"'),
        (lambda peer: onehop.Endpoint("xpu:0"), "device is xpu:0: give"),
        (lambda peer: onehop.Communicator(-1, 2), "rank is -1: give a rank"),
        (lambda peer: onehop.Communicator(0, 2**40), f"size is {2**40}: give"),
        (lambda peer: onehop.Communicator(0, 2, unique_id=b""), "unique_id"),
        (lambda peer: onehop.Communicator(0, 2, rendezvous=""), "rendezvous"),
        (lambda peer: onehop.Communicator(0, 2, "\ud800"), "rendezvous is"),
        (lambda peer: onehop.Endpoint(max_inline=-1), "max_inline is -1: give a number of bytes"),
        (lambda peer: onehop.empty(-1), "shape is -1: give a number of bytes"),
        (lambda peer: onehop.empty((2, -1), "u1"), "lengths are 0 or more"),
    ],
)
def test_values_that_make_no_sense(pair, call, text):
    with pytest.raises(onehop.InvalidArgument) as caught:
        call(pair.first)
    assert text in str(caught.value)
    assert "NULL" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("wrong", [1.5, "1", b"1", None, [1], np.float64(1), np.array([1])])
def test_what_is_no_integer_is_no_tag(pair, wrong):
    with pytest.raises(TypeError, match=r"tag is of type .*give an integer"):
        pair.first.send(b"", tag=wrong)


def test_the_cpu_is_the_host():
    for device in ("cpu", "cpu:0", "host", None):
        with onehop.Endpoint(device) as endpoint:
            assert repr(endpoint) == "<onehop.Endpoint on host>"


def test_indices_far_outside_of_a_region(pair):
    region = pair.endpoints[0].register(bytearray(8))
    for key in (slice(0, 2**70), slice(-(2**70), None), slice(0, 9)):
        with pytest.raises(onehop.OutOfRange, match="region of 8 bytes"):
            region[key]
    with pytest.raises(TypeError, match="index is of type str"):
        region["a":]
    for key in (3, None, "a"):
        with pytest.raises(TypeError, match=f"key is of type {type(key).__name__}"):
            region[key]
