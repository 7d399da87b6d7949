# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds: one row each, with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.markup import escape
from rich.table import Table

from onehop.cli.output import listing

State = Literal["ok", "slow", "fault"]

_SHOWN = {"ok": "[green]OK[/]", "slow": "[yellow]slower[/]", "fault": "[bold red]FAULT[/]"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        place: the surroundings, or the path.
        check: what was done.
        state: ok; slow: it works, but a better way is closed; fault: it does not work.
        detail: what was seen.
        remedy: what to do, unless it is ok.
        p50_us: how long it took, half of the operations took less.

    """

    place: str
    check: str
    state: State
    detail: str = ""
    remedy: str = ""
    p50_us: float | None = None

    def as_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None})


def table(findings: Sequence[Finding]) -> Table:
    """Show all findings."""
    shown = listing("onehop doctor", "where", "check", "state")
    shown.add_column("p50 us", justify="right")
    shown.add_column("what was seen, what to do", overflow="fold")
    place = ""
    for finding in findings:
        texts = [escape(finding.detail)]
        if finding.state != "ok" and finding.remedy:
            texts.append(f"[bold]{escape(finding.remedy)}[/]")
        time = "" if finding.p50_us is None else f"{finding.p50_us:,.2f}"
        where = finding.place if finding.place != place else ""
        place = finding.place
        shown.add_row(
            where, finding.check, _SHOWN[finding.state], time, "\n".join(filter(None, texts))
        )
    return shown
