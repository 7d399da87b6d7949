# SPDX-License-Identifier: Apache-2.0
"""A training step of a model in two pipeline stages, by torch's 1F1B schedule over onehop.

    python examples/torch_pipeline.py                                       # starts two processes
    torchrun --nproc-per-node=2 examples/torch_pipeline.py                  # or by torchrun

Uses a GPU for each stage where there are as many, else the CPU.
"""

import os
import tempfile

import onehop.torch  # noqa: F401 - makes the backend known
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.multiprocessing import spawn

STAGES, MICROBATCHES, BATCH, WIDTH, STEPS = 2, 4, 32, 64, 20


def train(rank: int, rendezvous: str) -> None:
    """Train one stage of the model."""
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= STAGES
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)  # before creating the group: its device is the current one
    torch.manual_seed(0)  # the same model and data on all ranks
    dist.init_process_group("onehop", init_method=rendezvous, rank=rank, world_size=STAGES)

    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in "ab"]
    module = layers[rank].to(device)
    stage = PipelineStage(module, rank, STAGES, device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    inputs = torch.randn(BATCH, WIDTH, device=device)
    targets = torch.tanh(torch.randn(BATCH, WIDTH, device=device))

    means = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        else:
            losses: list[torch.Tensor] = []
            schedule.step(target=targets, losses=losses)
            means.append(torch.stack(losses).mean().item())
        optimizer.step()
    if means:
        print(f"loss {means[0]:.4f} -> {means[-1]:.4f} on {device}")
        if means[-1] >= means[0]:
            raise SystemExit("the loss has not come down")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            spawn(train, (f"file://{folder}/rendezvous",), nprocs=STAGES)
