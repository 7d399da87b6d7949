# SPDX-License-Identifier: Apache-2.0
"""How the package shows itself: signatures, names, reprs, weak references."""

import enum
import gc
import inspect
import pickle
import weakref

import onehop
import pytest

CLASSES = [
    value
    for name in onehop.__all__
    if inspect.isclass(value := getattr(onehop, name)) and not issubclass(value, enum.Enum)
]
COMPILED = [kind for kind in CLASSES if type(kind).__module__ == "nanobind"]
FUNCTIONS = [
    value
    for name in onehop.__all__
    if callable(value := getattr(onehop, name)) and not inspect.isclass(value)
]


def methods_of(kind):
    return {
        name: value
        for name, value in vars(kind).items()
        if callable(value) and type(value).__name__ == "nb_method"
    }


METHODS = [(kind, name) for kind in COMPILED for name in methods_of(kind)]


def test_there_is_something_to_look_at():
    assert onehop.Peer in COMPILED
    assert (onehop.Peer, "send") in METHODS
    assert onehop.group in FUNCTIONS
    assert len(METHODS) > 80


@pytest.mark.parametrize(
    ("kind", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value)
)
def test_every_method_has_a_signature(kind, name):
    signature = inspect.signature(getattr(kind, name))
    first, *others = signature.parameters.values()
    assert first.name == "self"
    assert signature.return_annotation not in (inspect.Signature.empty, "object")
    for parameter in others:
        assert parameter.annotation not in (inspect.Parameter.empty, "object", "_object") or (
            parameter.kind is parameter.VAR_POSITIONAL
        )


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_function_has_a_signature(function):
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_signatures_of_what_is_called_most(pair):
    signature = inspect.signature(onehop.Peer.send)
    assert list(signature.parameters) == ["self", "buffer", "tag", "timeout", "after"]
    assert signature.parameters["tag"].default == 0
    assert signature.parameters["timeout"].default is ...
    assert signature.parameters["after"].default is onehop.CURRENT_STREAM
    bound = inspect.signature(pair.first.send)
    assert list(bound.parameters) == ["buffer", "tag", "timeout", "after"]
    bound.bind(b"", 1, after=None)
    with pytest.raises(TypeError, match="buffer"):
        bound.bind(tag=1)
    assert list(inspect.signature(onehop.Endpoint).parameters) == [
        "device",
        "max_inline",
        "progress_thread",
    ]
    assert "self" not in inspect.signature(onehop.Communicator).parameters


def test_public_names_say_where_they_are():
    for value in [*COMPILED, onehop.Status, onehop.Scope]:
        assert value.__module__ == "onehop"
        assert repr(value) in (f"<class 'onehop.{value.__name__}'>", f"<enum '{value.__name__}'>")
        assert getattr(onehop, value.__qualname__) is value
    for kind, name in METHODS:
        method = getattr(kind, name)
        assert method.__module__ == "onehop"
        assert method.__qualname__ == f"{kind.__name__}.{name}"
    for function in (onehop.group, onehop.config, onehop.unique_id):
        assert function.__module__ == "onehop"
    assert pickle.loads(pickle.dumps(onehop.Status.AUTH)) is onehop.Status.AUTH
    assert onehop._core.__name__ == "onehop._core"


def test_reprs(pair):
    first, second = pair.endpoints
    peer = pair.first
    assert repr(first) == "<onehop.Endpoint on host>"
    assert repr(peer).startswith(f"<onehop.Peer {peer.id} ")
    stream = peer.on(0x10)
    assert repr(stream) == f"<onehop.OnStream peer {peer.id}, stream 0x10>"
    assert repr(onehop.CURRENT_STREAM) == "onehop.CURRENT_STREAM"
    group = onehop.group()
    assert repr(group) == "<onehop.Group, 0 open in this thread>"
    with group, group:
        assert repr(group) == "<onehop.Group, 2 open in this thread>"
    region = first.register(bytearray(8))
    assert repr(region[2:5]) == "<onehop.Region bytes 2:5>"
    remote = pair.second.attach(region.descriptor, timeout=30)
    assert repr(remote[1:]) == "<onehop.RemoteRegion bytes 1:8>"
    assert repr(memoryview(onehop.empty(3)).obj) == "<onehop.SharedBuffer of 3 bytes>"
    first.close()
    assert repr(first) == "<onehop.Endpoint on host, closed>"
    assert repr(second) == "<onehop.Endpoint on host>"
    with onehop.Communicator(0, 1) as communicator:
        assert repr(communicator) == "<onehop.Communicator rank 0 of 1, connected to 0>"
        communicator.peer(0)
        assert repr(communicator) == "<onehop.Communicator rank 0 of 1, connected to 1>"
        assert repr(communicator.endpoint) == "<onehop.Endpoint on host, of a communicator>"
        shown = repr(communicator.on(0))
        assert shown == "<onehop.CommunicatorOnStream rank 0 of 1, stream 0>"
    assert repr(communicator).endswith(", closed>")


def test_no_class_has_python_s_own_repr():
    for kind in COMPILED:
        assert kind.__repr__ is not object.__repr__, kind


def test_weak_references(pair):
    region = pair.endpoints[0].register(bytearray(8))
    remote = pair.second.attach(region.descriptor, timeout=30)
    for alive in (pair.first, pair.endpoints[0], region, remote):
        assert weakref.ref(alive)() is alive
    names = weakref.WeakKeyDictionary({pair.first: "first", pair.second: "second"})
    assert names[pair.first] == "first"
    pair.first = None
    gc.collect()
    assert list(names.values()) == ["second"]
    communicator = onehop.Communicator(0, 1)
    assert weakref.ref(communicator)() is communicator
    communicator.close()
