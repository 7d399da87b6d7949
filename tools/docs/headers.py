# SPDX-License-Identifier: Apache-2.0
"""The C and C++ reference: Markdown from the comments of the public headers.

A comment at the first column describes the declarations after it, up to the next such comment or an
empty line. Private members, bodies of functions and namespaces called detail are omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

DETAIL = r"^namespace detail \{\n[\s\S]*?^\}  // .*?detail\n"
PRIVATE = r"^ private:\n[\s\S]*?(?=^\};)"
LEFT_OUT = re.compile(rf"\A(?:// |/\* )SPDX.*\n(?://\n)?|{DETAIL}|{PRIVATE}", re.MULTILINE)
# Guards, includes and namespaces around the declarations.
FRAME = re.compile(
    r"#\s*(if|el|endif|error|include|pragma|define O(NEHOP_|H_API))|extern .C.|\}|namespace|using n"
)
NAMES = re.compile(
    r"#define (\w+)|typedef [^;]*?(\w+);|(?:class|struct) (\w+)[^;(]*\{|using (\w+) ="
    r"|constexpr [\w:]+ (\w+)|(?<![\w:])\w[\w:<>*&, ]*[ *&](\w+)\("
)
ENUMERATOR = re.compile(r"^\s+(?:X\()?((?:OH_|oh)\w+)(?= =|,)", re.MULTILINE)
IDENTIFIER = re.compile(r"(`[^`]*`)|\b((?:oh|OH)_\w+|oh[A-Z]\w+)\b(?:\(\))?")
TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|.", re.DOTALL)


class Entry(NamedTuple):
    """A comment and the declarations that it describes; if none, it introduces the header."""

    comment: str
    code: str

    def names(self) -> list[str]:
        """Names declared at the outermost level, in order."""
        text, depth = "", 0
        for token in TOKEN.findall(re.sub(r'\\\n|"[^"\n]*"', r"\\", self.code)):
            depth -= token == "}"
            text += token if depth == 0 and token[:2] not in ("//", "/*") and token != "}" else ""
            depth += token == "{"
        found = ("".join(groups) for groups in NAMES.findall(re.sub(r"\s+", " ", text)))
        return list(dict.fromkeys(found))


def entries_of(text: str) -> Iterator[Entry]:
    """Divide a header, C or C++."""
    comment, code, depth, inside = "", "", 0, False
    for line in [*LEFT_OUT.sub("", text).splitlines(), ""]:
        begins = depth == 0 and (inside or line.startswith(("/*", "//")))
        if depth == 0 and not inside and (not line or (begins and code)):
            entry = Entry(comment, declarations(code))
            if comment or entry.names():
                yield entry
            comment, code = "", ""
        if begins:
            comment += line + "\n"
            inside = (inside or line.startswith("/*")) and "*/" not in line
        elif line and (depth or code.endswith("\\\n") or not FRAME.match(line)):
            code += line + "\n"
            depth += line.count("{") - line.count("}")


def declarations(code: str) -> str:
    """Omit the bodies of functions, and functions of classes that are declared elsewhere."""
    kept, statement, body, rounds = "", 0, 0, 0
    for token in TOKEN.findall(code):
        if body:
            body += (token == "{") - (token == "}")
            kept += "" if body else ";"
            statement = len(kept)
            continue
        rounds += (token == "(") - (token == ")")
        head = kept[statement:]
        if token == "{" and rounds == 0 and ")" in head:
            values = re.compile(r"\)([ \w]*)\s+:\s.*", re.DOTALL)  # member initialisers
            kept, body = kept[:statement] + values.sub(r")\1", head).rstrip(), 1
            continue
        kept += token
        if rounds == 0 and (token in ";{}" or (len(token) > 1 and not head.strip())):
            statement = len(kept)
    return re.sub(r"^inline [^;]*?\w::\w+\([^;]*;\n", "", kept, flags=re.MULTILINE)


def prose(comment: str) -> str:
    """Return a comment as Markdown: paragraphs, lists, and indented text verbatim."""
    text = re.sub(r"^(?:/\*| \*/?|//)? ?| *\*/$", "", comment.strip(), flags=re.MULTILINE)
    made = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        indented = re.match(r"  +[^-\s]", paragraph)
        plain = paragraph.strip().replace("<", "&lt;")
        plain = re.sub(r"^ - ", "\n- ", plain, count=1, flags=re.MULTILINE)
        made.append(f"```text\n{paragraph}\n```" if indented else plain)
    return "\n\n".join(made)


def page_of(header: str, source: str, known: dict[str, str]) -> str:
    """Return the section of a header. known: the heading's name for each name of all headers."""

    def link(found: re.Match[str]) -> str:
        return f"[`{found[0]}`][{known[found[2]]}]" if found[2] in known else found[0]

    made = [f"## {header}"]
    for entry in entries_of(source):
        names, text = entry.names(), IDENTIFIER.sub(link, prose(entry.comment))
        heading = "### " + ", ".join(names) + "".join(f" {{ #{name} }}" for name in names[:1])
        made += [heading, text, f"```cpp\n{entry.code.rstrip()}\n```"] if names else [text]
    return "\n\n".join(made) + "\n"


def known_names(texts: list[str]) -> dict[str, str]:
    """Map all names of the C headers, enumerators too, to the first name of their entry."""
    entries = [entry for text in texts for entry in entries_of(text) if entry.names()]
    return {
        name: entry.names()[0]
        for entry in reversed(entries)
        for name in [*ENUMERATOR.findall(entry.code), *entry.names()]
    }
