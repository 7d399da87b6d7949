# SPDX-License-Identifier: Apache-2.0
"""Requests in asyncio: run `asyncio_pair.py 0` in one terminal, `asyncio_pair.py 1` in another.

Shown in docs/guides/messages.md.
"""

import asyncio
import sys

import onehop

MESSAGES = 8


# --8<-- [start:tasks]
async def send_all(comm: onehop.Communicator, other: int) -> None:
    """Send messages that differ by their tag, all of them in flight at once."""
    await asyncio.gather(*(comm.isend(bytes([i]) * 100_000, other, tag=i) for i in range(MESSAGES)))


async def receive_all(comm: onehop.Communicator, other: int) -> None:
    """Receive them; no thread is blocked meanwhile."""
    buffers = [bytearray(100_000) for _ in range(MESSAGES)]
    requests = [comm.irecv(buffer, other, tag=i) for i, buffer in enumerate(buffers)]
    for i, request in enumerate(requests):
        message = await asyncio.wait_for(request, timeout=60)
        print(f"tag {i}: {message.nbytes} bytes of {buffers[i][0]}")


async def main(rank: int) -> None:
    """Exchange messages with the other rank, in both directions at once."""
    other = 1 - rank
    with onehop.Communicator(rank, 2, rendezvous="tcp://127.0.0.1:29400") as comm:
        await asyncio.gather(send_all(comm, other), receive_all(comm, other))
        peer = comm.peer(other)
        peer.signal(0)
        await peer.wait_signal_async(0, timeout=60)


# --8<-- [end:tasks]
asyncio.run(main(int(sys.argv[1])))
