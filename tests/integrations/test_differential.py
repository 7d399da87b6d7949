# SPDX-License-Identifier: Apache-2.0
"""One program over both libraries: equal outcomes, or a listed difference with its reason."""

import programs
from conftest import Library

# A difference that is gone must leave this list.
_NAMED = "an argument of a wrong type raises nixlInvalidParamError, which says what to give"
_EMPTY = "an empty list is one like any other; what uses it raises nixlInvalidParamError"
_MEMORY = "the name of a memory type is checked before the number of parts of a tuple"
_REFUSED = "raises nixlInvalidParamError"

# Step: (NIXL's outcome, onehop's, why they differ).
DIFFERENCES: dict[str, tuple[str, str, str]] = {
    "config of an unknown backend": (
        "nixl_agent",
        "raises nixlNotFoundError",
        "an agent that has none of the backends it was asked for fails later, by a KeyError",
    ),
    "get_xfer_descs tuples of 4, wrong mem type": ("NoneType", "raises KeyError", _MEMORY),
    "get_reg_descs tuples, wrong mem type": ("NoneType", "raises KeyError", _MEMORY),
    "get_xfer_descs no tuples": ("raises IndexError", "nixlXferDList of 0", _EMPTY),
    "get_reg_descs no tuples": ("raises IndexError", "nixlRegDList of 0", _EMPTY),
    "get_xfer_descs no rows": ("raises IndexError", "nixlXferDList of 0", _EMPTY),
    "get_reg_descs no rows": ("raises IndexError", "nixlRegDList of 0", _EMPTY),
    "prep local empty": ("raises IndexError", _REFUSED, _EMPTY),
    "prep local of no rows": ("raises IndexError", _REFUSED, _EMPTY),
    "get_xfer_descs rows of 5": (
        "NoneType",
        "nixlXferDList of 1",
        "a list keeps strided rows, which NIXL takes in prep_xfer_dlist only",
    ),
    "get_xfer_descs number": ("raises TypeError", "NoneType", "as for any other wrong shape"),
    "get_reg_descs number": ("raises TypeError", "NoneType", "as for any other wrong shape"),
    "deserialize garbage": (
        "raises UnpicklingError",
        "raises nixlMismatchError",
        "NIXL loads a pickle, which runs what the sender wants; onehop's format holds data only",
    ),
    "register none": ("raises TypeError", _REFUSED, _NAMED),
    "register tuples of 3": ("raises TypeError", _REFUSED, _NAMED),
    "add None": ("raises TypeError", _REFUSED, _NAMED),
    "prep local None": ("raises TypeError", _REFUSED, _NAMED),
    "prep strided, no mem type": ("raises ValueError", _REFUSED, _NAMED),
    "make floats": ("nixl_xfer_handle", _REFUSED, "an index of 0.5 would name some other block"),
    "send_notif backend": ("raises TypeError", "None", "NIXL's call of its own core fails"),
    "send_notif backend arrived": ("[]", "[('initiator', b'by UCX')]", "see send_notif backend"),
    "query_memory unknown backend": (
        "raises ValueError",
        "raises nixlNotSupportedError",
        "no backend of onehop can be asked",
    ),
    "prep_mem_view": ("raises nixlNotFoundError", "raises nixlNotSupportedError", "it has none"),
    "write to deregistered memory": (
        "'DONE'",
        "raises nixlNotFoundError",
        "NIXL writes to memory that its owner has taken back",
    ),
    "make after the kill": (
        "nixl_xfer_handle",
        "raises nixlRemoteDisconnectError",
        "the loss is known: NIXL tells of it in transfer()",
    ),
    "check_remote_metadata after the kill": (
        "True",
        "False",
        "its callers ask it whether an agent must be added again",
    ),
}


def test_each_call_has_the_same_outcome():
    real = programs.run("differential_program.py", Library("nixl"))
    ours = programs.run("differential_program.py", Library("onehop"))
    assert list(real) == list(ours)
    different = {step: (real[step], ours[step]) for step in real if real[step] != ours[step]}
    listed = {step: (theirs, mine) for step, (theirs, mine, _) in DIFFERENCES.items()}
    assert dict(sorted(different.items())) == dict(sorted(listed.items()))
