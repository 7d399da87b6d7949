# SPDX-License-Identifier: Apache-2.0
"""Kernels of numba-cuda for tests: looked at as PTX, and run on GPUs.

Each leaves the greatest fault in `fault`, and 100 or more where something was not as expected.
"""

import onehop.numba as oh
from numba import cuda

# ---- One call each, between a store and a load of the block


def signal_once(lane, there, data, fault):
    data[cuda.threadIdx.x] = 1
    fault[0] = oh.signal(lane, 3)


def set_once(lane, there, data, fault):
    data[cuda.threadIdx.x] = 1
    fault[0] = oh.set_signal(lane, 3, count=7)


def wait_once(lane, there, data, fault):
    fault[0] = oh.wait(lane, 3, 2)
    data[0] += 1


def wait_until_once(lane, there, data, fault):
    fault[0] = oh.wait_until(lane, 3, 2)
    data[0] += 1


def read_once(lane, there, data, fault):
    fault[0], fault[1] = oh.read_signal(lane, 3)
    data[0] += 1


def put_once(lane, there, data, fault):
    fault[0] = oh.put(there, 8, data)


def get_once(lane, there, data, fault):
    fault[0] = oh.get(there, 8, data)
    data[0] += 1


def send_once(lane, there, data, fault):
    fault[0] = oh.send(lane, data[1:5])


def recv_once(lane, there, data, fault):
    fault[0], fault[1] = oh.recv(lane, data)
    data[0] += 1


# The same condition before and behind a call, which a compiler may not copy into both branches.
def signal_between_branches(lane, there, data, fault):
    if data[cuda.threadIdx.x] == 1:
        data[cuda.threadIdx.x] = 2
        told = True
    else:
        told = False
    found = oh.signal(lane, 3)
    if told:
        fault[0] = found


# ---- On GPUs


@cuda.jit(device=True)
def byte_of(step, at):
    return (at * 7 + at // 253 + step * 31) % 251


@cuda.jit(device=True)
def tell(fault, found):
    if found != 0:
        cuda.atomic.max(fault, 0, found)


@cuda.jit(device=True)
def fill(data, step):
    for at in range(cuda.threadIdx.x, data.size, cuda.blockDim.x):
        data[at] = byte_of(step, at)


@cuda.jit(device=True)
def look(data, step, fault):
    for at in range(cuda.threadIdx.x, data.size, cuda.blockDim.x):
        if data[at] != byte_of(step, at):
            tell(fault, 100)


@cuda.jit
def exchange(lane, rank, out, into, steps, fault):
    """Send a message and receive one, in the order of the ranks, of a size that alternates."""
    for step in range(steps):
        size = out.size if step % 2 else 1000 + step
        fill(out[:size], step + rank)
        for turn in range(2):
            if turn == rank:
                tell(fault, oh.send(lane, out[:size]))
            else:
                found, received = oh.recv(lane, into)
                tell(fault, found)
                if received != size:
                    tell(fault, 101)
        look(into[:size], step + 1 - rank, fault)
        cuda.syncthreads()  # behind a send its data may be written again


@cuda.jit
def put_rounds(lane, there, out, back, steps, fault):
    """Put and signal slot 3; slot 4 says that the peer has looked, and changed what is there."""
    for step in range(steps):
        fill(out, step)
        tell(fault, oh.put(there, 16, out))
        tell(fault, oh.signal(lane, 3, 2))
        tell(fault, oh.wait(lane, 4))
        tell(fault, oh.get(there, 16, back))
        look(back, step + 7, fault)
        tell(fault, oh.set_signal(lane, 5, step + 1))


@cuda.jit
def look_at_rounds(lane, here, steps, fault):
    """Do what put_rounds() waits for."""
    for step in range(steps):
        tell(fault, oh.wait_until(lane, 3, 2))
        found, count = oh.read_signal(lane, 3)
        tell(fault, found)
        if count != 2:
            tell(fault, 102)
        tell(fault, oh.wait(lane, 3, 2))
        look(here[16:], step, fault)
        fill(here[16:], step + 7)
        tell(fault, oh.signal(lane, 4))
        tell(fault, oh.wait_until(lane, 5, step + 1))


@cuda.jit
def refused(lane, there, data, faults):
    """Slots that there are not, and ranges that are not within the region."""
    faults[0] = oh.signal(lane, 64)
    faults[1] = oh.signal(lane, -1)
    faults[2] = oh.wait(lane, 2**32 + 3)
    faults[3] = oh.put(there, there[1] - 7, data[:8])
    faults[4] = oh.get(there, -8, data[:8])
    faults[5] = oh.put(there, there[1] - 8, data[:8])


@cuda.jit
def wait_alone(lane, fault):
    fault[0] = oh.wait(lane, 9)
