# SPDX-License-Identifier: Apache-2.0
"""torch's pipeline schedules over onehop, beside the same model in one process.

    torch_pipelines_program.py RENDEZVOUS_FILE

Losses and gradients are equal bit by bit: both do the same sums in the same order.
"""

import inspect
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.multiprocessing import spawn
from torch_ranks import join

RANKS, STAGES, MICROBATCHES, BATCH, WIDTH = 2, 4, 4, 16, 32
loss_of = torch.nn.functional.mse_loss


def model():
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(STAGES)
    ]


def data():
    torch.manual_seed(1)
    return torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


def reference():
    """Return the losses and the modules with their gradients, of one process."""
    modules = model()
    losses = []
    chunks = (each.chunk(MICROBATCHES) for each in data())
    for inputs, targets in zip(*chunks, strict=True):
        loss = loss_of(torch.nn.Sequential(*modules)(inputs), targets)
        loss.backward()
        losses.append(loss.detach())
    # torch 2.6 sums the gradients of microbatches, later ones give their mean.
    if "scale_grads" not in inspect.signature(ScheduleGPipe.__init__).parameters:
        return losses, modules
    for module in modules:
        for parameter in module.parameters():
            parameter.grad /= MICROBATCHES
    return losses, modules


def step(schedule, *, first, last):
    inputs, targets = data()
    losses = []
    schedule.step(
        *([inputs] if first else []), **({"target": targets, "losses": losses} if last else {})
    )
    return [loss.detach() for loss in losses]


def compare(name, mine, losses):
    """Compare the modules of this rank, by their stage, and losses where there are any."""
    expected, modules = reference()
    for index, module in mine.items():
        for (label, ours), theirs in zip(
            module.named_parameters(), modules[index].parameters(), strict=True
        ):
            assert ours.grad is not None, (name, index, label)
            assert torch.equal(ours.grad, theirs.grad), (name, index, label)
    for ours, theirs in zip(losses, expected if losses else [], strict=True):
        assert torch.equal(ours, theirs), name


def main(rank, rendezvous):
    join(rank, RANKS, rendezvous)
    device = torch.device("cpu")
    last = rank == RANKS - 1
    for kind in (ScheduleGPipe, Schedule1F1B):
        whole = model()
        each = STAGES // RANKS
        mine = {index: whole[index] for index in range(rank * each, (rank + 1) * each)}
        stage = PipelineStage(torch.nn.Sequential(*mine.values()), rank, RANKS, device)
        losses = step(kind(stage, MICROBATCHES, loss_fn=loss_of), first=rank == 0, last=last)
        assert bool(losses) == last
        compare(kind.__name__, mine, losses)
    mine = {index: model()[index] for index in range(rank, STAGES, RANKS)}
    stages = [PipelineStage(module, index, STAGES, device) for index, module in mine.items()]
    schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=loss_of)
    losses = step(schedule, first=rank == 0, last=last)
    assert bool(losses) == last
    compare("ScheduleInterleaved1F1B", mine, losses)
    dist.destroy_process_group()
    print("all is well", flush=True)


if __name__ == "__main__":
    spawn(main, (sys.argv[1],), nprocs=RANKS)
