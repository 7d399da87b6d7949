# SPDX-License-Identifier: Apache-2.0
"""The reference that is made from the public headers: nothing of them is lost."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include" / "onehop"
HEADERS = sorted(path.name for path in INCLUDE.glob("*.h"))

spec = importlib.util.spec_from_file_location("headers", ROOT / "tools" / "docs" / "headers.py")
assert spec
assert spec.loader
headers = importlib.util.module_from_spec(spec)
sys.modules["headers"] = headers
spec.loader.exec_module(headers)

C_HEADER = """\
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Things <of> C. See oh_thing_make() and `oh_thing_make`:
 *  - one
 *  - two
 *
 *   0   layout
 */
#ifndef ONEHOP_THING_H_
#define ONEHOP_THING_H_
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#define OH_LIST(X)  \\
  X(OH_ONE, "call f(x)")

/* What it is. */
typedef struct oh_thing {
  size_t struct_size; /* of fork() */
} oh_thing;
/*
 * Makes one;
 *
 * or fails.
 */
OH_API int oh_thing_make(
    oh_thing* thing);
OH_API void oh_thing_free(oh_thing* thing);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif
"""

CPP_HEADER = """\
// SPDX-License-Identifier: Apache-2.0
//
// Things of C++.
#pragma once
namespace onehop {
namespace detail {
inline int hidden() { return 1; }
}  // namespace detail

// One.
template <typename T>
class Thing : public Base {
 public:
  explicit Thing(int size) noexcept
      : size_(size), data_(make({1, 2})) {}
  // Its size (in bytes).
  int size(Options given = {}) const { return size_; }
  int later();
  int kept = 3;

 private:
  int size_;
};
inline int Thing::later() { return 2; }

}  // namespace onehop
"""


def test_c():
    introduction, listed, thing, calls = headers.entries_of(C_HEADER)
    assert not introduction.code
    assert [entry.names() for entry in (listed, thing, calls)] == [
        ["OH_LIST"],
        ["oh_thing"],
        ["oh_thing_make", "oh_thing_free"],
    ]
    known = headers.known_names([C_HEADER])
    assert known["OH_ONE"] == "OH_LIST"
    page = headers.page_of("thing.h", C_HEADER, known)
    assert "Things &lt;of> C. See [`oh_thing_make()`][oh_thing_make] and `oh_thing_make`:" in page
    assert "\n\n- one\n - two\n" in page
    assert "```text\n  0   layout\n```" in page
    assert "### oh_thing_make, oh_thing_free { #oh_thing_make }\n\nMakes one;\n\nor fails." in page
    assert "    oh_thing* thing);\nOH_API void oh_thing_free(oh_thing* thing);\n```" in page
    assert "#ifdef" not in page


def test_cpp():
    introduction, thing = headers.entries_of(CPP_HEADER)
    assert "Things of C++." in introduction.comment
    assert thing.names() == ["Thing"]
    assert (
        thing.code
        == """\
template <typename T>
class Thing : public Base {
 public:
  explicit Thing(int size) noexcept;
  // Its size (in bytes).
  int size(Options given = {}) const;
  int later();
  int kept = 3;
};
"""
    )


@pytest.mark.parametrize("name", HEADERS)
def test_every_function_is_in_the_reference(name):
    text = (INCLUDE / name).read_text()
    declared = re.findall(r"^OH_API\s[^;(]*?\b(\w+)\(", text, re.MULTILINE)
    assert declared or name in ("lane.h", "onehop.h", "version.h")
    names = [found for entry in headers.entries_of(text) for found in entry.names()]
    assert [found for found in declared if found not in names] == []
    assert len(names) == len(set(names))


def test_every_header_has_a_page():
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    for path in [*INCLUDE.glob("*.h"), *INCLUDE.glob("*.hpp"), *INCLUDE.glob("*.cuh")]:
        if path.name != "onehop.h":  # includes the others
            line = f"[onehop/{path.name}](../../include/onehop/{path.name}) <!-- reference -->"
            assert pages.count(line) == 1, path.name
