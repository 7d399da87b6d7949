# SPDX-License-Identifier: Apache-2.0
"""The calls that SGLang makes of Mooncake's engine, in its order, between two processes."""

import threading

import numpy as np
import onehop.mooncake
from mooncake_engines import HOST, pattern, run_two

LAYERS, PAGES, PAGE = 4, 64, 4096
AUX = 1 << 16


def engine():
    """What SGLang does first: the import, initialize, the session."""
    onehop.mooncake.install()
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    assert made.initialize(HOST, "P2PHANDSHAKE", "rdma", "") == 0
    return made, f"{HOST}:{made.get_rpc_port()}"


def buffers(seed):
    """Return the KV cache of each layer, and an area beside it."""
    if seed is None:
        return [np.zeros(PAGES * PAGE, "u1") for _ in range(LAYERS)], np.zeros(AUX, "u1")
    caches = [pattern(seed + layer, PAGES * PAGE) for layer in range(LAYERS)]
    return caches, pattern(seed - 1, AUX)


def register(made, caches, aux):
    areas = [*caches, aux]
    assert (
        made.batch_register_memory([a.ctypes.data for a in areas], [a.nbytes for a in areas]) == 0
    )


def decode(other):
    made, session = engine()
    caches, aux = buffers(None)
    register(made, caches, aux)
    pages = np.random.default_rng(5).permutation(PAGES)[:40]
    other.give((session, [a.ctypes.data for a in caches], aux.ctypes.data, pages))
    assert other.take() == "sent"
    expected, expected_aux = buffers(100)
    source = np.arange(len(pages))
    for ours, theirs in zip(caches, expected, strict=True):
        wanted = np.zeros((PAGES, PAGE), "u1")
        wanted[pages] = theirs.reshape(PAGES, PAGE)[source]
        assert (ours.reshape(PAGES, PAGE) == wanted).all()
    assert (aux == expected_aux).all()
    # A pool that is registered later, which the other side has not heard of.
    state = np.zeros(1 << 18, "u1")
    assert made.register_memory(state.ctypes.data, state.nbytes) == 0
    other.give(state.ctypes.data)
    assert other.take() == "sent"
    assert (state == pattern(7, len(state))).all()
    assert made.batch_unregister_memory([a.ctypes.data for a in caches]) == 0
    other.give("gone")
    return other.take()


def prefill(other):
    made, _ = engine()
    caches, aux = buffers(100)
    register(made, caches, aux)
    session, theirs, their_aux, pages = other.take()
    assert made.send_probe(session) == 0
    results = []

    def send_layer(layer):
        local = [caches[layer].ctypes.data + i * PAGE for i in range(len(pages))]
        remote = [theirs[layer] + int(page) * PAGE for page in pages]
        lengths = [PAGE] * len(pages)
        results.append(made.batch_transfer_sync_write(session, local, remote, lengths))

    # From several threads, of which the first connects.
    threads = [threading.Thread(target=send_layer, args=(layer,)) for layer in range(LAYERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [0] * LAYERS
    assert made.transfer_sync_write(session, aux.ctypes.data, their_aux, AUX) == 0
    other.give("sent")
    state = pattern(7, 1 << 18)
    assert made.register_memory(state.ctypes.data, state.nbytes) == 0
    assert made.transfer_sync_write(session, state.ctypes.data, other.take(), state.nbytes) == 0
    other.give("sent")
    assert other.take() == "gone"
    # What was deregistered there cannot be written any more; the rest can.
    assert made.transfer_sync_write(session, caches[0].ctypes.data, theirs[0], PAGE) == -1
    assert made.transfer_sync_read(session, aux.ctypes.data, their_aux, AUX) == 0
    assert made.unregister_memory(aux.ctypes.data) == 0
    assert made.transfer_sync_write(session, aux.ctypes.data, their_aux, AUX) == -1
    other.give("done")
    return "done"


def test_prefill_to_decode(transport):
    assert run_two(prefill, decode) == ["done", "done"]
