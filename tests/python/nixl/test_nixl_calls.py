# SPDX-License-Identifier: Apache-2.0
"""Every call of the agent: what it returns, and what it raises for which arguments."""

import ctypes
import gc
import logging

import numpy as np
import onehop
import pytest
from agents import Area, finish, notes, run, until
from onehop.nixl import api, bindings, nixl_agent, nixl_agent_config, utils
from onehop.nixl.bindings import (
    DRAM_SEG,
    nixlBackendError,
    nixlInvalidParamError,
    nixlMismatchError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlNotSupportedError,
    nixlRemoteDisconnectError,
    nixlXferDList,
)

# ---- Agents and backends


def test_attributes():
    agent = nixl_agent("A")
    assert agent.name == "A"
    assert agent.notifs == {}
    assert agent.backends == {"UCX": "UCX"}
    assert agent.backend_mems == {"UCX": ["DRAM_SEG", "VRAM_SEG"]}
    assert agent.plugin_list == ["UCX", "ONEHOP"] == agent.get_plugin_list()
    assert set(agent.nixl_mems) >= {"DRAM", "VRAM", "FILE", "BLOCK", "OBJ"}
    assert agent.nixl_mems["DRAM"] is DRAM_SEG
    assert agent.nixl_ops == {"WRITE": bindings.NIXL_WRITE, "READ": bindings.NIXL_READ}
    assert agent.agent is not None
    assert agent.get_plugin_mem_types("UCX") == ["DRAM_SEG", "VRAM_SEG"]
    assert agent.get_plugin_mem_types("NOPE") == []
    assert agent.get_plugin_params("UCX") == agent.get_backend_params("UCX") == {}
    assert agent.get_backend_mem_types("UCX") == ["DRAM_SEG", "VRAM_SEG"]
    assert agent.get_backend_mem_types("NOPE") == []


def test_backends(caplog):
    agent = nixl_agent("A", nixl_agent_config(backends=[]))
    assert agent.backends == {}
    agent.create_backend("UCX", {"num_threads": "4", "unknown": "1"})
    agent.create_backend("ONEHOP")
    assert list(agent.backends) == ["UCX", "ONEHOP"]
    with pytest.raises(nixlInvalidParamError, match="there already"):
        agent.create_backend("UCX")
    Area(agent)
    with pytest.raises(nixlNotFoundError, match="'OBJ'"):
        agent.create_backend("OBJ")
    with caplog.at_level(logging.WARNING, "onehop.nixl"):
        assert nixl_agent("B", nixl_agent_config(backends=["UCX", "GDS"])).backends.keys() == {
            "UCX"
        }
    assert "'GDS'" in caplog.text
    with pytest.raises(nixlNotFoundError, match=r"'LIBFABRIC' .*: onehop has 'UCX' and 'ONEHOP'"):
        nixl_agent("B", nixl_agent_config(backends=["LIBFABRIC"]))
    assert agent.backend_options == {"UCX": {}, "ONEHOP": {}}
    assert list(nixl_agent("C", None, True).backends) == ["UCX", "ONEHOP"]


@pytest.mark.parametrize("name", ["", "x" * 1025, b""])
def test_names_that_cannot_be(name):
    with pytest.raises(nixlInvalidParamError, match=r"1 to 1024"):
        nixl_agent(name)


def test_names_are_text_or_bytes(two):
    assert nixl_agent(b"bytes").name == "bytes"
    for name in ("B", b"B"):
        assert two.a.check_remote_metadata(name)
        two.a.make_connection(name)
        two.a.send_notif(name, b"x")
        two.a.prep_xfer_dlist(name, two.theirs.blocks(1, 8), "DRAM")
    assert notes(two.b, 2) == {"A": [b"x", b"x"]}
    with pytest.raises(nixlInvalidParamError, match="name is a int"):
        two.a.send_notif(5, b"x")


