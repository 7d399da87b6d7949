# SPDX-License-Identifier: Apache-2.0
"""One program over NIXL's Python API, written to standard output as {step: outcome}.

It runs unchanged over each library. An outcome is the repr of a value that the API promises, the
shape of one that it does not promise (an address, a duration), or `raises` with the exception's
type. The other side of the transfers is a process of its own.
"""

import json
import os
import pickle
import signal
import sys
import time

import numpy as np
import torch
from differential_target import Remote
from outcomes import MIB, SECONDS, Outcomes, memory, until


def configuration(out):
    from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

    config = nixl_agent_config()
    for name in ("backends", "enable_pthread", "enable_listen", "port", "capture_telemetry"):
        out.exact(f"config.{name}", lambda name=name: getattr(config, name))
    out.exact("config.num_threads", lambda: config.num_threads)
    out.exact("config.sync_mode", lambda: config.sync_mode)
    out.shape("config.sync_mode wrong", lambda: nixl_agent_config(sync_mode="strict"))
    out.exact("sync modes", lambda: sorted(one.name for one in nixl_thread_sync_t))
    out.shape(
        "config of an unknown backend",
        lambda: nixl_agent("unknown_backend", nixl_agent_config(backends=["NOPE"])),
    )
    out.exact(
        "no backends",
        lambda: sorted(nixl_agent("no_backend", nixl_agent_config(backends=[])).backends),
    )


def attributes(out, agent):
    out.exact("name", lambda: agent.name)
    out.exact("backends", lambda: sorted(agent.backends))
    out.exact("backend_mems", lambda: sorted(agent.backend_mems))
    out.exact("UCX carries DRAM", lambda: "DRAM" in str(agent.backend_mems["UCX"]))
    out.shape("plugin_list", lambda: agent.plugin_list)
    out.exact("UCX is a plugin", lambda: "UCX" in agent.get_plugin_list())
    out.exact("nixl_mems", lambda: sorted(agent.nixl_mems))
    out.exact("nixl_ops", lambda: sorted(agent.nixl_ops))
    out.exact("notifs", lambda: agent.notifs)
    out.shape("plugin mem types", lambda: agent.get_plugin_mem_types("UCX"))
    out.exact("plugin mem types of none", lambda: agent.get_plugin_mem_types("NOPE"))
    out.shape("plugin params", lambda: type(agent.get_plugin_params("UCX")).__name__)
    out.exact("plugin params of none", lambda: agent.get_plugin_params("NOPE"))
    out.shape("backend mem types", lambda: agent.get_backend_mem_types("UCX"))
    out.exact("backend mem types of none", lambda: agent.get_backend_mem_types("NOPE"))
    out.shape("backend params", lambda: type(agent.get_backend_params("UCX")).__name__)
    out.exact("backend params of none", lambda: agent.get_backend_params("NOPE"))
    out.shape("create_backend unknown", lambda: agent.create_backend("NOPE"))
    out.shape("create_backend again", lambda: agent.create_backend("UCX"))


