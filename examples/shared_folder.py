# SPDX-License-Identifier: Apache-2.0
"""Two processes that share nothing but a folder: `shared_folder.py FOLDER accept`, then `connect`.

The endpoints' addresses travel as files; the sockets lie in the folder that ONEHOP_SOCKET_DIR
names. examples/containers.sh gives each process a network and process ids of its own.
"""

import sys
import time
from pathlib import Path

import numpy as np
import onehop

folder, role = Path(sys.argv[1]), sys.argv[2]
with onehop.Endpoint() as endpoint:
    # --8<-- [start:connect]
    if role == "accept":
        (folder / "address.part").write_bytes(endpoint.address)
        (folder / "address.part").rename(folder / "address")  # atomic: complete, or not there
        peer = endpoint.accept(timeout=60)
    else:
        end = time.monotonic() + 60
        while not (folder / "address").exists():
            if time.monotonic() > end:
                raise SystemExit("no address came within 60 s")
            time.sleep(0.01)
        peer = endpoint.connect((folder / "address").read_bytes(), timeout=60)
    # --8<-- [end:connect]
    info = peer.info()
    print(
        f"{role}: path {info.path}, single copy of private memory: {info.single_copy}", flush=True
    )
    shared = onehop.empty(1 << 20, np.uint8)
    if role == "accept":
        message = peer.recv(shared, timeout=60)
        print(f"{message.nbytes} bytes by {message.path}, last {shared[-1]}", flush=True)
    else:
        shared[:] = 7
        peer.send(shared, timeout=60)
        print(onehop.paths(peer))
    # Both sides must have finished before either leaves.
    peer.signal(0)
    peer.wait_signal(0, timeout=60)
