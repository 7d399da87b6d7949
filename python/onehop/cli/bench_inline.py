# SPDX-License-Identifier: Apache-2.0
"""``onehop bench inline``: which inline limit suits this machine, found by trying them in turn."""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from onehop.cli import bench_options as options
from onehop.cli import plots
from onehop.cli.bench import Report, bench, report
from onehop.cli.info import setting
from onehop.cli.measure import Found, Job, bench_role, rows_of_sides
from onehop.cli.output import results
from onehop.cli.rows import Row
from onehop.cli.sides import Placement
from onehop.cli.sizes import SizeList, format_size

VARIABLE = "ONEHOP_MAX_INLINE"
_LIMITS = "0,64,128,200,400,1024,2048,4096,8000"
_SMALLEST = 8  # bytes of a message
# Short turns: a disturbance affects few of them, and medians exclude those.
_ITERATIONS = 300
_RESAMPLES = 1000


@bench.command(short_help="Find the best ONEHOP_MAX_INLINE.")
@click.option(
    "--limits", type=SizeList(), default=_LIMITS, show_default=True, help="Limits to try."
)
@click.option(
    "--sizes", type=SizeList(), help="Message sizes. Default: 8, each limit, and each limit + 1."
)
@options.rounds("Each round runs all limits in turn, in new processes.", 25)
@options.transport("ucx")
@options.how
@plots.option
def inline(limits: Sequence[int], sizes: Sequence[int] | None, rounds: int, **common: Any) -> None:
    """Find the best ONEHOP_MAX_INLINE, the limit of bytes inside a control message.

    If no other limit is faster, the limit in force is recommended.
    """
    default = int(setting(VARIABLE))
    limits = sorted({*limits, default})
    if limits[-1] > 65536:
        raise click.UsageError(f"--limits: {limits[-1]} is more than 65536, the most there can be")
    around = [_SMALLEST, *(limit + more for limit in limits if limit for more in (0, 1))]
    chosen = sorted({*(sizes or around)})
    jobs = [
        Job("latency", "c", "sendrecv", size, common["iters"] or _ITERATIONS, inline=limit)
        for size in chosen
        for limit in limits
    ]
    placement = options.placement(common)
    whole: list[Row] = []  # rows of complete rounds
    studies: list[Study] = []

    def show(_: Sequence[Row]) -> Group:
        (study,) = studies
        return Group(study.table(), study.summary(), Text(study.advice()))

    with report(
        common["json_to"],
        gpu=False,
        show=show,
        about="inline",
        total=len(jobs) * (rounds + 1),
        plot=common["plot"],
    ) as reported:
        try:
            for count, row in enumerate(_notes_apart(reported, _measure(jobs, rounds, placement))):
                whole.append(row)
                reported.step(f"inline {format_size(row.size)}, round {1 + count // len(jobs)}")
        finally:
            # Ctrl-C leaves an incomplete round: drop its rows.
            del whole[len(whole) // len(jobs) * len(jobs) :]
            if whole:
                studies.append(Study(default, whole))
                for row in studies[0].rows():
                    reported.add(row)


def _notes_apart(reported: Report, found: Iterable[Found]) -> Iterator[Row]:
    for one in found:
        if isinstance(one, Row):
            yield one
        else:
            reported.add(one)


def _measure(jobs: Sequence[Job], rounds: int, placement: Placement) -> Iterator[Found]:
    """Yield the rows of all rounds.

    The speed of a link is constant during its life, but varies between links, also with the order
    of their creation. Each round therefore creates new links, in another order.
    """
    rng = random.Random(1)
    sizes = sorted({job.size for job in jobs})
    for _ in range(rounds):
        turns: list[Job] = []
        # Sizes stay together, so that disturbances affect all limits alike.
        for size in sizes:
            turns += rng.sample(mine := [job for job in jobs if job.size == size], len(mine))
        yield from rows_of_sides(bench_role, turns, placement)


class Study:
    """The results of the rounds, relative to the limit in force."""

    def __init__(self, default: int, found: Iterable[Row]) -> None:
        self.default = default
        # A row for each round, by limit and size.
        self._rounds: dict[tuple[int, int], list[Row]] = {}
        for row in found:
            self._rounds.setdefault((row.asked_inline or 0, row.size), []).append(row)
        self.limits = sorted({limit for limit, _ in self._rounds})
        self.sizes = sorted({size for _, size in self._rounds})

    @property
    def count(self) -> int:
        """Return how many rounds there were."""
        return len(self._rounds[self.default, self.sizes[0]])

    def granted(self, limit: int) -> int:
        """Return the inline limit that the links granted for a requested one."""
        return self._rounds[limit, self.sizes[0]][0].max_inline or 0

    def ratios(self, limit: int, size: int) -> list[float]:
        """Return the ratios of a limit's p50 to that of the limit in force, round by round."""
        both = zip(self._rounds[limit, size], self._rounds[self.default, size], strict=True)
        return [ours.p50_us / theirs.p50_us for ours, theirs in both]

    @cache  # noqa: B019 - as long as the study
    def compare(self, limit: int, *sizes: int) -> Ratio:
        """Return a limit's time relative to the limit in force, for some sizes or for all."""
        return compare([self.ratios(limit, size) for size in sizes or self.sizes])

    def recommended(self) -> int:
        """Return the fastest limit that is significantly faster, or else the limit in force."""
        faster = [limit for limit in self.limits if self.compare(limit).high < 1]
        return min(faster, key=lambda limit: self.compare(limit).middle, default=self.default)

    def rows(self) -> Iterator[Row]:
        """Yield a row for each size and limit: medians of the rounds."""
        best = self.recommended()
        for size in self.sizes:
            for limit in self.limits:
                rounds = self._rounds[limit, size]
                yield replace(
                    rounds[0],
                    op="inline",
                    p50_us=statistics.median(row.p50_us for row in rounds),
                    p99_us=statistics.median(row.p99_us for row in rounds),
                    GBps=statistics.median(row.GBps for row in rounds),
                    wrong=sum(row.wrong for row in rounds),
                    of_default=statistics.median(self.ratios(limit, size)),
                    recommended=limit == best,
                )

    def table(self) -> Table:
        """Show the time of each size with each limit."""
        shown = results(
            f"onehop bench inline: p50 us, {self.count} rounds",
            "one way, medians of the rounds, by granted limit; i: inside a control message",
        )
        shown.add_column("size", justify="right")
        for limit in self.limits:
            shown.add_column(str(self.granted(limit)), justify="right")
        for size, rows in itertools.groupby(self.rows(), key=lambda row: row.size):
            cells = [f"{row.p50_us:,.2f} {'i' if row.path == 'inline' else ' '}" for row in rows]
            shown.add_row(format_size(size), *cells)
        return shown

    def summary(self) -> Table:
        """Show each limit relative to the one in force."""
        shown = results(
            "",
            f"of {self.default}: median of p50 by that of the limit in force, in the same"
            " round, geometric mean of the sizes; in brackets 99 % (bootstrap over the rounds);"
            " faster, slower: where that leaves out 1",
        )
        for heading in ("asked", "granted", f"of {self.default}"):
            shown.add_column(heading, justify="right")
        for heading in ("faster at", "slower at"):
            shown.add_column(heading)
        for limit in self.limits:
            faster = [size for size in self.sizes if self.compare(limit, size).high < 1]
            slower = [size for size in self.sizes if self.compare(limit, size).low > 1]
            shown.add_row(
                str(limit),
                str(self.granted(limit)),
                str(self.compare(limit)),
                *(", ".join(map(format_size, sizes)) or "-" for sizes in (faster, slower)),
            )
        return shown

    def advice(self) -> str:
        """State which limit to set."""
        best = self.recommended()
        if best == self.default:
            return f"recommended: {VARIABLE}={best}, as it is: no other is faster for sure"
        return (
            f"recommended: {VARIABLE}={best}, which takes {self.compare(best)} of the time with"
            f" {self.default}"
        )


class Ratio(NamedTuple):
    """A ratio and its interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


def compare(ratios: Sequence[Sequence[float]]) -> Ratio:
    """Return the geometric mean of the sizes' medians over the rounds, and its 99 % interval.

    ratios: for each size those of all rounds. The bootstrap resamples rounds.
    """

    def mean(rounds: Sequence[int]) -> float:
        return statistics.geometric_mean(
            statistics.median(one[number] for number in rounds) for one in ratios
        )

    count = len(ratios[0])
    rng = random.Random(1)
    drawn = sorted(mean(rng.choices(range(count), k=count)) for _ in range(_RESAMPLES))
    return Ratio(mean(range(count)), drawn[_RESAMPLES // 200], drawn[-1 - _RESAMPLES // 200])