def test_unknown_backends_are_refused(two):
    descs = [(two.ours.base, 8, 0)]
    calls = [
        lambda: two.a.register_memory([(*descs[0], "")], "DRAM", ["NOPE"]),
        lambda: two.a.deregister_memory(two.ours.reg, ["NOPE"]),
        lambda: two.a.prep_xfer_dlist("", descs, "DRAM", ["NOPE"]),
        lambda: two.a.get_new_notifs(["NOPE"]),
        lambda: two.a.send_notif("B", b"x", "NOPE"),
        lambda: two.a.make_connection("B", ["NOPE"]),
        lambda: two.a.get_partial_agent_metadata(two.ours.reg, True, ["NOPE"]),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="NOPE"):
            call()


def test_what_onehop_does_not_offer(two):
    calls = [
        lambda: two.a.query_memory([], "UCX", "DRAM"),
        lambda: two.a.prep_mem_view(None),
        lambda: two.a.release_mem_view(1),
        lambda: two.a.send_local_metadata(),
        lambda: two.a.send_partial_agent_metadata(two.ours.reg),
        lambda: two.a.fetch_remote_metadata("B"),
        lambda: two.a.invalidate_local_metadata(),
    ]
    for call in calls:
        with pytest.raises(nixlNotSupportedError):
            call()
    for memory in ("FILE", "BLOCK", "OBJ"):
        with pytest.raises(nixlNotFoundError, match="moves DRAM and VRAM"):
            two.a.register_memory([(0, 8, 0, "file")], memory)


# ---- Registration


def test_registrations_overlap_and_are_counted():
    agent, other = nixl_agent("A"), nixl_agent("B")
    area = Area(agent)
    again = agent.register_memory([(area.base, area.size, 0, "again")], "DRAM")
    part = agent.register_memory(np.array([[area.base + 100, 1000, 0]], np.uint64), "DRAM")
    inside = other.get_xfer_descs([area.at(200, 100)], "DRAM")

    def known():
        other.add_remote_agent(agent.get_agent_metadata())
        return other.check_remote_metadata("A", inside)

    agent.deregister_memory(again)
    assert known()
    agent.deregister_memory(area.reg)
    assert known()  # by the part
    agent.deregister_memory(part)
    assert not known()
    with pytest.raises(nixlNotFoundError, match="not registered"):
        agent.deregister_memory(part)


def test_registration_is_all_or_nothing():
    agent = nixl_agent("A")
    memory = np.zeros(100, "u1")
    base = memory.ctypes.data
    with pytest.raises(nixlBackendError, match="address 0"):
        agent.register_memory([(base, 100, 0, ""), (0, 100, 0, "")], "DRAM")
    with pytest.raises(nixlNotFoundError):
        agent.prep_xfer_dlist("", [(base, 8, 0)], "DRAM")
    with pytest.raises(nixlInvalidParamError, match="address space"):
        agent.register_memory([(2**64 - 8, 100, 0, "")], "DRAM")


@pytest.mark.parametrize(
    "bad", [None, 5, "text", [(1, 2)], [(1, 2, 3)], np.zeros((2, 4), "u8"), []]
)
def test_lists_that_are_none_cannot_be_registered(bad):
    with pytest.raises(nixlInvalidParamError):
        nixl_agent("A").register_memory(bad, "DRAM")


def test_memory_of_no_bytes(two):
    two.a.register_memory([(two.ours.base, 0, 0, "")], "DRAM")
    local = two.a.get_xfer_descs([two.ours.at(0, 0), two.ours.at(8, 8)], "DRAM")
    remote = two.a.get_xfer_descs([two.theirs.at(0, 0), two.theirs.at(8, 8)], "DRAM")
    run(two.a, two.a.initialize_xfer("WRITE", local, remote, "B"))
    assert (two.theirs.bytes[8:16] == two.ours.bytes[8:16]).all()
    nothing = two.a.get_xfer_descs([two.ours.at(0, 0)], "DRAM")
    theirs = two.a.get_xfer_descs([two.theirs.at(0, 0)], "DRAM")
    run(two.a, two.a.initialize_xfer("READ", nothing, theirs, "B", b"nothing"))
    assert notes(two.b, 1) == {"A": [b"nothing"]}


# ---- Metadata


def test_only_the_initiator_adds(two):
    with pytest.raises(nixlNotFoundError, match="'A' is not known"):
        two.b.send_notif("A", b"x")
    assert not two.b.check_remote_metadata("A")
    two.a.send_notif("B", b"x")
    assert notes(two.b, 1) == {"A": [b"x"]}