def descriptors(out, agent):
    data, address = memory(MIB)
    rows = np.array([[address, 4096, 0], [address + 8192, 4096, 0]], np.uint64)
    strided = np.array([[address, 4096, 0, 8192, 16]], np.uint64)
    tensor = torch.zeros(64, 64)
    forms = {
        "tuples": ([(address, 4096, 0)], "DRAM"),
        "tuples of 4": ([(address, 4096, 0, "")], "DRAM"),
        "tuples, no mem type": ([(address, 4096, 0)], None),
        "tuples of 4, no mem type": ([(address, 4096, 0, "")], None),
        "tuples, cpu": ([(address, 4096, 0)], "cpu"),
        "tuples, wrong mem type": ([(address, 4096, 0)], "NOPE"),
        "tuples of 4, wrong mem type": ([(address, 4096, 0, "")], "NOPE"),
        "tuples of 2": ([(address, 4096)], "DRAM"),
        "no tuples": ([], "DRAM"),
        "rows uint64": (rows, "DRAM"),
        "rows int64": (rows.astype(np.int64), "DRAM"),
        "rows int32": (np.ones((2, 3), np.int32), "DRAM"),
        "rows float": (rows.astype(np.float64), "DRAM"),
        "rows, no mem type": (rows, None),
        "rows of 5": (strided, "DRAM"),
        "rows of 4": (np.ones((2, 4), np.uint64), "DRAM"),
        "rows, not contiguous": (np.asfortranarray(rows), "DRAM"),
        "no rows": (rows[:0], "DRAM"),
        "flat array": (np.ones(3, np.uint64), "DRAM"),
        "tensor": (tensor, None),
        "tensor, not contiguous": (tensor.t()[1:], None),
        "tensors": ([tensor, tensor.clone()], None),
        "tensors, one not contiguous": ([tensor, tensor.t()[1:]], None),
        "string": ("text", "DRAM"),
        "number": (5, "DRAM"),
    }
    for form, (value, kind) in forms.items():
        for call in ("get_xfer_descs", "get_reg_descs"):
            out.counted(
                f"{call} {form}", lambda call=call, v=value, k=kind: getattr(agent, call)(v, k)
            )
    out.shape(
        "get_xfer_descs of reg descs", lambda: agent.get_xfer_descs(agent.get_reg_descs(tensor))
    )
    out.shape(
        "get_reg_descs of xfer descs", lambda: agent.get_reg_descs(agent.get_xfer_descs(tensor))
    )
    out.shape("get_remote_descs", lambda: agent.get_remote_descs([(address, 4096, 0, "x")], "DRAM"))
    out.shape("get_remote_descs of 3", lambda: agent.get_remote_descs([(address, 4096, 0)], "DRAM"))
    out.shape("get_remote_descs, no type", lambda: agent.get_remote_descs([(address, 1, 0, "x")]))
    out.exact(
        "descs pass through", lambda: (d := agent.get_xfer_descs(tensor)) is agent.get_xfer_descs(d)
    )
    assert data is not None


def lists(out, agent):
    for kind, one, two in (
        ("xfer", (4096, 16, 0), (8192, 16, 1)),
        ("reg", (4096, 16, 0, ""), (8192, 16, 1, "")),
    ):
        make = agent.get_xfer_descs if kind == "xfer" else agent.get_reg_descs
        both = make([one, two], "DRAM")
        out.exact(f"{kind} list isEmpty", lambda both=both: both.isEmpty())
        out.exact(f"{kind} list item", lambda both=both: both[1][:3])
        out.exact(f"{kind} list index", lambda both=both, two=two: both.index(two))
        out.exact(
            f"{kind} list index of none", lambda both=both, one=one: both.index((1, *one[1:]))
        )
        out.exact(
            f"{kind} list ==",
            lambda both=both, make=make, one=one, two=two: both == make([one, two], "DRAM"),
        )
        out.exact(
            f"{kind} list == of others",
            lambda both=both, make=make, one=one: both == make([one], "DRAM"),
        )
        out.exact(
            f"{kind} list getType", lambda both=both: both.getType() == agent.nixl_mems["DRAM"]
        )
        out.exact(f"{kind} list pickle", lambda both=both: pickle.loads(pickle.dumps(both)) == both)
        out.exact(
            f"{kind} list serialized",
            lambda both=both: agent.deserialize_descs(agent.get_serialized_descs(both)) == both,
        )
        out.shape(f"{kind} serialized", lambda both=both: agent.get_serialized_descs(both))

        def edit(both=both, one=one):
            both.addDesc(one)
            both[0] = one
            return both.descCount(), both[0][:3], both[2][:3]

        out.exact(f"{kind} list addDesc, set", edit)
        out.exact(
            f"{kind} list append", lambda both=both, two=two: (both.append(two), both.descCount())
        )
        out.exact(f"{kind} list remDesc", lambda both=both: (both.remDesc(0), both.descCount()))
        out.exact(f"{kind} list remDesc beyond", lambda both=both: both.remDesc(99))
        out.exact(
            f"{kind} list clear", lambda both=both: (both.clear(), both.descCount(), both.isEmpty())
        )
    out.shape("deserialize garbage", lambda: agent.deserialize_descs(b"garbage"))


