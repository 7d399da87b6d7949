# SPDX-License-Identifier: Apache-2.0
"""One of vLLM's transports of blocks moves 10,000 random ones from one process to another.

    python block_transport_program.py tier|cache

tier: the P2P tier writes them by its NixlTransport; cache: a consumer of the encoder cache reads
them by its NixlDataTransport. The last line is JSON: the file of nixl's library, and how many
blocks of the receiver's memory are wrong; "touched", how many have been written, or "notified", the
messages that told the producer of the reads.
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
REQUESTS = 7  # as many as a batch of sequences makes


def content():
    return np.random.default_rng(SEED).integers(0, 256, (BLOCKS, LENGTH), np.uint8)


def indices():
    random = np.random.default_rng(SEED + 1)
    return random.permutation(BLOCKS)[:MOVED], random.permutation(BLOCKS)[:MOVED]


def parts():
    """Numbers of the blocks of each request, in the source and in the target."""
    source, target = indices()
    for part in np.array_split(np.arange(MOVED), REQUESTS):
        yield source[part].tolist(), target[part].tolist()


def wrong(blocks):
    """How many blocks of the receiver's memory are not what they should be."""
    source, target = indices()
    expected = np.zeros_like(blocks)
    expected[target] = content()[source]
    return int((blocks != expected).any(axis=1).sum())


def hear(connection):
    assert connection.poll(SECONDS), f"the other process says nothing for {SECONDS} s"
    return connection.recv()


def tier(name):
    from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport

    blocks = np.zeros((BLOCKS, LENGTH), np.uint8)
    made = NixlTransport(name, memoryview(blocks))
    assert made.available
    return made, blocks


def tier_receives(connection):
    mine, blocks = tier("receiver")
    connection.send((mine.get_agent_metadata(), blocks.ctypes.data))
    hear(connection)
    connection.send({"wrong": wrong(blocks), "touched": int(blocks.any(axis=1).sum())})
    hear(connection)


def tier_sends(connection):
    mine, blocks = tier("sender")
    blocks[:] = content()
    metadata, base = hear(connection)
    mine.add_remote_peer("receiver", metadata, base, BLOCKS, LENGTH)
    waiting = {mine.write_blocks("receiver", source, target) for source, target in parts()}
    assert None not in waiting
    end = time.monotonic() + SECONDS
    while waiting and time.monotonic() < end:
        seen = mine.poll("receiver")
        assert not seen.failed, seen
        waiting -= set(seen.done)
    assert not waiting, f"transfers {waiting} are not done after {SECONDS} s"
    connection.send("all done")
    found = hear(connection)
    mine.remove_remote_peer("receiver")
    mine.close()
    return found


def cache(name):
    from vllm.distributed.ec_transfer.ec_connector.cpu.data.nixl import NixlDataTransport

    blocks = np.zeros((BLOCKS, LENGTH), np.uint8)
    return NixlDataTransport(name, blocks.ctypes.data, BLOCKS, LENGTH, blocks.nbytes), blocks


def cache_produces(connection):
    mine, blocks = cache("producer")
    blocks[:] = content()
    connection.send((mine.get_agent_metadata(), mine.get_mem_descriptor()))
    got = []
    end = time.monotonic() + SECONDS
    while len(got) < REQUESTS and time.monotonic() < end:
        for messages in mine.get_new_notifs().values():
            got += [message.decode() for message in messages]
        time.sleep(0.001)
    connection.send(sorted(got))
    hear(connection)
    mine.deregister()


def cache_consumes(connection):
    mine, blocks = cache("consumer")
    peer = mine.add_remote_peer(*hear(connection))
    handles = [
        mine.post_read(target, peer, source, b"read %d" % number)
        for number, (source, target) in enumerate(parts())
    ]
    end = time.monotonic() + SECONDS
    while any(mine.check_xfer_state(handle) != "DONE" for handle in handles):
        assert time.monotonic() < end, f"reads are not done after {SECONDS} s"
    found = {"wrong": wrong(blocks)}
    for handle in handles:
        mine.release_xfer_handle(handle)
    found["notified"] = hear(connection)
    mine.remove_remote_peer(peer)
    mine.deregister()
    return found


# What the other process does, and what this one does.
TRANSPORTS = {"tier": (tier_receives, tier_sends), "cache": (cache_produces, cache_consumes)}


def play(role, connection):
    role(connection)
    os._exit(0)


def main():
    other, ours = TRANSPORTS[sys.argv[1]]
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(target=play, args=(other, theirs), daemon=True)
    process.start()
    found = ours(connection)
    connection.send("end")
    process.join(SECONDS)
    import nixl._api as api

    library = sys.modules[api.nixl_agent.__module__].__file__
    print(json.dumps({"library": library, **found}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
