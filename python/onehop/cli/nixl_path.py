# SPDX-License-Identifier: Apache-2.0
"""``onehop nixl-path``: where Python finds the packages `nixl`, `nixl_cu12` and `nixl_cu13`."""

from __future__ import annotations

import click


@click.command("nixl-path")
def nixl_path() -> None:
    """Print the folder that lets programs of NIXL run on onehop.

    PYTHONPATH=$(onehop nixl-path) vllm serve ...
    """
    try:
        from onehop import nixl
    except ImportError as failure:
        raise click.ClickException(str(failure)) from failure
    click.echo(nixl.path())
