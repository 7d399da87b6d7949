# SPDX-License-Identifier: Apache-2.0
"""vLLM's P2P tier: 10,000 random blocks by its NixlTransport from one process to another.

Writes {"library": file of nixl, "moved": blocks, "wrong": blocks, "touched": blocks} to standard
output; every byte of the receiver's memory is checked.
"""

import json
import multiprocessing
import os
import sys
import time

import numpy as np

BLOCKS, LENGTH, MOVED = 12_000, 4096, 10_000
SEED = 20261125
SECONDS = 120


def transport(name):
    from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport

    blocks = np.zeros((BLOCKS, LENGTH), np.uint8)
    made = NixlTransport(name, memoryview(blocks))
    assert made.available
    return made, blocks


def content():
    return np.random.default_rng(SEED).integers(0, 256, (BLOCKS, LENGTH), np.uint8)


def indices():
    random = np.random.default_rng(SEED + 1)
    return random.permutation(BLOCKS)[:MOVED], random.permutation(BLOCKS)[:MOVED]


def receive(connection):
    mine, blocks = transport("receiver")
    connection.send((mine.get_agent_metadata(), blocks.ctypes.data))
    assert connection.poll(SECONDS)
    connection.recv()
    source, target = indices()
    expected = np.zeros_like(blocks)
    expected[target] = content()[source]
    wrong = int((blocks != expected).any(axis=1).sum())
    touched = int(blocks.any(axis=1).sum())
    connection.send((wrong, touched))
    connection.recv()
    os._exit(0)


def main():
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    receiver = context.Process(target=receive, args=(theirs,), daemon=True)
    receiver.start()
    mine, blocks = transport("sender")
    blocks[:] = content()
    assert connection.poll(SECONDS), "the receiver does not answer"
    metadata, base = connection.recv()
    mine.add_remote_peer("receiver", metadata, base, BLOCKS, LENGTH)
    source, target = indices()
    # In as many requests as a batch of sequences makes.
    waiting = set()
    for part in np.array_split(np.arange(MOVED), 7):
        waiting.add(mine.write_blocks("receiver", source[part].tolist(), target[part].tolist()))
    assert None not in waiting
    end = time.monotonic() + SECONDS
    while waiting and time.monotonic() < end:
        seen = mine.poll("receiver")
        assert not seen.failed, seen
        waiting -= set(seen.done)
    assert not waiting, f"transfers {waiting} are not done after {SECONDS} s"
    connection.send("all done")
    assert connection.poll(SECONDS), "the receiver does not answer"
    wrong, touched = connection.recv()
    import nixl._api as api

    library = sys.modules[api.nixl_agent.__module__].__file__
    result = {"library": library, "moved": MOVED, "wrong": wrong, "touched": touched}
    mine.remove_remote_peer("receiver")
    mine.close()
    connection.send("end")
    receiver.join(SECONDS)
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