def test_metadata_is_merged(two):
    more = Area(two.b)
    with pytest.raises(nixlNotFoundError, match="no registration of agent 'B'"):
        two.a.prep_xfer_dlist("B", [more.at(0, 8)], "DRAM")
    partial = two.b.get_partial_agent_metadata(more.reg)
    assert two.a.add_remote_agent(partial) == b"B"
    assert two.a.prep_xfer_dlist("B", [more.at(0, 8), two.theirs.at(0, 8)], "DRAM")
    older = two.b.get_agent_metadata()
    third = Area(two.b)
    two.a.add_remote_agent(two.b.get_agent_metadata())
    two.a.add_remote_agent(older)  # comes late, and takes nothing away
    two.a.prep_xfer_dlist("B", [third.at(0, 8)], "DRAM")


def test_partial_metadata(two):
    other = nixl_agent("C")
    with pytest.raises(nixlNotFoundError, match="inc_conn_info"):
        other.add_remote_agent(two.b.get_partial_agent_metadata(two.theirs.reg))
    other.add_remote_agent(two.b.get_partial_agent_metadata(None, True))
    other.send_notif("B", b"from C")
    assert notes(two.b, 1) == {"C": [b"from C"]}
    unknown = two.b.get_reg_descs([(two.theirs.base, 7, 0, "")], "DRAM")
    with pytest.raises(nixlNotFoundError, match="not registered"):
        two.b.get_partial_agent_metadata(unknown)


def test_metadata_that_cannot_be_added(two):
    with pytest.raises(nixlInvalidParamError, match="our own name"):
        two.a.add_remote_agent(two.a.get_agent_metadata())
    for garbage in (b"", b"garbage", "text", two.b.get_agent_metadata()[:-1]):
        with pytest.raises(nixlMismatchError, match="run onehop on both sides"):
            two.a.add_remote_agent(garbage)
    with pytest.raises(nixlMismatchError, match="real NIXL"):
        two.a.add_remote_agent(b"nixlSerDes|" + bytes(500))
    with pytest.raises(nixlInvalidParamError, match="NoneType"):
        two.a.add_remote_agent(None)


def test_check_remote_metadata(two):
    assert two.a.check_remote_metadata("A")
    assert not two.a.check_remote_metadata("Z")
    inside = two.a.get_xfer_descs([two.theirs.at(0, 8)], "DRAM")
    outside = two.a.get_xfer_descs([two.theirs.at(0, 8), (8, 8, 0)], "DRAM")
    assert two.a.check_remote_metadata("B", inside)
    assert not two.a.check_remote_metadata("B", outside)
    two.a.remove_remote_agent("B")
    assert not two.a.check_remote_metadata("B")


def test_removed_agents(two):
    local, remote = two.sides()
    made = two.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    two.a.send_notif("B", b"last")
    two.a.remove_remote_agent("B")
    two.a.remove_remote_agent("B")
    two.a.remove_remote_agent(b"never known")
    assert notes(two.b, 1) == {"A": [b"last"]}
    calls = [
        lambda: two.a.make_prepped_xfer("WRITE", local, [0], remote, [0]),
        lambda: two.a.transfer(made),
        lambda: two.a.send_notif("B", b"x"),
        lambda: two.a.make_connection("B"),
        lambda: two.a.prep_xfer_dlist("B", two.theirs.blocks(1, 8), "DRAM"),
    ]
    for call in calls:
        with pytest.raises(nixlNotFoundError):
            call()
    two.a.add_remote_agent(two.b.get_agent_metadata())
    with pytest.raises(nixlNotFoundError, match="added again"):
        two.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    run(two.a, two.transfer())


# ---- Preparing


@pytest.mark.parametrize(
    ("desc", "error"),
    [
        ((-8, 16, 0), nixlNotFoundError),
        ((0, (1 << 20) + 1, 0), nixlNotFoundError),
        ((1 << 20, 1, 0), nixlNotFoundError),
        ((0, 8, 1), nixlNotFoundError),
        ((0, 2**64 - 1, 0), nixlNotFoundError),
    ],
)
def test_descriptors_outside(two, desc, error):
    offset, length, device = desc
    for name, area in (("", two.ours), ("B", two.theirs)):
        rows = [area.at(0, 8), (area.base + offset, length, device)]
        with pytest.raises(error, match="descriptor 1"):
            two.a.prep_xfer_dlist(name, rows, "DRAM")


