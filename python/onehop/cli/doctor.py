# SPDX-License-Identifier: Apache-2.0
"""``onehop doctor``: looks at the machine, drives every path, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator

import click

from onehop.cli.findings import Finding, table
from onehop.cli.gpu_paths import drive_gpus, driver
from onehop.cli.output import growing, json_lines
from onehop.cli.paths import CASES, UCX, drive, meet
from onehop.cli.surroundings import look_around, ucx

_RANKS = (2, 3)


def examine() -> Iterator[tuple[str, Finding]]:
    """Yield all findings, each with what is being looked at."""
    failed = False
    for finding in look_around():
        failed = failed or (finding.check == "endpoint" and finding.state == "fault")
        yield "surroundings", finding
    # Without an endpoint nothing else can work, and would only repeat why.
    if failed:
        return
    for case in (*CASES, UCX) if ucx().viable else CASES:
        for finding in drive(case):
            yield case.name, finding
    found, finding = driver()
    yield "GPU driver", finding
    if found:
        for finding in drive_gpus(len(found.devices)):
            yield finding.place, finding
    for ranks in _RANKS:
        yield "rendezvous", meet(ranks)


@click.command()
@click.option("--json", "json_to", metavar="FILE|-", help="Write findings as lines of JSON.")
def doctor(json_to: str | None) -> None:
    """Check the machine and every path; exits with 1 if there is a fault."""
    findings: list[Finding] = []
    hidden = json_to == "-"
    with (
        json_lines(json_to) as write,
        growing(lambda: table(findings), "surroundings", None, hidden=hidden) as step,
    ):
        for place, finding in examine():
            findings.append(finding)
            write(finding.as_json())
            step(place)
    faults = sum(finding.state == "fault" for finding in findings)
    slow = sum(finding.state == "slow" for finding in findings)
    click.echo(f"{len(findings)} checks: {faults} faults, {slow} slower than possible", err=True)
    if faults:
        raise click.exceptions.Exit(1)
