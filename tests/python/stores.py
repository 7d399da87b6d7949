# SPDX-License-Identifier: Apache-2.0
"""Stores and a communicator in the shape of torch's and mpi4py's, which need not be installed."""

import time
from pathlib import Path


class BareStore:
    """A folder as a store, with set and get and nothing else."""

    def __init__(self, folder) -> None:
        self.folder = Path(folder)

    def path(self, key):
        return self.folder / key.replace("/", "__")

    def set(self, key, value):
        fresh = self.path(f"{key}.{time.monotonic_ns()}")
        fresh.write_text(value)
        fresh.rename(self.path(key))

    def get(self, key):
        try:
            return self.path(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None


class WaitingStore(BareStore):
    """With what torch.distributed.Store has besides, in the same shape."""

    def add(self, key, amount):
        # Only one rank has this key.
        path = self.path(key)
        value = amount + (int(path.read_text()) if path.exists() else 0)
        self.set(key, str(value))
        return value

    def wait(self, keys, timeout):
        end = time.monotonic() + timeout.total_seconds()
        while not all(self.path(key).exists() for key in keys):
            if time.monotonic() > end:
                msg = f"wait timeout after {timeout}"
                raise RuntimeError(msg)
            time.sleep(0.001)


class Request:
    def __init__(self, done) -> None:
        self.done = done

    def Test(self):  # noqa: N802
        return self.done()


class PipeComm:
    """A communicator of two, by the two ends of a pipe, in the shape of mpi4py."""

    def __init__(self, rank, end) -> None:
        self.rank = rank
        self.end = end

    def Get_rank(self):  # noqa: N802
        return self.rank

    def Get_size(self):  # noqa: N802
        return 2

    def Ibcast(self, buf, root=0):  # noqa: N802
        if self.rank == root:
            self.end.send_bytes(buf)
            return Request(lambda: True)

        def arrived():
            if self.end.poll():
                buf[:] = self.end.recv_bytes()
                return True
            return False

        return Request(arrived)