def test_preparing_checks(two):
    with pytest.raises(nixlInvalidParamError, match="is empty"):
        two.a.prep_xfer_dlist("", [], "DRAM")
    with pytest.raises(KeyError, match="FOO"):
        two.a.prep_xfer_dlist("", two.ours.blocks(1, 8), "FOO")
    with pytest.raises(nixlNotFoundError, match="'Z' is not known"):
        two.a.prep_xfer_dlist("Z", two.ours.blocks(1, 8), "DRAM")
    with pytest.raises(nixlNotFoundError, match="VRAM_SEG"):
        two.a.prep_xfer_dlist("", two.ours.blocks(1, 8), "VRAM")
    with pytest.raises(nixlInvalidParamError, match="is no list"):
        two.a.prep_xfer_dlist("", np.zeros((2, 4), np.uint64), "DRAM")


def test_making_checks(two):
    local, remote = two.sides()
    make = two.a.make_prepped_xfer
    for ours, theirs, text in [
        ([], [], "is empty"),
        ([0, 1], [0], "give as many"),
        ([16], [0], "has 16"),
        ([-1], [0], "has -1"),
        ([0], [99], "has 99"),
        ([0.5], [0], "float64"),
        ([2**70], [0], "dtype object"),
    ]:
        with pytest.raises(nixlInvalidParamError, match=text):
            make("WRITE", local, ours, remote, theirs)
    with pytest.raises(ValueError, match="2 dimensions"):
        make("WRITE", local, np.array([[0]]), remote, [0])
    for first, second in ((remote, local), (local, local), (remote, remote), (None, remote)):
        with pytest.raises(nixlInvalidParamError, match="_xfer_side"):
            make("WRITE", first, [0], second, [0])
    for operation in ("write", "FOO", None):
        with pytest.raises(KeyError, match="WRITE, READ"):
            make(operation, local, [0], remote, [0])
    foreign = two.b.prep_xfer_dlist("", two.theirs.blocks(1, 8), "DRAM")
    with pytest.raises(nixlInvalidParamError, match="is of agent 'B'"):
        make("WRITE", foreign, [0], remote, [0])
    longer = two.a.prep_xfer_dlist("B", two.theirs.blocks(1, 65), "DRAM")
    with pytest.raises(nixlInvalidParamError, match="same length"):
        make("WRITE", local, [0], longer, [0])
    for numbers in ((3, 1), np.array([3, 1], np.int32), np.array([3, 1], np.uint64), range(2)):
        assert make("READ", local, numbers, remote, numbers)


def test_initializing_checks(two):
    ours = two.a.get_xfer_descs([two.ours.at(0, 8)], "DRAM")
    theirs = two.a.get_xfer_descs([two.theirs.at(0, 8)], "DRAM")
    both = two.a.get_xfer_descs([two.theirs.at(0, 4), two.theirs.at(4, 4)], "DRAM")
    with pytest.raises(nixlInvalidParamError, match="1 local and 2 remote"):
        two.a.initialize_xfer("READ", ours, both, "B")
    with pytest.raises(nixlInvalidParamError, match="is empty"):
        two.a.initialize_xfer("READ", nixlXferDList(DRAM_SEG), theirs, "B")
    with pytest.raises(nixlNotFoundError, match="'Z'"):
        two.a.initialize_xfer("READ", ours, theirs, "Z")
    with pytest.raises(nixlNotFoundError, match="no registration of agent 'B'"):
        two.a.initialize_xfer("READ", ours, ours, "B")
    with pytest.raises(KeyError):
        two.a.initialize_xfer("X", ours, theirs, "B")
    with pytest.raises(nixlInvalidParamError, match="get_xfer_descs"):
        two.a.initialize_xfer("READ", [(1, 2, 3)], theirs, "B")


# ---- Transfers


