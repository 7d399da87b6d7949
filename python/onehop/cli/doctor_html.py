# SPDX-License-Identifier: Apache-2.0
"""The doctor's page: findings, and the tables of ``onehop info``, in one file of HTML."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from string import Template

from rich import markup
from rich.table import Table
from rich.text import Text

import onehop
from onehop.cli import info
from onehop.cli.output import Finding, State, provenance

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>onehop doctor: $machine</title>
<style>
:root {
  color-scheme: light dark;
  --text: #1c2128; --faint: #57606a; --page: #ffffff; --band: #f3f5f7; --line: #d0d7de;
  --ok: #1a6b32; --slow: #8a5300; --fault: #b3121f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e6edf3; --faint: #9aa5b1; --page: #0d1117; --band: #171d25; --line: #343c46;
    --ok: #57c274; --slow: #e3a33b; --fault: #ff8080;
  }
}
body {
  margin: 0 auto; padding: 1.5rem; max-width: 72rem;
  color: var(--text); background: var(--page); font: 16px/1.5 system-ui, sans-serif;
}
h1 { margin: 0; font-size: 1.6rem; }
h2 { margin: 2rem 0 .5rem; font-size: 1.2rem; }
p { margin: .25rem 0; }
.scroll { overflow-x: auto; }
.scroll + .scroll { margin-top: 1rem; }
table { width: 100%; border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: break-word; }
thead th { color: var(--faint); }
tbody th { font-weight: normal; white-space: nowrap; }
th.place { background: var(--band); font-weight: bold; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.ok, .slow, .fault { font-weight: bold; white-space: nowrap; }
.ok { color: var(--ok); } .slow { color: var(--slow); } .fault { color: var(--fault); }
ul { padding-left: 1.25rem; }
li { margin: .5rem 0; }
</style>
</head>
<body>
<header>
<h1>onehop doctor: $machine</h1>
<p>$verdict</p>
</header>
<main>
$sections
</main>
</body>
</html>""")

_STATES: dict[State, str] = {"ok": "OK", "slow": "slower", "fault": "FAULT"}


def page(findings: Sequence[Finding], tables: Iterable[Table]) -> str:
    """Write findings and tables of `onehop info` as a self-contained page."""
    worse = [one for state in ("fault", "slow") for one in findings if one.state == state]
    faults = sum(one.state == "fault" for one in worse)
    verdict = f"{len(findings)} checks: {faults} faults, {len(worse) - faults} slower than possible"
    sections = [
        _section("What to do", _advice(worse) if worse else ["<p>Nothing: all is well.</p>"]),
        *_sections(tables),
        _section("Checks", _scrolling("Checks", _findings_table(findings))),
    ]
    return _PAGE.substitute(
        machine=escape(platform.node()), verdict=verdict, sections="\n".join(sections)
    )


def _section(heading: str, lines: Iterable[str]) -> str:
    return "\n".join(["<section>", f"<h2>{escape(heading)}</h2>", *lines, "</section>"])


def _scrolling(name: str, table: Iterable[str]) -> Iterator[str]:
    """Make a wide table scrollable; keyboard users need a focusable, named region."""
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">'
    yield from table
    yield "</div>"


def _advice(worse: Iterable[Finding]) -> Iterator[str]:
    yield "<ul>"
    for one in worse:
        yield f"<li>{_state(one)} {escape(one.place)}, {escape(one.check)}: {_seen(one)}</li>"
    yield "</ul>"


def _state(finding: Finding) -> str:
    return f'<span class="{finding.state}">{_STATES[finding.state]}</span>'


def _seen(finding: Finding) -> str:
    seen = escape(finding.detail)
    if finding.state == "ok" or not finding.remedy:
        return seen
    return f"{seen}<br><strong>{escape(finding.remedy)}</strong>"


def _findings_table(findings: Iterable[Finding]) -> Iterator[str]:
    yield "<table>"
    yield (
        '<thead><tr><th scope="col">check</th><th scope="col">state</th>'
        '<th scope="col" class="number">p50 us</th><th scope="col">what was seen, what to do</th>'
        "</tr></thead>"
    )
    for place, group in itertools.groupby(findings, key=lambda one: one.place):
        yield f'<tbody><tr><th class="place" colspan="4" scope="rowgroup">{escape(place)}</th></tr>'
        for one in group:
            time = "" if one.p50_us is None else f"{one.p50_us:,.2f}"
            yield (
                f'<tr><th scope="row">{escape(one.check)}</th><td>{_state(one)}</td>'
                f'<td class="number">{time}</td><td>{_seen(one)}</td></tr>'
            )
        yield "</tbody>"
    yield "</table>"


# ---- The tables of onehop info


def info_tables() -> Iterator[Table]:
    """Yield the tables; if a variable is invalid, the provenance and the error."""
    try:
        yield from info.tables()
    except onehop.Error as failure:
        shown = Table(show_header=False)
        for key, value in {**provenance(), "onehop info": str(failure)}.items():
            shown.add_row(key, markup.escape(value))
        yield shown


def _sections(tables: Iterable[Table]) -> Iterator[str]:
    """Yield a section for each title; a table without a title belongs to the previous section."""
    heading, lines = "Environment", list[str]()
    for table in tables:
        if table.title and lines:
            yield _section(heading, lines)
            lines = []
        heading = str(table.title or heading)
        lines += _scrolling(heading, _rows(table))
    yield _section(heading, lines)


def _rows(table: Table) -> Iterator[str]:
    yield "<table>"
    if table.show_header:
        headings = (_plain(column.header) for column in table.columns)
        cells = "".join(f'<th scope="col">{text}</th>' for text in headings)
        yield f"<thead><tr>{cells}</tr></thead>"
    yield "<tbody>"
    columns = (map(_plain, column.cells) for column in table.columns)
    for first, *others in zip(*columns, strict=True):
        head = f'<th scope="row">{first}</th>' if others else f"<td>{first}</td>"
        yield f"<tr>{head}{''.join(f'<td>{text}</td>' for text in others)}</tr>"
    yield "</tbody>"
    yield "</table>"


def _plain(cell: object) -> str:
    return escape(Text.from_markup(str(cell)).plain)
