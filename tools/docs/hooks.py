# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: the reference of the headers, and links from docs/ into the repository.

A line that is a link to a header and `<!-- reference -->` is replaced by the reference of that
header. A link to a file outside of docs/ leads to a page that shows the file; in a clone the same
link opens the file itself. A link to a missing file is a warning, which fails
`mkdocs build --strict`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import headers
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

log = get_plugin_logger("repository")
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHOWN = "repository"  # the site's folder with pages of files outside of docs/
LANGUAGES = {".cc": "cpp", ".cu": "cpp", ".cuh": "cpp", ".h": "cpp", ".hpp": "cpp", ".sh": "bash"}
HEADER = re.compile(r"^\[(\S+)\]\(\S+\) <!-- reference -->$", re.MULTILINE)
# Code, which is not changed, or the target of a link to a file.
LINK = re.compile(
    r"(^```.*?^```|`[^`\n]*`)|(?<=\]\()(?![a-z]+:|#)([^)\s#]+)", re.DOTALL | re.MULTILINE
)

# The folder that a page's links are relative to, if it is not the page's own.
origins: dict[str, Path] = {}


def shown_at(path: Path) -> str:
    """Return the place of a repository file within the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f"{SHOWN}/{name}" if path.suffix == ".md" else f"{SHOWN}/{name}.md"


def linked(markdown: str, folder: Path, name: str) -> list[Path]:
    """Return the repository files that a page links to; warn of missing ones."""
    found = []
    for code, target in LINK.findall(markdown):
        path = Path(os.path.normpath(folder / unquote(target))) if not code else DOCS
        if path.is_relative_to(DOCS):
            continue  # mkdocs checks these
        if path.is_relative_to(ROOT) and path.is_file():
            found.append(path)
        else:
            log.warning("%s links to %s, which is no file of the repository", name, target)
    return found


def page_for(path: Path) -> str:
    """Return the page that shows a file."""
    text = path.read_text()
    hidden = "---\nsearch:\n  exclude: true\n---\n"
    if path.suffix == ".md":
        return hidden + text
    language = LANGUAGES.get(path.suffix, path.suffix[1:] or "text")
    return f"{hidden}# {path.relative_to(ROOT)}\n\n````````{language}\n{text}````````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each repository file that is linked to, directly or through such a page."""
    origins.clear()
    pages = [(page.src_uri, page.content_string) for page in files.documentation_pages()]
    waiting = [path for uri, text in pages for path in linked(text, (DOCS / uri).parent, uri)]
    while waiting:
        path = waiting.pop()
        uri = shown_at(path)
        if uri in origins:
            continue
        origins[uri] = path.parent
        files.append(File.generated(config, uri, content=page_for(path)))
        if path.suffix == ".md":
            waiting += linked(path.read_text(), path.parent, uri)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Insert header references, and redirect links to files outside of docs/ to their pages."""
    uri = page.file.src_uri
    folder = origins.get(uri, (DOCS / uri).parent)

    def lead(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / unquote(found[2] or "")))
        if found[1] or not path.is_relative_to(ROOT):
            return found[0]
        return os.path.relpath(shown_at(path), os.path.dirname(uri) or ".")

    def reference(found: re.Match[str]) -> str:
        return headers.page_of(found[1], (include / found[1]).read_text(), known)

    include = ROOT / "include"
    texts = (
        [path.read_text() for path in sorted(include.glob("onehop/*.h"))]
        if HEADER.search(markdown)
        else []
    )
    known = headers.known_names(texts)
    return LINK.sub(lead, HEADER.sub(reference, markdown))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Rebuild when a header changes, while mkdocs serves."""
    config.watch += [str(ROOT / "include"), str(ROOT / "python" / "onehop"), str(ROOT / "examples")]
    return config
