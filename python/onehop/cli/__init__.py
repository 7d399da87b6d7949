# SPDX-License-Identifier: Apache-2.0
"""The command line tool: ``onehop info``, ``doctor``, ``bench``, ``top``, ``trace`` and others.

This module has the parts that all commands share: one-line errors, and exit codes.
"""

from __future__ import annotations

from typing import Any

import click

import onehop
from onehop.cli import (  # noqa: F401 - add their commands to bench
    bench_compare,
    bench_inline,
    bench_nixl,
    bench_peers,
    bench_plot,
    bench_torch,
    bench_weights,
)
from onehop.cli.bench import bench
from onehop.cli.doctor import doctor
from onehop.cli.info import info
from onehop.cli.sides import SideError
from onehop.cli.top import top
from onehop.cli.trace import trace

_INTERRUPTED = 130  # 128 + SIGINT, as in shells


class _Group(click.Group):
    """Turns the library's errors into one line and exit code 1, and Ctrl-C into exit code 130."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        try:
            return super().invoke(ctx)
        except (onehop.Error, SideError) as failure:
            raise click.ClickException(str(failure)) from failure
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(onehop.__version__, prog_name="onehop")
def main() -> None:
    """Run onehop: point-to-point transfers by the shortest available path.

    Exit codes: 0 success, 1 a fault was found, 2 usage error, 130 Ctrl-C.
    """


main.add_command(info)
main.add_command(doctor)
main.add_command(bench)
main.add_command(top)
main.add_command(trace)


@main.command("nixl-path", short_help="Print the folder that puts onehop under NIXL.")
def nixl_path() -> None:
    """Print the folder that lets programs of NIXL run on onehop.

    PYTHONPATH=$(onehop nixl-path) vllm serve ...
    """
    try:
        from onehop import nixl
    except ImportError as failure:
        raise click.ClickException(str(failure)) from failure
    click.echo(nixl.path())


@main.command("mooncake-path", short_help="Print the folder that puts onehop under Mooncake.")
def mooncake_path() -> None:
    """Print the folder that lets programs of Mooncake's TransferEngine run on onehop.

    PYTHONPATH=$(onehop mooncake-path) python -m sglang.launch_server ...
    """
    try:
        from onehop import mooncake
    except ImportError as failure:
        raise click.ClickException(str(failure)) from failure
    click.echo(mooncake.path())
