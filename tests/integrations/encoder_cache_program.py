# SPDX-License-Identifier: Apache-2.0
"""vLLM's encoder cache: a consumer reads 10,000 random blocks by its NixlDataTransport.

Writes {"library": file of nixl, "wrong": blocks, "notified": messages} to standard output; the
messages are those that told the producer of the reads.
"""

import json
import multiprocessing
import os
import sys
import time

import numpy as np
from p2p_tier_program import BLOCKS, LENGTH, MOVED, SECONDS, content, indices

READS = 7


def transport(name):
    from vllm.distributed.ec_transfer.ec_connector.cpu.data.nixl import NixlDataTransport

    blocks = np.zeros((BLOCKS, LENGTH), np.uint8)
    made = NixlDataTransport(name, blocks.ctypes.data, BLOCKS, LENGTH, blocks.nbytes)
    return made, blocks


def produce(connection):
    mine, blocks = transport("producer")
    blocks[:] = content()
    connection.send((mine.get_agent_metadata(), mine.get_mem_descriptor()))
    got = []
    end = time.monotonic() + SECONDS
    while len(got) < READS and time.monotonic() < end:
        for messages in mine.get_new_notifs().values():
            got += [message.decode() for message in messages]
        time.sleep(0.001)
    connection.send(sorted(got))
    connection.recv()
    mine.deregister()
    os._exit(0)


def main():
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    producer = context.Process(target=produce, args=(theirs,), daemon=True)
    producer.start()
    mine, blocks = transport("consumer")
    assert connection.poll(SECONDS), "the producer does not answer"
    peer = mine.add_remote_peer(*connection.recv())
    source, target = indices()
    handles = [
        mine.post_read(target[part].tolist(), peer, source[part].tolist(), b"read %d" % index)
        for index, part in enumerate(np.array_split(np.arange(MOVED), READS))
    ]
    end = time.monotonic() + SECONDS
    while any(mine.check_xfer_state(handle) != "DONE" for handle in handles):
        assert time.monotonic() < end, f"reads are not done after {SECONDS} s"
    expected = np.zeros_like(blocks)
    expected[target] = content()[source]
    wrong = int((blocks != expected).any(axis=1).sum())
    for handle in handles:
        mine.release_xfer_handle(handle)
    assert connection.poll(2 * SECONDS), "the producer does not answer"
    notified = connection.recv()
    mine.remove_remote_peer(peer)
    mine.deregister()
    connection.send("end")
    producer.join(SECONDS)
    import nixl._api as api

    library = sys.modules[api.nixl_agent.__module__].__file__
    print(json.dumps({"library": library, "wrong": wrong, "notified": notified}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
