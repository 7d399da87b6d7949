# SPDX-License-Identifier: Apache-2.0
"""Two processes in containers: the best path that their isolation leaves, and why it is no better.

docs/guides/containers.md has the same situations as a table.
"""

import os
import re
from functools import partial
from pathlib import Path

import hosts
import numpy as np
import onehop
import pytest
from containers import (
    NOBODY,
    Container,
    be_root_of_user_namespace,
    become,
    contained,
    forbid,
    limit,
    limit_open_files,
    make_read_only,
    mount_tmpfs,
    mount_volume,
    root_without,
    run_contained,
    run_linked,
    why_not,
)
from hosts import payload
from processes import Meeting, _spawn, finish, run_side

SIZES = (0, 1, 400, 4096, (16 << 10) + 1, 1 << 20)
KINDS = ("host", "shared")
REGION = 1 << 20
OF_ANOTHER_PID_NAMESPACE = "not visible from this PID namespace"
NOT_TRACED = r"process_vm_readv of process \d+: EPERM .*; the kernel grants it"


def needs(*own):
    return pytest.mark.skipif(bool(why_not(*own)), reason=why_not(*own))


def yama() -> bool:
    """Whether processes of one user may not trace each other here."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return scope.exists() and int(scope.read_text()) > 0


def may_trace() -> bool:
    """Whether this process may trace others of its user."""
    return os.geteuid() == 0 or not yama()


# ---- What two sides say to each other


def memory(kind, size):
    return onehop.empty(size, "u1") if kind == "shared" else np.zeros(size, "u1")


def row_of(peer, operation, source, target, size):
    return next(
        row
        for row in onehop.paths(peer)
        if (row.operation, row.source, row.target) == (operation, source, target)
        and row.first <= size <= row.last
    )


def exchange(side, source, target, size) -> None:
    """A message each way at once; both ends of both travel as the rows say."""
    out, into = memory(source, size), memory(target, size)
    out[:] = np.frombuffer(payload(size, side.number), "u1")
    receive = side.peer.irecv(into, tag=1)
    send = side.peer.isend(out, tag=1)
    finish(send, receive)
    assert bytes(into) == payload(size, 1 - side.number), f"{size} bytes, {source} to {target}"
    named = row_of(side.peer, "message", source, target, size).path
    for request in (send, receive):
        assert request.wait(timeout=30).path == named, f"{size} bytes, {source} to {target}"


def put_and_get(side, target) -> None:
    """Put into one half of the other side's region, get the other half."""
    half = REGION // 2
    ours = memory(target, REGION)
    ours[:] = np.frombuffer(payload(REGION, 10 + side.number), "u1")
    region = side.endpoint.register(ours)
    side.give(region.descriptor)
    remote = side.peer.attach(side.take(), timeout=30)
    named = row_of(side.peer, "put/get", "host", target, half).path
    got = bytearray(half)
    sent = payload(half, 20 + side.number)
    assert side.peer.get(got, remote[half:]).wait(timeout=30).path == named
    assert side.peer.put(sent, remote[:half]).wait(timeout=30).path == named
    assert got == payload(REGION, 11 - side.number)[half:]
    side.sync()
    assert bytes(ours[:half]) == payload(half, 21 - side.number)
    assert bytes(ours[half:]) == payload(REGION, 10 + side.number)[half:]
    region.deregister(timeout=30)


def talk(side) -> tuple[str, bool, dict[str, str]]:
    """Everything both ways; return the path, who reaches whose memory, and the reasons."""
    for source in KINDS:
        for target in KINDS:
            for size in SIZES:
                exchange(side, source, target, size)
    for target in KINDS:
        put_and_get(side, target)
    info = side.peer.info()
    rows = {kind: row_of(side.peer, "put/get", "host", kind, REGION) for kind in KINDS}
    assert info.single_copy == (rows["host"].method == "direct")
    return info.path, info.single_copy, {kind: row.why for kind, row in rows.items()}


def expect_shm(containers, reaches, why="") -> None:
    """Links by shared memory. reaches: whether each maps private memory of the other."""
    results = run_linked(containers, talk)
    assert [path for path, _, _ in results] == ["shm", "shm"]
    assert [single for _, single, _ in results] == list(reaches)
    for _, single, reasons in results:
        assert reasons["shared"] == "one copy through the mapped block"
        assert re.search("one copy by process_vm" if single else why, reasons["host"])


