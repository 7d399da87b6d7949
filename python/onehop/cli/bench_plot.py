# SPDX-License-Identifier: Apache-2.0
"""``onehop bench plot``: a picture of the rows of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from onehop.cli import plots
from onehop.cli.bench import bench
from onehop.cli.bench_compare import runs


@bench.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--output",
    "-o",
    type=plots.picture,
    required=True,
    metavar="FILE",
    help="File to write: .svg, .png or another format of matplotlib.",
)
def plot(files: Sequence[Path], output: Path) -> None:
    """Draw the rows of files of --json, as --plot does.

    A file may hold several runs; then their medians are drawn. Lines of several files are labelled
    by the files' names.
    """
    plots.draw(
        output,
        [
            {**row, "file": str(file)}
            for file in files
            for same in runs(file).values()
            for row in same
        ],
    )
