# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop, or leave, seen by those that wait for them: `... CASE RENDEZVOUS_FILE`."""

import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch_ranks import Rank, join, listen, raises


def ones(size=10):
    return torch.ones(size)


# ---- Killed in a receive of the other side


def victim(pipe, rank, rendezvous):
    join(rank, 3, rendezvous)
    dist.send(ones(), 1)
    pipe.send("sent")
    listen(pipe, "never")


def survivor(pipe, rank, rendezvous):
    join(rank, 3, rendezvous)
    into = torch.zeros(10)
    if rank == 1:
        dist.recv(into, 0)
        waiting = dist.irecv(into, 0)
        large = dist.isend(ones(10_000_000), 0)  # nobody receives it
        any_rank = dist.irecv(torch.zeros(10), tag=3)
        pipe.send("receiving")
        for work in (waiting, large):
            text = raises(dist.DistBackendError, work.wait)
            assert "rank 0" in text, text
            assert "lost" in text or "ended" in text, text
            assert not work.is_success()
            assert work.exception() is not None
        raises(dist.DistBackendError, lambda: dist.send(ones(), 0))
    # The others go on.
    if rank == 2:
        listen(pipe, "the victim is dead")
        dist.send(ones(), 1, tag=3)
        dist.recv(into, 1)
    else:
        any_rank.wait()
        assert any_rank.source_rank() == 2
        dist.send(ones(), 2)
    dist.destroy_process_group()
    pipe.send("went on")


def killed(rendezvous):
    first = Rank(victim, 0, rendezvous)
    second, third = (Rank(survivor, rank, rendezvous) for rank in (1, 2))
    first.hears("sent")
    second.hears("receiving")
    first.signal(signal.SIGKILL)
    first.ends(-signal.SIGKILL)
    third.pipe.send("the victim is dead")
    for rank in (second, third):
        rank.hears("went on")
        rank.ends()


# ---- Stopped, for a while


def sleeper(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    hasty = dist.new_group(timeout=timedelta(seconds=1))
    for group in (None, hasty):
        dist.send(ones(), 1, group=group)  # connects
    pipe.send("here")
    listen(pipe, "send")
    dist.send(ones(1_000_000), 1, tag=1)
    pipe.send("sent")
    dist.destroy_process_group()


def patient(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    hasty = dist.new_group(timeout=timedelta(seconds=1))
    for group in (None, hasty):
        dist.recv(torch.zeros(10), 0, group=group)
    pipe.send("here")
    listen(pipe, "the sleeper stands still")
    into = torch.zeros(1_000_000)
    work = dist.irecv(into, 0, tag=1)
    # The timeout of a group ends what is of it, and nothing else.
    late = dist.irecv(torch.zeros(1), 0, group=hasty)
    text = raises(dist.DistBackendError, late.wait)
    assert "deadline passed" in text, text
    assert "rank 0" in text, text
    assert not work.is_completed()
    pipe.send("receiving")
    work.wait()
    assert (into == 1).all()
    dist.destroy_process_group()


def stopped(rendezvous):
    first, second = Rank(sleeper, 0, rendezvous), Rank(patient, 1, rendezvous)
    for rank in (first, second):
        rank.hears("here")
    first.signal(signal.SIGSTOP)
    first.pipe.send("send")
    second.pipe.send("the sleeper stands still")
    second.hears("receiving")
    first.signal(signal.SIGCONT)
    first.hears("sent")
    for rank in (first, second):
        rank.ends()


# ---- Gone without destroy_process_group()


def leaver(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    dist.isend(ones(), 1)
    kept = dist.irecv(torch.zeros(1), 1)
    kept.get_future()  # a thread waits for it
    dist.barrier()
    pipe.send("leaving")


def stayer(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    dist.barrier()
    into = torch.zeros(10)
    listen(pipe, "the leaver has left")
    dist.recv(into, 0)
    assert (into == 1).all()
    text = raises(dist.DistBackendError, lambda: dist.recv(into, 0))
    assert "rank 0" in text, text
    dist.destroy_process_group()


def left(rendezvous):
    first, second = Rank(leaver, 0, rendezvous), Rank(stayer, 1, rendezvous)
    first.hears("leaving")
    first.ends()
    second.pipe.send("the leaver has left")
    second.ends()


if __name__ == "__main__":
    {"killed": killed, "stopped": stopped, "left": left}[sys.argv[1]](sys.argv[2])
    print("all is well")
