# SPDX-License-Identifier: Apache-2.0
"""`onehop doctor --html`: a page that stands alone, with all that the doctor found."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from command import rows_of, run_onehop
from onehop.cli.doctor_html import page
from onehop.cli.output import Finding
from rich.markup import escape
from rich.table import Table

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags that have to be balanced, attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if data.strip():
            self.texts.append(data.strip())

    def text(self) -> str:
        return "\n".join(self.texts)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.seen}


def assert_stands_alone(text: str) -> None:
    found = Page(text)
    assert text.startswith("<!doctype html>")
    assert not found.tags() & {"link", "script", "img", "iframe", "object", "a"}
    for _, attributes in found.seen:
        assert not attributes.keys() & {"src", "href", "srcset", "onload", "onerror", "style"}
    assert "url(" not in text
    assert "@import" not in text
    assert "http:" not in text
    assert "https:" not in text


def test_all_that_was_found(tmp_path) -> None:
    target = tmp_path / "doctor.html"
    settings = {"ONEHOP_CMA": "off", "ONEHOP_UCX_LIBRARY": "off"}
    done = run_onehop("doctor", "--json", "-", "--html", str(target), **settings)
    assert done.returncode == 0, done.stderr
    text = target.read_text(encoding="utf-8")
    assert_stands_alone(text)
    shown = Page(text).text()
    assert f"{len(rows_of(done))} checks: 0 faults" in shown
    for finding in rows_of(done):
        for key in ("place", "check", "detail"):
            assert finding[key] in shown
        if "p50_us" in finding:
            assert f"{finding['p50_us']:,.2f}" in shown
        if finding["state"] != "ok":
            assert finding["remedy"] in shown
    info = json.loads(run_onehop("info", "--json", "-", **settings).stdout)
    for one in info["transports"]:
        assert one["name"] in shown
        assert one["why"] in shown
    for fact in ("machine", "cpu", "kernel", "onehop"):
        assert info["provenance"][fact] in shown
    for heading in ("What to do", "Environment", "Transports", "GPUs", "Checks"):
        assert heading in Page(text).texts


def test_tables_have_headings() -> None:
    shown = Table(title="Things")
    shown.add_column("name")
    shown.add_column("value")
    shown.add_row("a", "b")
    found = Page(page([Finding("here", "looked", "ok")], [shown]))
    assert ("html", {"lang": "en"}) in found.seen
    scopes = [attributes.get("scope") for tag, attributes in found.seen if tag == "th"]
    assert None not in scopes
    assert {"col", "row", "rowgroup"} == set(scopes)
    for word in ("Things", "name", "value", "a", "b", "looked", "Nothing: all is well."):
        assert word in found.texts


def test_what_to_do_comes_first_faults_before_the_rest() -> None:
    findings = [
        Finding("here", "good", "ok", "fine", "an idle remedy"),
        Finding("here", "bad", "slow", "slow sight", "quicken it"),
        Finding("there", "worse", "fault", "broken", "mend it", 3.5),
    ]
    shown = Page(page(findings, [])).text()
    assert "3 checks: 1 faults, 1 slower than possible" in shown
    advice = shown.partition("Checks")[0]
    assert advice.index("mend it") < advice.index("quicken it")
    assert "fine" not in advice
    assert "an idle remedy" not in shown


HOSTILE = "</td><script>alert(1)</script> & \"quoted\" 'one' $verdict ${machine} [bold]x[/nothing]"


def test_hostile_texts_are_texts(monkeypatch) -> None:
    monkeypatch.setattr("platform.node", lambda: HOSTILE)
    shown = Table(title=HOSTILE)
    shown.add_column(escape(HOSTILE))
    shown.add_column("other")
    shown.add_row(escape(HOSTILE), escape(HOSTILE))
    findings = [Finding(HOSTILE, HOSTILE, state, HOSTILE, HOSTILE) for state in ("fault", "slow")]
    text = page(findings, [shown])
    assert_stands_alone(text)
    # Twice in the heads of the page, in the title and cells of the table, in list and rows.
    assert Page(text).text().count(HOSTILE) == 2 + 4 + 2 * 4 + 1 + 2 * 3


@pytest.mark.parametrize(
    "settings",
    [{"ONEHOP_LIBCRYPTO": "/none/<b>&amp;[/x]"}, {"ONEHOP_MAX_PENDING": "<b>&amp;[/x]"}],
)
def test_a_fault_is_on_the_page_too(settings: dict[str, str], tmp_path) -> None:
    target = tmp_path / "doctor.html"
    done = run_onehop("doctor", "--html", str(target), **settings)
    assert done.returncode == 1
    assert "FAULT" in done.stdout
    text = target.read_text(encoding="utf-8")
    assert_stands_alone(text)
    shown = Page(text).text()
    assert all(value in shown for value in settings.values())
    assert {"cores", "UCX", "date"} <= set(Page(text).texts)


@pytest.mark.usefixtures("fake_gpus")
def test_gpus(monkeypatch) -> None:
    monkeypatch.setenv("ONEHOP_LIBCRYPTO", "/none")  # nothing is driven
    done = run_onehop("doctor", "--html", "-", FAKE_CUDA="devices=3,memory=256M,p2p=0-1")
    assert_stands_alone(done.stdout)
    shown = Page(done.stdout).texts
    assert {"cuda:2", "Fake GPU", "Peer access", "Links", "NUMA nodes"} <= set(shown)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--html", "/nonexistent/page.html"), "--html /nonexistent/page.html: No such file"),
        (("--html", "-", "--json", "-"), "one of --json and --html"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run_onehop("doctor", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert not done.stdout