def test_states(two):
    made = two.transfer(notif=b"first")
    with pytest.raises(nixlNotPostedError, match="not posted"):
        two.a.check_xfer_state(made)
    assert two.a.query_xfer_backend(made) == "UCX"
    assert two.a.estimate_xfer_cost(made) == (0, 0, "UNKNOWN")
    run(two.a, made)
    for _ in range(20):  # reposts without limit
        run(two.a, made, b"again")
    assert notes(two.b, 21) == {"A": [b"first"] + [b"again"] * 20}
    assert (two.theirs.bytes[:1024] == two.ours.bytes[:1024]).all()


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_notification_of_text(two, operation):
    run(two.a, two.transfer(operation, "text"))
    assert notes(two.b, 1) == {"A": [b"text"]}


def test_loopback(two):
    source, target = Area(two.a, fill=3), Area(two.a)
    ours = two.a.prep_xfer_dlist("NIXL_INIT_AGENT", source.blocks(4, 100), "DRAM")
    theirs = two.a.prep_xfer_dlist("A", target.blocks(4, 100), "DRAM")
    run(two.a, two.a.make_prepped_xfer("WRITE", ours, [0, 1], theirs, [2, 3], b"to me"))
    assert target.bytes.sum() == 600
    assert (target.bytes[200:400] == 3).all()
    two.a.send_notif("A", b"me")
    assert notes(two.a, 2) == {"A": [b"to me", b"me"]}


def test_handles(two):
    made, (local, remote) = two.transfer(), two.sides()
    assert repr(made).startswith("nixl_xfer_handle(0x")
    assert repr(local).endswith("released=False)")
    run(two.a, made)
    two.a.release_xfer_handle(made)
    two.a.release_xfer_handle(made)
    made.release()
    assert repr(made).endswith("released=True)")
    for call in (two.a.transfer, two.a.check_xfer_state, two.a.query_xfer_backend):
        with pytest.raises(nixlInvalidParamError, match="was released"):
            call(made)
        with pytest.raises(nixlInvalidParamError, match="is no transfer"):
            call(None)
    of_lists = two.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    two.a.release_dlist_handle(local)
    two.a.release_dlist_handle(local)
    remote.release()
    with pytest.raises(nixlInvalidParamError, match="was released"):
        two.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    run(two.a, of_lists)
    for call in (two.a.release_xfer_handle, two.a.release_dlist_handle):
        with pytest.raises(nixlInvalidParamError):
            call(None)
    with pytest.raises(nixlInvalidParamError, match="of agent 'A'"):
        two.b.transfer(of_lists)


def test_local_memory_that_was_deregistered(two):
    made = two.transfer()
    two.a.deregister_memory(two.ours.reg)
    with pytest.raises(nixlNotFoundError, match="deregistered here"):
        two.a.transfer(made)


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_remote_memory_that_was_deregistered(two, operation):
    made = two.transfer(operation)
    two.b.deregister_memory(two.theirs.reg)
    with pytest.raises(nixlNotFoundError, match="deregistered the region"):
        run(two.a, made)
    with pytest.raises(nixlNotFoundError, match="deregistered the region"):
        two.a.check_xfer_state(made)
    two.a.release_xfer_handle(made)


def test_telemetry(monkeypatch):
    asked = nixl_agent("A", nixl_agent_config(capture_telemetry=True))
    monkeypatch.setenv("NIXL_TELEMETRY_ENABLE", "y")
    by_variable = nixl_agent("B")
    monkeypatch.delenv("NIXL_TELEMETRY_ENABLE")
    without = nixl_agent("C")
    target = nixl_agent("D")
    theirs = Area(target)
    for agent in (asked, by_variable, without):
        agent.add_remote_agent(target.get_agent_metadata())
        ours = agent.get_xfer_descs(Area(agent).blocks(10, 100), "DRAM")
        made = agent.initialize_xfer(
            "WRITE", ours, agent.get_xfer_descs(theirs.blocks(10, 100), "DRAM"), "D"
        )
        with pytest.raises(nixlNoTelemetryError):
            agent.get_xfer_telemetry(made)
        run(agent, made)
        if agent is without:
            with pytest.raises(nixlNoTelemetryError, match="capture_telemetry"):
                agent.get_xfer_telemetry(made)
            continue
        told = agent.get_xfer_telemetry(made)
        assert (told.totalBytes, told.descCount) == (1000, 10)
        assert told.startTime > 1_500_000_000_000_000
        assert 0 <= told.postDuration <= told.xferDuration
        assert (told.path, told.requested) == ("local", "UCX")


