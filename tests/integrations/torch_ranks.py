# SPDX-License-Identifier: Apache-2.0
"""What the programs of test_torch.py share: ranks of a group over onehop, and expected errors."""

import multiprocessing
import os
import signal
import time
from datetime import timedelta

import onehop.torch  # noqa: F401 - makes the backend known
import torch
import torch.distributed as dist

DEADLINE = 60.0  # seconds, for whatever a program waits for
_spawn = multiprocessing.get_context("spawn")


def join(rank, size, rendezvous, seconds=DEADLINE, **options):
    """Make the default group; operations of it may take so many seconds."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "onehop",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
        **options,
    )


def raises(kind, call) -> str:
    """Return the text of what a call raises."""
    try:
        call()
    except kind as failure:
        failure.__traceback__ = None  # its frames keep what the caller has
        return str(failure)
    raise AssertionError(f"no {kind.__name__}")


class Rank:
    """A rank in a process of its own, which talks with the program that started it."""

    def __init__(self, function, rank, *arguments):
        self.pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=function, args=(theirs, rank, *arguments))
        self._process.start()
        theirs.close()

    def hears(self, word):
        """Wait until the rank says a word."""
        assert self.pipe.poll(DEADLINE), f"a rank has not said {word!r}"
        said = self.pipe.recv()
        assert said == word, (said, word)

    def signal(self, number):
        """Send a signal; a stop is over when the rank has stopped."""
        os.kill(self._process.pid, number)
        end = time.monotonic() + DEADLINE
        while number == signal.SIGSTOP and self._state() != "T":
            assert time.monotonic() < end, "a rank does not stop"
            time.sleep(0.001)

    def ends(self, code=0):
        """Wait for its end, with this exit code."""
        self._process.join(DEADLINE)
        found = self._process.exitcode
        if found is None:
            self._process.kill()
        assert found == code, f"a rank ended with {found} (None: not within {DEADLINE} s)"

    def _state(self):
        with open(f"/proc/{self._process.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]


def listen(pipe, word):
    """Wait, in a rank, until the program says a word."""
    assert pipe.poll(DEADLINE), f"the program has not said {word!r}"
    assert pipe.recv() == word
