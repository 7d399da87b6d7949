# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed: ``init_process_group("onehop")`` after ``import onehop.torch``.

Sends and receives go by onehop, on host and CUDA tensors; collectives by gloo and NCCL beneath.
"""

from __future__ import annotations

try:
    import torch
    import torch.distributed as dist
except ImportError as failure:
    raise ImportError(
        "onehop.torch needs torch, which cannot be imported here; pip install 'torch>=2.6'"
    ) from failure

__all__ = ["NAME", "ProcessGroup", "Work", "register"]

NAME = "onehop"
_OLDEST = (2, 6)

_version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if _version < _OLDEST:
    raise ImportError(
        f"onehop.torch needs torch {_OLDEST[0]}.{_OLDEST[1]} or newer, this is"
        f" {torch.__version__}; pip install 'torch>={_OLDEST[0]}.{_OLDEST[1]}'"
    )
if not dist.is_available():
    raise ImportError(
        f"torch {torch.__version__} is built without torch.distributed (USE_DISTRIBUTED=0):"
        " install another build"
    )

from onehop.torch.group import ProcessGroup, create  # noqa: E402 - torch is fit for it
from onehop.torch.work import Work  # noqa: E402


def register() -> None:
    """Make the backend known to torch under its name. May be called again."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=False, devices=["cpu", "cuda"])


register()
