# SPDX-License-Identifier: Apache-2.0
"""The hooks of the site refuse links to missing files, and lead the others to pages."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed: the lane docs runs these tests")

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "docs"
sys.path.append(str(TOOLS))
spec = importlib.util.spec_from_file_location("hooks", TOOLS / "hooks.py")
assert spec
assert spec.loader
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)

GUIDES = hooks.DOCS / "guides"


def test_missing_files_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        found = hooks.linked("[a](../../README.md#status) [b](../../gone.h)", GUIDES, "guides/x.md")
    assert found == [hooks.ROOT / "README.md"]
    assert "guides/x.md links to ../../gone.h, which is no file of the repository" in caplog.text


def test_code_and_pages_and_other_sites_are_left_to_mkdocs(caplog):
    text = "`[a](../../gone.h)` [b](messages.md) [c](https://x.org/y.h) [d](#e)\n"
    text += "```\n[f](../../gone.h)\n```\n"
    assert hooks.linked(text, GUIDES, "guides/x.md") == []
    assert not caplog.text


def page(uri):
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri))


def test_links_lead_to_the_pages_of_files():
    text = "[a](../../include/onehop/version.h) [b](messages.md#c) [d](../../README.md#status)"
    made = hooks.on_page_markdown(text + " `[e](../f)`", page=page("guides/x.md"))
    assert made == (
        "[a](../repository/include/onehop/version.h.md) [b](messages.md#c)"
        " [d](../repository/README.md#status) `[e](../f)`"
    )


def test_links_of_the_readme_are_relative_to_its_folder(monkeypatch):
    monkeypatch.setitem(hooks.origins, "repository/README.md", hooks.ROOT)
    made = hooks.on_page_markdown("[a](docs/start.md)", page=page("repository/README.md"))
    assert made == "[a](../start.md)"


def test_a_header_becomes_its_reference():
    line = "[onehop/version.h](../../include/onehop/version.h) <!-- reference -->"
    made = hooks.on_page_markdown(line, page=page("reference/c.md"))
    assert made.startswith("## onehop/version.h\n")
    assert "#define OH_VERSION_MAJOR" in made


def test_pages_of_files_show_them_whole():
    made = hooks.page_for(hooks.ROOT / "include" / "onehop" / "version.h")
    assert "\n````````cpp\n" in made
    assert (hooks.ROOT / "include" / "onehop" / "version.h").read_text() in made