def registrations(out, agent):
    data, address = memory(MIB)
    whole = [(address, MIB, 0, "")]
    first = out.shape("register", lambda: agent.register_memory(whole, "DRAM"))
    again = out.shape("register again", lambda: agent.register_memory(whole, "DRAM"))
    part = out.shape(
        "register a part", lambda: agent.register_memory([(address, 64, 0, "")], "DRAM")
    )
    out.shape("register with backends", lambda: agent.register_memory(whole, "DRAM", ["UCX"]))
    out.shape(
        "register with an unknown backend", lambda: agent.register_memory(whole, "DRAM", ["NOPE"])
    )
    out.shape("register none", lambda: agent.register_memory(None))
    out.shape("register 0 bytes", lambda: agent.register_memory([(address, 0, 0, "")], "DRAM"))
    out.shape("register tuples of 3", lambda: agent.register_memory([(address, 64, 0)], "DRAM"))
    out.shape("register a tensor", lambda: agent.register_memory(torch.zeros(64)))
    out.shape("deregister a part", lambda: agent.deregister_memory(part))
    out.shape("deregister", lambda: agent.deregister_memory(first))
    out.shape("deregister again", lambda: agent.deregister_memory(again))
    strange = agent.get_reg_descs([(address + 8192, 77, 0, "")], "DRAM")
    out.shape("deregister what never was", lambda: agent.deregister_memory(strange))
    return data


def preparations(out, agent, remote, address, theirs):
    ours = [(address, 4096, 0), (address + 4096, 4096, 0)]
    there = [(theirs, 4096, 0), (theirs + 4096, 4096, 0)]
    outside = [(address + 64 * MIB, 4096, 0)]
    strided = np.array([[address, 4096, 0, 8192, 16]], np.uint64)
    cases = {
        'local ""': ("", ours),
        "local NIXL_INIT_AGENT": ("NIXL_INIT_AGENT", ours),
        "loopback": ("initiator", ours),
        "remote str": ("target", there),
        "remote bytes": (b"target", there),
        "unknown agent": ("nobody", there),
        "local outside": ("", outside),
        "local across the end": ("", [(address + MIB - 64, 128, 0)]),
        "remote outside": ("target", [(theirs + 64 * MIB, 4096, 0)]),
        "remote across the end": ("target", [(theirs + MIB - 64, 128, 0)]),
        "local other device": ("", [(address, 4096, 3)]),
        "local empty": ("", []),
        "local of no rows": ("", np.zeros((0, 3), np.uint64)),
        "local rows": ("", np.array(ours, np.uint64)),
        "local strided": ("", strided),
        "local strided outside": ("", np.array([[address, 4096, 0, 8192, 1000]], np.uint64)),
        "local 0 bytes": ("", [(address, 0, 0)]),
        "local VRAM": ("", ours, "VRAM"),
        "local None": ("", None),
    }
    for name, (who, descs, *kind) in cases.items():
        out.shape(
            f"prep {name}",
            lambda who=who, descs=descs, kind=kind: agent.prep_xfer_dlist(
                who, descs, *kind or ["DRAM"]
            ),
        )
    out.shape("prep strided, no mem type", lambda: agent.prep_xfer_dlist("", strided))
    out.shape("prep unknown backend", lambda: agent.prep_xfer_dlist("", ours, "DRAM", ["NOPE"]))
    handle = agent.prep_xfer_dlist("", ours, "DRAM")
    out.shape("release dlist", lambda: agent.release_dlist_handle(handle))
    out.shape("release dlist again", lambda: agent.release_dlist_handle(handle))