# ---- Notifications


def test_notifications_are_collected(two):
    for text in (b"tag-1", b"", b"other", b"has tag"):
        two.a.send_notif("B", text)
    until(lambda: sum(map(len, two.b.update_notifs().values())) == 4)
    assert two.b.notifs == {"A": [b"tag-1", b"", b"other", b"has tag"]}
    assert two.b.get_new_notifs() == {}
    assert not two.b.check_remote_xfer_done("A", b"none")
    assert not two.b.check_remote_xfer_done("Z", b"tag")
    assert two.b.check_remote_xfer_done(b"A", "tag")
    assert not two.b.check_remote_xfer_done("A", b"tag")
    assert two.b.check_remote_xfer_done("A", b"tag", tag_is_prefix=False)
    assert two.b.notifs == {"A": [b"", b"other"]}


def test_notifications_wait_for_an_agent_that_does_not_ask(two):
    """More than the links have room for: a sleeping thread takes them."""
    for number in range(2000):
        two.a.send_notif("B", b"%d " % number + bytes(1000))
    found = notes(two.b, 2000)["A"]
    assert [int(text.split()[0]) for text in found] == list(range(2000))


def test_explain(two, caplog):
    assert "not connected yet" in str(two.a.explain("B"))
    with caplog.at_level(logging.INFO, "onehop.nixl"):
        for _ in range(3):
            run(two.a, two.transfer())
    assert sum("goes by local because" in line for line in caplog.messages) == 1
    told = two.a.explain(b"B")
    assert told.agent == "B"
    ((here, there, label, paths),) = told.links
    assert (here, there) == ("host", "host")
    assert isinstance(paths, onehop.Paths)
    assert label in str(told)
    assert "put/get" in str(told)
    with pytest.raises(nixlNotFoundError):
        two.a.explain("Z")


# ---- Its end


def test_an_agent_that_is_gone(two):
    two.a.send_notif("B", b"x")
    theirs = two.theirs
    two.b = None
    gc.collect()
    until(lambda: not two.a.check_remote_metadata("B"), "the loss")
    with pytest.raises(nixlRemoteDisconnectError, match="'B' is gone"):
        two.a.send_notif("B", b"x")
    # Another of its name takes its place.
    two.b = nixl_agent("B")
    two.theirs = Area(two.b)
    two.a.add_remote_agent(two.b.get_agent_metadata())
    assert two.a.check_remote_metadata("B")
    run(two.a, two.transfer())
    assert not theirs.bytes.any()


def test_handles_keep_what_they_need(two):
    """An agent that is dropped with a transfer in hand; nothing raises."""
    made = two.transfer(notif=b"late")
    two.a.transfer(made)
    core = two.a._core
    finish(two.a, made)
    two.a = None
    gc.collect()
    assert notes(two.b, 1) == {"A": [b"late"]}
    del made, core
    gc.collect()


def test_names_of_the_modules():
    for name in api.__all__:
        assert hasattr(api, name)
    for name in bindings.__all__:
        assert hasattr(bindings, name)
    errors = [getattr(bindings, name) for name in bindings.__all__ if name.endswith("Error")]
    assert len(errors) == 12
    assert all(error.__base__ is Exception for error in errors)
    assert bindings.NIXL_INIT_AGENT == ""
    assert bindings.nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT.value == 0
    assert bindings.nixlXferTelemetry().totalBytes == 0


def test_utils():
    first, second = utils.malloc_passthru(100), utils.malloc_passthru(100)
    utils.ba_buf(first, 100)
    utils.ba_buf(second, 100)
    utils.verify_transfer(first, second, 100)
    utils.ba_buf(second, 0)
    (ctypes.c_ubyte * 100).from_address(second)[77] = 1
    with pytest.raises(RuntimeError, match="byte 77"):
        utils.verify_transfer(first, second, 100)
    utils.free_passthru(first)
    utils.free_passthru(second)
    with pytest.raises(MemoryError):
        utils.malloc_passthru(1 << 62)
