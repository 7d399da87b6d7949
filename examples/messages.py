# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes: run `messages.py 0` in one terminal, `messages.py 1` in another.

The parts between the markers are shown in docs/guides/messages.md.
"""

import sys

import numpy as np
import onehop

rank = int(sys.argv[1])
other = 1 - rank
with onehop.Communicator(rank, 2, rendezvous="tcp://127.0.0.1:29400") as comm:
    # --8<-- [start:tags]
    if rank == 0:
        comm.send(b"tag 1, first", other, tag=1)
        comm.send(b"tag 1, second", other, tag=1)
        comm.send(b"tag 2", other, tag=2)
    else:
        buffer = bytearray(100)
        for tag in (2, 1, 1):
            message = comm.recv(buffer, other, tag=tag)
            print(f"tag {message.tag}: {bytes(buffer[: message.nbytes])!r}, by {message.path}")
    # --8<-- [end:tags]
    # --8<-- [start:exchange]
    mine = np.full(1_000_000, rank, dtype=np.float32)
    theirs = np.empty_like(mine)
    receive = comm.irecv(theirs, other)
    send = comm.isend(mine, other)
    # The requests use the buffers until they have ended.
    sent, received = onehop.wait_all([send, receive], timeout=60)
    print(f"{received.nbytes} bytes, first value {theirs[0]}, by {received.path}")
    # --8<-- [end:exchange]
    # --8<-- [start:unknown]
    if rank == 0:
        comm.send(b"x" * 12_345, other, tag=3)
    else:
        found = comm.probe(onehop.ANY_SOURCE, onehop.ANY_TAG, timeout=60)
        exact = bytearray(found.nbytes)
        comm.recv(exact, found.source, tag=found.tag)
        print(f"{found.nbytes} bytes of tag {found.tag} from rank {found.source}")
    # --8<-- [end:unknown]
    # --8<-- [start:errors]
    try:
        comm.recv(bytearray(8), other, tag=99, timeout=0.1)
    except onehop.TimeoutError as failure:
        print(f"{failure.status.name}, scope {failure.scope.name}: {failure}")
    # --8<-- [end:errors]
    comm.barrier()
