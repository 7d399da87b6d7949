# SPDX-License-Identifier: Apache-2.0
"""What pages quote is in the sources: error texts, variables, calls, anchors of the README."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NEW = ["index", "start", "troubleshooting", "faq", "comparison", "reference/command-line"]
PAGES = [*(DOCS / f"{name}.md" for name in NEW), *(DOCS / "guides").glob("*.md")]


def texts_of_the_library() -> str:
    """All sources, with string literals that follow each other joined."""
    suffixes = {"src": (".cc", ".h"), "python": (".cc", ".py")}
    files = [path for folder in suffixes for path in (ROOT / folder).rglob("*")]
    files = [path for path in files if path.suffix in suffixes[path.relative_to(ROOT).parts[0]]]
    return re.sub(r'"\s*\n\s*"', "", "\n".join(path.read_text() for path in files))


def quoted(page: str) -> list[str]:
    """Code of the first cells of tables: what a reader sees in an error or a log."""
    cells = re.findall(r"^\| (.*?) \|", (DOCS / page).read_text(), re.MULTILINE)
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell) if " " in code]


def missing(quotes: list[str]) -> list[str]:
    """What of these, divided where something varies, is in no source."""
    sources = texts_of_the_library()
    return [part for quote in quotes for part in quote.split(" ... ") if part not in sources]


def test_quoted_errors_are_in_the_sources():
    commands = ("onehop ", "ONEHOP_LOG", "there: ")
    found = [quote for quote in quoted("troubleshooting.md") if not quote.startswith(commands)]
    assert len(found) > 40
    assert missing(found) == []


def test_a_text_that_nobody_says_is_found():
    quotes = ["the deadline passed after", "does not fit ... this was never said"]
    assert missing(quotes) == ["this was never said"]


def test_variables_exist():
    listed = (DOCS / "configuration.md").read_text()
    for page in PAGES:
        for name in re.findall(r"\bONEHOP_[A-Z_0-9]+", page.read_text()):
            # Build options of CMake, and integrations that read the environment themselves.
            if name not in ("ONEHOP_CUDA", "ONEHOP_CUDA_ARCHITECTURES", "ONEHOP_NIXL"):
                assert f"`{name}`" in listed, f"{page.name}: {name}"