# ---- Namespaces that leave one network


PLAIN = Container()


@needs("pid")
def test_own_process_ids():
    expect_shm([Container(("pid",))] * 2, (False, False), OF_ANOTHER_PID_NAMESPACE)


@needs("pid")
def test_a_container_and_the_host_of_its_process_ids():
    expect_shm([PLAIN, Container(("pid",))], (True, False), OF_ANOTHER_PID_NAMESPACE)
    expect_shm([Container(("pid",)), PLAIN], (False, True), OF_ANOTHER_PID_NAMESPACE)


@needs("ipc")
def test_own_ipc_changes_nothing():
    expect_shm([Container(("ipc",))] * 2, (True, True))


@needs("pid", "ipc", "mount")
def test_own_process_ids_ipc_and_files():
    steps = (partial(mount_tmpfs, "/tmp"),)
    own = Container(("pid", "ipc", "mount"), steps)
    expect_shm([own] * 2, (False, False), OF_ANOTHER_PID_NAMESPACE)


# ---- Networks of their own


@pytest.fixture
def volume(tmp_path):
    """A folder of the machine, at one path in each container that mounts it."""
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def with_volume(own, folder) -> Container:
    """Files of its own, and the folder at /tmp/sockets."""
    steps = (
        partial(mount_volume, folder, "/mnt"),
        partial(mount_tmpfs, "/tmp"),
        partial(os.mkdir, "/tmp/sockets"),
        partial(mount_volume, "/mnt", "/tmp/sockets"),
    )
    return Container(own, steps, {"ONEHOP_SOCKET_DIR": "/tmp/sockets"})


@needs("network", "mount")
def test_own_network_and_a_common_volume(volume):
    expect_shm([with_volume(("network", "mount"), volume)] * 2, (True, True))


@needs("pid", "ipc", "network", "mount")
def test_everything_of_their_own_but_a_common_volume(volume):
    own = with_volume(("pid", "ipc", "network", "mount"), volume)
    expect_shm([own] * 2, (False, False), OF_ANOTHER_PID_NAMESPACE)


def do_not_meet(number, pipe):
    """The one that connects returns its error; the other one waits for that."""
    meeting = Meeting(pipe)
    with onehop.Endpoint() as endpoint:
        if number == 1:
            meeting.give(endpoint.address)
            return meeting.take()
        with pytest.raises(onehop.Error) as caught:
            endpoint.connect(meeting.take(), timeout=20)
        meeting.give("it is over")
    return caught.value.status.name, str(caught.value)


@needs("network", "mount")
def test_own_network_and_nothing_in_common():
    own = Container(("network", "mount"), (partial(mount_tmpfs, "/tmp"),))
    (status, text), _ = run_contained([own] * 2, do_not_meet)
    assert status == "UNREACHABLE"
    assert "Connection refused" in text
    assert "ONEHOP_SOCKET_DIR" in text


def talk_by_cable(network, *steps, **environment):
    """Run two sides on hosts that are containers of one machine; return what each says."""
    pipes, group = _spawn.Pipe(), network.group()
    for number, host in enumerate((network.a, network.b)):
        inside = Container((), (host.enter, *steps), environment)
        group.start(contained, inside, run_side, number, pipes[number], talk, (), None)
    results = group.join()
    for _, single, reasons in results:
        assert not single
        for why in reasons.values():
            assert "no shared memory" in why
            assert f"ONEHOP_SOCKET_DIR={network.sockets}" in why
    return [path for path, _, _ in results], [reasons["host"] for _, _, reasons in results]


def test_own_network_and_a_cable(network):
    """As between hosts: the rows say what would be better, and what it takes."""
    paths, _ = talk_by_cable(network)
    assert paths == [network.way.path] * 2


