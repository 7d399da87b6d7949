# SPDX-License-Identifier: Apache-2.0
"""Kernels in Triton for tests: looked at as PTX, run by Triton's interpreter, and on GPUs.

Addresses come as tensors or as numbers. Each kernel adds to `wrong` what was not as expected, and
leaves the greatest fault in `fault`.
"""

import onehop.triton as oh
import triton
import triton.language as tl

DATA, BACK = tl.constexpr(3), tl.constexpr(4)  # slots


@triton.jit
def words(address):
    return address.to(tl.int64).to(tl.pointer_type(tl.int64))


@triton.jit
def pattern(at, seed):
    return (at * 7 + at // 253 + seed * 31) % 251


# ---- One call each


@triton.jit
def signal_once(lane, slot, count, there, fault):
    at = tl.arange(0, 128)
    tl.store(words(there) + at, at.to(tl.int64))
    tl.store(words(fault), oh.signal(words(lane), slot, count).to(tl.int64))


@triton.jit
def set_once(lane, slot, count, there, fault):
    at = tl.arange(0, 128)
    tl.store(words(there) + at, at.to(tl.int64))
    tl.store(words(fault), oh.set_signal(words(lane), slot, count).to(tl.int64))


@triton.jit
def wait_once(lane, slot, count, there, fault):
    found = oh.wait(words(lane), slot, count)
    at = tl.arange(0, 128)
    tl.store(words(there) + at, tl.load(words(there) + at) + 1)
    tl.store(words(fault), found.to(tl.int64))


@triton.jit
def wait_until_once(lane, slot, count, there, fault):
    found = oh.wait_until(words(lane), slot, count)
    at = tl.arange(0, 128)
    tl.store(words(there) + at, tl.load(words(there) + at) + 1)
    tl.store(words(fault), found.to(tl.int64))


@triton.jit
def read_once(lane, slot, count, there, fault):
    found, had = oh.read_signal(words(lane), slot)
    at = tl.arange(0, 128)
    tl.store(words(there) + at, tl.load(words(there) + at) + had)
    tl.store(words(fault), found.to(tl.int64))


@triton.jit
def meet_once(lane, slot, count, there, fault):
    at = tl.arange(0, 128)
    tl.store(words(there) + at, at.to(tl.int64))
    found = oh.barrier(words(lane), slot)
    tl.store(words(there) + at, tl.load(words(there) + at) + 1)
    tl.store(words(fault), found.to(tl.int64))


# A loop whose loads Triton would begin some iterations early, were it not for the wait.
@triton.jit
def wait_in_a_pipeline(lane, slot, count, there, fault):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    numbers = there.to(tl.pointer_type(tl.float16))
    total = tl.zeros((64, 64), tl.float32)
    for i in tl.range(0, count, num_stages=4):
        oh.wait(words(lane), slot)
        part = tl.load(numbers + i * 4096 + at)
        total = tl.dot(part, part, total)
    tl.store(there.to(tl.pointer_type(tl.float32)) + at, total)


# ---- Between two ranks


@triton.jit
def push(lane, there, size, step, fault, block: tl.constexpr):
    """Store a block by each program, which signals it; `step` is in memory, so graphs replay."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = pattern(at, tl.load(step)).to(tl.uint8)
    tl.store(there.to(tl.pointer_type(tl.uint8)) + at, value, mask=at < size)
    tl.atomic_max(fault, oh.signal(lane, DATA))


@triton.jit
def pull(lane, here, into, size, pushes, fault, block: tl.constexpr):
    """Copy when all programs of push() have signalled; take() subtracts their signals."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_max(fault, oh.wait_until(lane, DATA, pushes))
    tl.store(into + at, tl.load(here + at, mask=at < size), mask=at < size)


@triton.jit
def take(lane, pushes, fault):
    """Subtract the signals of push(), and let it go on."""
    tl.atomic_max(fault, oh.wait(lane, DATA, pushes))
    tl.atomic_max(fault, oh.signal(lane, BACK))


@triton.jit
def take_back(lane, fault):
    tl.atomic_max(fault, oh.wait(lane, BACK))


@triton.jit
def rounds(lane, there, here, side, count, wrong, fault, block: tl.constexpr):
    """Exchange blocks with the other side, again and again; one program."""
    at = tl.arange(0, block)
    step = 0
    found = 0
    while (step < count) & (found == 0):
        tl.store(words(there) + at, pattern(at.to(tl.int64), 2 * step + side))
        found = tl.maximum(oh.signal(lane, DATA), oh.wait(lane, DATA))
        seen = tl.load(here + at) != pattern(at.to(tl.int64), 2 * step + 1 - side)
        tl.atomic_add(wrong, tl.sum(seen.to(tl.int32)))
        found = tl.maximum(found, tl.maximum(oh.signal(lane, BACK), oh.wait(lane, BACK)))
        step += 1
    tl.atomic_max(fault, found)


@triton.jit
def steps(lane, count, wrong, fault):
    """Tell the other side the number of each step, in turns; one program."""
    step = 1
    found = 0
    while (step <= count) & (found == 0):
        found = tl.maximum(oh.set_signal(lane, 9, step), oh.wait_until(lane, 9, step))
        told, number = oh.read_signal(lane, 9)
        # The other side may be a step ahead.
        tl.atomic_add(wrong, ((number != step) & (number != step + 1)).to(tl.int32))
        found = tl.maximum(found, told)
        step += 1
    tl.atomic_max(fault, found)


# ---- Among all ranks


@triton.jit
def meet_often(comm, places, here, rank, size, count, wrong, fault):
    ranks = tl.arange(0, 64)
    others = (ranks < size) & (ranks != rank)
    theirs = words(tl.load(places + ranks, mask=others, other=0)) + rank
    step = 0
    found = 0
    while (step < count) & (found == 0):
        tl.store(theirs, tl.full((64,), step + 1, tl.int64), mask=others)
        found = oh.barrier(comm, 7)
        seen = tl.load(here + ranks, mask=others, other=0) != step + 1
        tl.atomic_add(wrong, tl.sum((seen & others).to(tl.int32)))
        found = tl.maximum(found, oh.barrier(comm, 7))
        step += 1
    tl.atomic_max(fault, found)