def transfers(out, agent, remote, data, address, theirs):
    size = 4096
    count = 16
    local = agent.prep_xfer_dlist("", [(address + i * size, size, 0) for i in range(count)], "DRAM")
    there = agent.prep_xfer_dlist(
        "target", [(theirs + i * size, size, 0) for i in range(count)], "DRAM"
    )
    short = agent.prep_xfer_dlist("target", [(theirs, 100, 0)], "DRAM")
    loop = agent.prep_xfer_dlist("initiator", [(address + MIB // 2, size, 0)], "DRAM")
    sides = {
        "lists": ("WRITE", local, [0, 1], there, [2, 3]),
        "int32": ("READ", local, np.array([0, 1], np.int32), there, np.array([2, 3], np.int32)),
        "int64": ("READ", local, np.array([0, 1]), there, np.array([2, 3])),
        "uint64": ("READ", local, np.array([0], np.uint64), there, np.array([0], np.uint64)),
        "floats": ("READ", local, np.array([0.0]), there, np.array([0.0])),
        "two dimensions": ("READ", local, np.zeros((1, 1), np.int32), there, [0]),
        "empty": ("WRITE", local, [], there, []),
        "counts differ": ("WRITE", local, [0, 1], there, [0]),
        "lengths differ": ("WRITE", local, [0], short, [0]),
        "beyond": ("WRITE", local, [count], there, [0]),
        "remote beyond": ("WRITE", local, [0], there, [count]),
        "negative": ("WRITE", local, [-1], there, [0]),
        "operation": ("MOVE", local, [0], there, [0]),
        "sides swapped": ("WRITE", there, [0], local, [0]),
        "remote twice": ("WRITE", there, [0], there, [1]),
        "local twice": ("WRITE", local, [0], local, [1]),
        "loopback": ("WRITE", local, [0], loop, [0]),
        "repeated index": ("WRITE", local, [0, 0], there, [0, 1]),
    }
    for name, arguments in sides.items():
        made = out.shape(f"make {name}", lambda a=arguments: agent.make_prepped_xfer(*a))
        if made is not None:
            agent.release_xfer_handle(made)
    out.shape(
        "make unknown backend",
        lambda: agent.make_prepped_xfer("WRITE", local, [0], there, [0], b"", ["NOPE"]),
    )
    out.shape(
        "make skip_desc_merge",
        lambda: agent.make_prepped_xfer("WRITE", local, [0], there, [0], b"", [], True),
    )

    ours, them = agent.get_xfer_descs, agent.get_xfer_descs
    pairs = {
        "": ([(address, 64, 0)], [(theirs, 64, 0)], "target"),
        "bytes": ([(address, 64, 0)], [(theirs, 64, 0)], b"target"),
        "unknown agent": ([(address, 64, 0)], [(theirs, 64, 0)], "nobody"),
        "lengths differ": ([(address, 64, 0)], [(theirs, 65, 0)], "target"),
        "counts differ": ([(address, 64, 0)], [(theirs, 64, 0), (theirs, 64, 0)], "target"),
        "outside": ([(address + 64 * MIB, 64, 0)], [(theirs, 64, 0)], "target"),
        "remote outside": ([(address, 64, 0)], [(theirs + 64 * MIB, 64, 0)], "target"),
        "loopback": ([(address, 64, 0)], [(address + 64, 64, 0)], "initiator"),
    }
    for name, (a, b, who) in pairs.items():
        out.shape(
            f"initialize {name}",
            lambda a=a, b=b, who=who: agent.initialize_xfer(
                "WRITE", ours(a, "DRAM"), them(b, "DRAM"), who
            ),
        )
    out.shape(
        "initialize operation",
        lambda: agent.initialize_xfer(
            "MOVE", ours([(address, 64, 0)], "DRAM"), them([(theirs, 64, 0)], "DRAM"), "target"
        ),
    )

    # A write with a notification.
    data[:] = np.arange(MIB, dtype=np.uint64).astype(np.uint8) ^ (np.arange(MIB) >> 12).astype(
        np.uint8
    )
    write = agent.make_prepped_xfer("WRITE", local, [1, 0], there, [4, 5], b"written")
    out.shape("check before transfer", lambda: agent.check_xfer_state(write))
    out.shape("telemetry before transfer", lambda: agent.get_xfer_telemetry(write))
    out.exact("backend of transfer", lambda: agent.query_xfer_backend(write))
    out.shape("cost of transfer", lambda: agent.estimate_xfer_cost(write))
    out.state("transfer", lambda: agent.transfer(write))
    out.exact("done", lambda: until(lambda: agent.check_xfer_state(write) == "DONE"))
    out.exact("notified", lambda: remote.notifications(1))
    expected = data[size : 2 * size].tobytes() + data[:size].tobytes()
    out.exact("bytes written", lambda: remote.read(4 * size, 6 * size) == expected)
    out.shape("telemetry, not asked for", lambda: agent.get_xfer_telemetry(write))
    out.exact("check after done", lambda: agent.check_xfer_state(write))
    out.state("transfer again", lambda: agent.transfer(write, b"once more"))
    out.exact("done again", lambda: until(lambda: agent.check_xfer_state(write) == "DONE"))
    out.exact("notified again", lambda: remote.notifications(1))
    out.state("transfer a third time", lambda: agent.transfer(write))
    out.exact("done a third time", lambda: until(lambda: agent.check_xfer_state(write) == "DONE"))
    out.exact("which notification is kept", lambda: remote.notifications(1, 5))
    out.exact("release", lambda: agent.release_xfer_handle(write))
    out.exact("release again", lambda: agent.release_xfer_handle(write))

    # A read with a notification to the side that is read.
    out.exact("remote fill", lambda: remote.fill(77))
    read = agent.make_prepped_xfer("READ", local, [8, 9], there, [0, 1], "text as a notification")
    out.state("read", lambda: agent.transfer(read))
    out.exact("read done", lambda: until(lambda: agent.check_xfer_state(read) == "DONE"))
    out.exact("read notified", lambda: remote.notifications(1))
    out.exact("bytes read", lambda: bool((data[8 * size : 10 * size] == 77).all()))
    out.exact("release by the handle", lambda: read.release())

    # To itself.
    loopback = agent.make_prepped_xfer("WRITE", local, [8], loop, [0], b"to itself")
    out.state("loopback", lambda: agent.transfer(loopback))
    out.exact("loopback done", lambda: until(lambda: agent.check_xfer_state(loopback) == "DONE"))
    out.exact("loopback bytes", lambda: bool((data[MIB // 2 : MIB // 2 + size] == 77).all()))
    out.exact("loopback notified", lambda: until(agent.get_new_notifs, 5))

    # Strided on both sides.
    rows = agent.prep_xfer_dlist("", np.array([[address, 64, 0, 128, 32]], np.uint64), "DRAM")
    columns = agent.prep_xfer_dlist(
        "target", np.array([[theirs, 64, 0, 256, 32]], np.uint64), "DRAM"
    )
    data[: 64 * 128] = np.arange(64 * 128, dtype=np.uint64).astype(np.uint8)
    picks = [31, 0, 7]
    strided = out.shape(
        "make strided", lambda: agent.make_prepped_xfer("WRITE", rows, picks, columns, picks)
    )
    out.state("strided", lambda: agent.transfer(strided))
    out.exact("strided done", lambda: until(lambda: agent.check_xfer_state(strided) == "DONE"))
    for pick in picks:
        expected = data[pick * 128 : pick * 128 + 64].tobytes()
        out.exact(
            f"strided bytes {pick}",
            lambda p=pick, e=expected: remote.read(p * 256, p * 256 + 64) == e,
        )
    out.exact("strided neighbour", lambda: remote.read(64, 128) == bytes([77]) * 64)


def notifications(out, agent, remote):
    out.exact("nothing new", agent.get_new_notifs)
    out.exact("send_notif", lambda: agent.send_notif("target", b"hello"))
    out.exact("send_notif arrived", lambda: remote.notifications(1))
    out.exact("send_notif text", lambda: agent.send_notif("target", "text"))
    out.exact("send_notif text arrived", lambda: remote.notifications(1))
    out.exact("send_notif bytes name", lambda: agent.send_notif(b"target", b"by bytes"))
    out.exact("send_notif bytes name arrived", lambda: remote.notifications(1))
    out.exact("send_notif backend", lambda: agent.send_notif("target", b"by UCX", "UCX"))
    out.exact("send_notif backend arrived", lambda: remote.notifications(1, 5))
    out.exact("send_notif unknown backend", lambda: agent.send_notif("target", b"", "NOPE"))
    out.exact("send_notif unknown agent", lambda: agent.send_notif("nobody", b"hello"))
    out.exact("send_notif empty", lambda: agent.send_notif("target", b""))
    out.exact("send_notif empty arrived", lambda: remote.notifications(1, 5))
    out.exact("send_notif binary", lambda: agent.send_notif("target", bytes(range(256))))
    out.exact("send_notif binary arrived", lambda: remote.notifications(1))
    large = bytes(range(256)) * 800
    out.exact("send_notif 200 KB", lambda: agent.send_notif("target", large))
    out.exact(
        "send_notif 200 KB arrived", lambda: remote.notifications(1) == [("initiator", large)]
    )
    out.exact(
        "many in order", lambda: [agent.send_notif("target", b"%d" % i) for i in range(50)] and None
    )
    out.exact(
        "many arrived",
        lambda: [m for _, m in remote.notifications(50)] == [b"%d" % i for i in range(50)],
    )
    agent.send_notif("target", b"prefix and more")
    out.exact(
        "check_remote_xfer_done prefix", lambda: remote.check_done("initiator", b"prefix", True)
    )
    agent.send_notif("target", b"more and infix and more")
    out.exact(
        "check_remote_xfer_done infix", lambda: remote.check_done("initiator", b"infix", False)
    )
    out.exact("check_remote_xfer_done none", lambda: agent.check_remote_xfer_done("target", b"x"))
    out.exact("update_notifs", lambda: until(remote.updated, 2))


def agents(out, agent, remote, metadata):
    out.shape("metadata", agent.get_agent_metadata)
    out.exact("add", lambda: agent.add_remote_agent(metadata))
    out.exact("add again", lambda: agent.add_remote_agent(metadata))
    for name, garbage in (
        ("garbage", b"garbage" * 10),
        ("nothing", b""),
        ("half", metadata[: len(metadata) // 2]),
        ("its own", agent.get_agent_metadata()),
    ):
        out.exact(f"add {name}", lambda g=garbage: agent.add_remote_agent(g))
    out.shape("add None", lambda: agent.add_remote_agent(None))
    out.exact("check_remote_metadata", lambda: agent.check_remote_metadata("target"))
    out.exact("check_remote_metadata bytes", lambda: agent.check_remote_metadata(b"target"))
    out.exact("check_remote_metadata unknown", lambda: agent.check_remote_metadata("nobody"))
    out.exact("make_connection", lambda: agent.make_connection("target"))
    out.exact("make_connection unknown", lambda: agent.make_connection("nobody"))
    partial = out.shape("partial metadata", remote.partial)
    out.exact("add partial metadata", lambda: agent.add_remote_agent(partial))


def later_registrations(out, agent, remote):
    metadata, second = remote.more()
    rows = [(second, 64, 0)]
    out.shape("prep before it is known", lambda: agent.prep_xfer_dlist("target", rows, "DRAM"))
    out.exact(
        "check_remote_metadata of unknown rows",
        lambda: agent.check_remote_metadata("target", agent.get_xfer_descs(rows, "DRAM")),
    )
    out.exact("add newer metadata", lambda: agent.add_remote_agent(metadata))
    out.shape("prep after it is known", lambda: agent.prep_xfer_dlist("target", rows, "DRAM"))
    out.exact(
        "check_remote_metadata of known rows",
        lambda: agent.check_remote_metadata("target", agent.get_xfer_descs(rows, "DRAM")),
    )


def telemetry(out, metadata, theirs):
    from nixl._api import nixl_agent, nixl_agent_config

    data, address = memory(MIB)
    agent = nixl_agent("measured", nixl_agent_config(capture_telemetry=True))
    agent.register_memory([(address, MIB, 0, "")], "DRAM")
    agent.add_remote_agent(metadata)
    rows = agent.get_xfer_descs([(address, 4096, 0), (address + 8192, 4096, 0)], "DRAM")
    there = agent.get_xfer_descs([(theirs, 4096, 0), (theirs + 8192, 4096, 0)], "DRAM")
    handle = agent.initialize_xfer("READ", rows, there, "target")
    out.state("measured transfer", lambda: agent.transfer(handle))
    out.exact("measured done", lambda: until(lambda: agent.check_xfer_state(handle) == "DONE"))
    seen = out.shape("telemetry", lambda: agent.get_xfer_telemetry(handle))
    out.exact("telemetry bytes", lambda: seen.totalBytes)
    out.exact("telemetry descriptors", lambda: seen.descCount)
    out.shape("telemetry times", lambda: [seen.startTime, seen.postDuration, seen.xferDuration])
    out.exact("telemetry is positive", lambda: seen.xferDuration >= 0 and seen.postDuration >= 0)
    assert data is not None


def not_offered(out, agent):
    tensor = torch.zeros(64)
    out.shape("query_memory unknown backend", lambda: agent.query_memory(tensor, "NOPE"))
    out.shape("query_memory", lambda: agent.query_memory(tensor, "UCX"))
    out.shape("prep_mem_view", lambda: agent.prep_mem_view(agent.get_xfer_descs(tensor)))


def ends(out, agent, remote, address, theirs, metadata):
    """What is left when the target's memory, the target's entry and the target itself are gone."""
    local = agent.prep_xfer_dlist("", [(address, 4096, 0)], "DRAM")
    there = agent.prep_xfer_dlist("target", [(theirs, 4096, 0)], "DRAM")
    out.exact("target deregisters", remote.deregister)
    handle = out.shape(
        "make to deregistered memory",
        lambda: agent.make_prepped_xfer("WRITE", local, [0], there, [0]),
    )

    def run(handle):
        state = agent.transfer(handle)
        end = time.monotonic() + SECONDS
        while state == "PROC" and time.monotonic() < end:
            time.sleep(0.001)
            state = agent.check_xfer_state(handle)
        return state

    out.exact("write to deregistered memory", lambda: run(handle))
    out.exact("release of it", lambda: agent.release_xfer_handle(handle))

    out.exact("remove", lambda: agent.remove_remote_agent("target"))
    out.exact("remove unknown", lambda: agent.remove_remote_agent("nobody"))
    out.exact("check_remote_metadata removed", lambda: agent.check_remote_metadata("target"))
    out.shape("prep removed", lambda: agent.prep_xfer_dlist("target", [(theirs, 64, 0)], "DRAM"))
    out.exact("send_notif removed", lambda: agent.send_notif("target", b"x"))
    out.shape(
        "make with a stale handle", lambda: agent.make_prepped_xfer("WRITE", local, [0], there, [0])
    )
    out.exact("add after remove", lambda: agent.add_remote_agent(metadata))
    out.exact("check_remote_metadata added again", lambda: agent.check_remote_metadata("target"))
    out.exact("send_notif added again", lambda: agent.send_notif("target", b"again"))
    out.exact("send_notif added again arrived", lambda: remote.notifications(1))

    fresh, second = remote.more()
    agent.add_remote_agent(fresh)
    large = agent.prep_xfer_dlist("target", [(second, MIB, 0)], "DRAM")
    ours = agent.prep_xfer_dlist("", [(address, MIB, 0)], "DRAM")
    handle = agent.make_prepped_xfer("WRITE", ours, [0], large, [0])
    out.exact("write before the kill", lambda: run(handle))
    os.kill(remote.process.pid, signal.SIGKILL)
    remote.process.join(SECONDS)

    def fails(call):
        """Repeats `call` until it raises: a dead peer is noticed within a time, not at once."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            call()
            time.sleep(0.01)
        return "it never fails"

    out.exact("write after the kill", lambda: fails(lambda: run(handle)))
    out.shape(
        "make after the kill", lambda: agent.make_prepped_xfer("WRITE", ours, [0], large, [0])
    )
    out.exact("check_remote_metadata after the kill", lambda: agent.check_remote_metadata("target"))
    out.exact("release after the kill", lambda: agent.release_xfer_handle(handle))
    out.exact("send_notif after the kill", lambda: agent.send_notif("target", b"x"))
    out.exact("remove after the kill", lambda: agent.remove_remote_agent("target"))
    out.exact(
        "loopback after the kill",
        lambda: run(
            agent.initialize_xfer(
                "WRITE",
                agent.get_xfer_descs([(address, 64, 0)], "DRAM"),
                agent.get_xfer_descs([(address + 64, 64, 0)], "DRAM"),
                "initiator",
            )
        ),
    )


def main():
    from nixl._api import nixl_agent, nixl_agent_config

    out = Outcomes()
    remote = Remote()
    metadata, theirs = remote.metadata()
    configuration(out)
    agent = nixl_agent("initiator", nixl_agent_config())
    attributes(out, agent)
    descriptors(out, agent)
    lists(out, agent)
    kept = registrations(out, agent)
    data, address = memory(MIB)
    agent.register_memory([(address, MIB, 0, "")], "DRAM")
    agents(out, agent, remote, metadata)
    preparations(out, agent, remote, address, theirs)
    transfers(out, agent, remote, data, address, theirs)
    notifications(out, agent, remote)
    later_registrations(out, agent, remote)
    telemetry(out, metadata, theirs)
    not_offered(out, agent)
    ends(out, agent, remote, address, theirs, metadata)
    assert kept is not None
    print(json.dumps(out.steps))
    sys.stdout.flush()
    # Some versions of NIXL crash when their threads end with the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main()