@pytest.mark.parametrize("way", hosts.WAYS[1:], indirect=True, ids=lambda way: way.name)
def test_a_cable_and_no_room_in_dev_shm(network):
    """UCX 1.13 makes shared memory there, although the two do not share it; 1.22 goes without."""
    small = partial(mount_tmpfs, "/dev/shm", "size=64k")
    paths, reasons = talk_by_cable(network, small)
    if paths != ["ucx", "ucx"]:
        assert paths == ["socket", "socket"]
        assert all("/dev/shm" in why and "UCX_TLS=^shm" in why for why in reasons)
    paths, _ = talk_by_cable(network, small, UCX_TLS="^shm")
    assert paths == ["ucx", "ucx"]


# ---- Users


def test_users_of_one_number_that_are_not_root():
    if why := why_not():
        pytest.skip(why)
    reaches = not yama()
    expect_shm([Container((), (partial(become, NOBODY),))] * 2, (reaches, reaches), NOT_TRACED)


def test_programs_that_have_dropped_their_privileges():
    """The kernel forbids to trace them, even to their own user."""
    if why := why_not():
        pytest.skip(why)
    dropped = Container((), (partial(become, NOBODY, dumpable=False),))
    expect_shm([dropped] * 2, (False, False), NOT_TRACED)


@pytest.mark.parametrize("users", [(0, NOBODY), (NOBODY, 0), (NOBODY - 1, NOBODY)], ids=str)
def test_different_users(users):
    if why := why_not():
        pytest.skip(why)
    containers = [Container((), (partial(become, user),) if user else ()) for user in users]
    (status, text), _ = run_contained(containers, do_not_meet)
    assert status == "AUTH"
    assert f"user {users[1]}, we are user {users[0]}" in text
    assert "run both as one user" in text


@needs("network", "mount")
def test_different_users_in_a_common_volume(volume):
    volume.chmod(0o777)
    base = with_volume(("network", "mount"), volume)
    users = (NOBODY - 1, NOBODY)
    containers = [
        Container(base.own, (*base.steps, partial(become, user)), base.environment)
        for user in users
    ]
    (status, text), _ = run_contained(containers, do_not_meet)
    assert status == "UNREACHABLE"
    assert f"user {users[0]} may not write to the Unix socket /tmp/sockets/" in text
    assert "run both as one user" in text


@needs("user")
def test_rootless_containers_of_one_user():
    rootless = Container((), (partial(be_root_of_user_namespace, NOBODY),))
    expect_shm([rootless] * 2, (False, False), NOT_TRACED)


@needs("user")
def test_root_and_root_of_a_user_namespace():
    inside = Container((), (partial(be_root_of_user_namespace, 0),))
    expect_shm([PLAIN, inside], (True, False), NOT_TRACED)


@needs("user")
def test_rootless_containers_of_different_users():
    """Both are root inside; neither has a number in the namespace of the other."""
    users = (NOBODY, NOBODY - 1)
    containers = [Container((), (partial(be_root_of_user_namespace, user),)) for user in users]
    (status, text), _ = run_contained(containers, do_not_meet)
    assert status == "AUTH"
    assert "user 65534, we are user 0" in text
    assert "user namespace" in text


# ---- File systems


@needs("mount")
@pytest.mark.parametrize(
    "steps",
    [
        (partial(make_read_only, "/"), partial(make_read_only, "/tmp")),
        (partial(root_without, "tmp"),),
        (partial(root_without, "dev"),),
        (partial(mount_tmpfs, "/dev/shm", "size=64k"),),
        (partial(mount_tmpfs, "/dev/shm", "mode=000"), partial(become, NOBODY)),
    ],
    ids=["read-only", "no /tmp", "no /dev", "small /dev/shm", "forbidden /dev/shm"],
)
def test_files_change_nothing(steps):
    reaches = not yama() or become not in [step.func for step in steps]
    expect_shm([Container(("mount",), steps)] * 2, (reaches, reaches), NOT_TRACED)


def send_more_than_dev_shm_has(side):
    size = 16 << 20
    out, into = memory("shared", size), memory("shared", size)
    out[:] = np.frombuffer(payload(size, side.number), "u1")
    receive = side.peer.irecv(into)
    send = side.peer.isend(out)
    finish(receive, send)
    assert bytes(into) == payload(size, 1 - side.number)
    status = os.statvfs("/dev/shm")
    return receive.wait(timeout=30).path, status.f_blocks - status.f_bfree


