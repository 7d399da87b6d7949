# SPDX-License-Identifier: Apache-2.0
"""Two hosts: `two_hosts.py 0 HOST` on the host of that name, `two_hosts.py 1 HOST` on the other.

ONEHOP_SECRET has to be the same, at least 16 characters, on both, unless HOST is 127.0.0.1.
Shown in docs/guides/two-hosts.md.
"""

import sys

import numpy as np
import onehop

rank, host = int(sys.argv[1]), sys.argv[2]
with onehop.Communicator(rank, 2, rendezvous=f"tcp://{host}:29400", timeout=60) as comm:
    peer = comm.peer(1 - rank)
    info = peer.info()
    print(
        f"linked to {info.label} by {info.path}; inline up to {info.max_inline} bytes", flush=True
    )
    array = np.arange(1 << 20, dtype=np.uint32)
    if rank == 0:
        comm.send(array, 1)
        back = np.empty_like(array)
        message = comm.recv(back, 1)
        right = bool((back == array + 1).all())
        print(f"{message.nbytes} bytes by {message.path}, {'right' if right else 'WRONG'}")
    else:
        comm.recv(array, 0)
        comm.send(array + 1, 0)
    if rank == 0:
        print(onehop.paths(peer))
    comm.barrier()