@needs("mount")
def test_shared_memory_is_not_of_dev_shm():
    tiny = Container(("mount",), (partial(mount_tmpfs, "/dev/shm", "size=64k"),))
    assert run_linked([tiny] * 2, send_more_than_dev_shm_has) == [("shm", 0), ("shm", 0)]


# ---- Filters


NO_COPIES = Container((), (partial(forbid, "process_vm_readv", "process_vm_writev"),))
NO_MEMFD = Container((), (partial(forbid, "memfd_create"),))


def test_no_copies_between_processes():
    expect_shm([NO_COPIES] * 2, (False, False), NOT_TRACED)
    expect_shm([PLAIN, NO_COPIES], (may_trace(), False), NOT_TRACED)


@pytest.mark.parametrize("which", [(0, 1), (0,), (1,)], ids=["both", "connects", "accepts"])
def test_no_memory_to_share(which):
    containers = [NO_MEMFD if number in which else PLAIN for number in (0, 1)]
    for path, single, reasons in run_linked(containers, talk):
        assert (path, single) == ("socket", False)
        for why in reasons.values():
            assert re.search(r"memfd_create\(onehop-control\), which .* filter .*: EPERM", why)
            assert ("at the initiator" if 0 in which else "at the acceptor") in why


# ---- Limits


ENOUGH = 24  # descriptors for an endpoint, a link and a block each way
FEW = ((4, "host"), (8, "shared"), (ENOUGH, "shared"))


def test_no_locked_memory():
    reaches = (may_trace(), may_trace())
    expect_shm([Container((), (partial(limit, "MEMLOCK", 0),))] * 2, reaches, NOT_TRACED)


def connect_or_say_why(number, pipe, kind, timeout):
    """The path of a message each way, or the error that came instead."""
    meeting = Meeting(pipe)
    meeting.sync()  # one that has begun late would let the other wait
    try:
        endpoint = onehop.Endpoint()
    except onehop.Error as failure:
        meeting.give(None)
        return str(failure)
    try:
        with endpoint:
            meeting.give(endpoint.address)
            address = meeting.take()
            if address is None:
                return "the other side has no endpoint"
            if number == 1:
                peer = endpoint.accept(timeout=timeout)
            else:
                peer = endpoint.connect(address, timeout=timeout)
            out, into = memory(kind, REGION), memory(kind, REGION)
            out[:] = np.frombuffer(payload(REGION, number), "u1")
            receive, send = peer.irecv(into), peer.isend(out)
            finish(receive, send)
            assert bytes(into) == payload(REGION, 1 - number)
            peer.signal(0)
            peer.wait_signal(0, timeout=timeout)
            return receive.wait(timeout=timeout).path
    except onehop.Error as failure:
        return str(failure)


@pytest.mark.parametrize("which", [0, 1])
def test_ucx_needs_room_for_descriptors(which):
    """UCX 1.13 and 1.22 abort a process that runs out of them."""
    if why := hosts.why_no_ucx():
        pytest.skip(f"no UCX: {why}")
    only_ucx = {"ONEHOP_TRANSPORT": "ucx"}
    few = Container((), (partial(limit_open_files, ENOUGH),), only_ucx)
    containers = [few if number == which else Container((), (), only_ucx) for number in (0, 1)]
    results = run_contained(containers, connect_or_say_why, "host", 2)
    want = r"64 descriptors more are needed, and \d+ can be had: EMFILE .*ulimit -n"
    assert re.search(want, results[0])


@pytest.mark.parametrize(
    ("which", "more", "kind"),
    [(which, more, kind) for which in (0, 1) for more, kind in FEW],
    ids=str,
)
def test_few_open_files(which, more, kind, tmp_path):
    """Another path, or an error; one of the two says what it is for want of."""
    log = {"ONEHOP_LOG_FILE": str(tmp_path / "log")}
    few = Container((), (partial(limit_open_files, more),), log)
    containers = [few if number == which else Container((), (), log) for number in (0, 1)]
    # With too few, one side may wait in vain for the other.
    timeout = 30 if more == ENOUGH else 2
    results = run_contained(containers, connect_or_say_why, kind, timeout)
    told = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert results == ["shm", "shm"] or "open files" in " ".join([*results, told])
    if more == ENOUGH:
        assert results == ["shm", "shm"]
