# SPDX-License-Identifier: Apache-2.0
"""``onehop doctor``: checks the machine, exercises every path, and suggests remedies."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import click

import onehop
from onehop.cli.bench_options import parse_place, warn_of_turns
from onehop.cli.between import Place, knock, resolve
from onehop.cli.doctor_html import info_tables, page
from onehop.cli.info import unknown_variables
from onehop.cli.output import Finding, State, findings_table, growing, json_lines
from onehop.cli.paths import BETWEEN, CASES, UCX, drive, drive_gpus, driver, meet
from onehop.cli.sides import SideError

_RANKS = (2, 3)
_PLACE = "surroundings"
_CAP_SYS_PTRACE = 19
# Warn below this number of free ports: each process takes one.
_FEW_PORTS = 8


def examine() -> Iterator[tuple[str, Finding]]:
    """Yield all findings, each with the name of the next check."""
    failed = False
    for finding in look_around():
        failed = failed or (finding.check == "endpoint" and finding.state == "fault")
        yield "surroundings", finding
    # Without an endpoint every other check would fail for the same reason.
    if failed:
        return
    # They have no effect, and each process of a check would report them again.
    for name in unknown_variables():
        del os.environ[name]
    for case in (*CASES, UCX) if ucx().viable else CASES:
        for finding in drive(case):
            yield case.name, finding
    found, finding = driver()
    yield "GPU driver", finding
    if found:
        for finding in drive_gpus(len(found.devices)):
            yield finding.place, finding
    for ranks in _RANKS:
        yield "rendezvous", meet(ranks)


def examine_link(place: Place) -> Iterator[tuple[str, Finding]]:
    """Yield the findings about the link to another host, where `onehop bench --listen` runs."""
    for check, step in (("name", _resolved), ("port", _open)):
        try:
            yield check, Finding(str(place), check, "ok", step(place))
        except SideError as failure:
            yield check, Finding(str(place), check, "fault", str(failure))
            return
    for finding in drive(BETWEEN, str(place)):
        yield BETWEEN.name, finding


def _resolved(place: Place) -> str:
    return f"{place.host} is {', '.join(resolve(place))}"


def _open(place: Place) -> str:
    knock(place)
    return f"port {place.port} takes connections"


@click.command()
@click.option(
    "--connect",
    metavar="HOST[:PORT]",
    callback=parse_place,
    help="Instead, check the link to a host where `onehop bench --listen` runs.",
)
@click.option("--json", "json_to", metavar="FILE|-", help="Write the findings as JSON lines.")
@click.option(
    "--html",
    "html_to",
    metavar="FILE|-",
    help="Write the findings and onehop info as an HTML page.",
)
def doctor(connect: Place | None, json_to: str | None, html_to: str | None) -> None:
    """Check the machine and every path. Exits with 1 if there is a fault."""
    if json_to == html_to == "-":
        raise click.UsageError("one of --json and --html goes to standard output, not both")
    findings: list[Finding] = []
    hidden = "-" in (json_to, html_to)
    with (
        json_lines(json_to) as write,
        json_lines(html_to, "--html") as write_page,
        growing(lambda: findings_table(findings), "surroundings", None, hidden=hidden) as step,
    ):
        for place, finding in examine_link(connect) if connect else examine():
            findings.append(finding)
            write(finding.as_json())
            step(place)
        if html_to:
            write_page(page(findings, info_tables()))
    faults = sum(finding.state == "fault" for finding in findings)
    slow = sum(finding.state == "slow" for finding in findings)
    click.echo(f"{len(findings)} checks: {faults} faults, {slow} slower than possible", err=True)
    warn_of_turns(findings, "checks")
    if faults:
        raise click.exceptions.Exit(1)


# State, observation, and remedy.
Answer = tuple[State, str, str]

# ---- The machine's facilities that onehop needs or can use


def look_around() -> Iterator[Finding]:
    """Check the environment, one finding after the other."""
    checks: tuple[tuple[str, Callable[[], Answer]], ...] = (
        ("endpoint", _endpoint),
        ("environment", _environment),
        ("shared memory", _memfd),
        ("process_vm", _yama),
        ("socket folder", _socket_folder),
        ("TCP ports", _ports),
        ("loopback", _loopback),
        ("UCX", _ucx),
        ("cores", _cores),
    )
    for name, check in checks:
        try:
            yield Finding(_PLACE, name, *check())
        except (OSError, ValueError, OverflowError, onehop.Error) as failure:
            yield Finding(_PLACE, name, "fault", str(failure))


def _ok(seen: str) -> Answer:
    return "ok", seen, ""


def _value(name: str) -> str:
    for variable in onehop.config():
        if variable.name == name:
            return variable.value or variable.default
    raise ValueError(f"this build has no {name}")


def _endpoint() -> Answer:
    try:
        onehop.Endpoint().close()
    except onehop.Error as failure:
        # The text contains the remedy.
        return "fault", str(failure), ""
    return _ok("configuration is right, libcrypto was found")


def _environment() -> Answer:
    unknown = unknown_variables()
    if unknown:
        names = ", ".join(unknown)
        advice = "; ".join(f"{name}: {text}" for name, text in unknown.items())
        return "slow", f"without effect: {names}", advice
    return _ok("all ONEHOP_* variables are known")


def _memfd() -> Answer:
    fd = os.memfd_create("onehop-doctor")
    os.close(fd)
    return _ok("memfd_create works; /dev/shm is not used")


def _yama() -> Answer:
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except OSError:
        return _ok("the kernel has no yama limits")
    capable = _has_capability(_CAP_SYS_PTRACE)
    if scope == 0 or (capable and scope < 3):
        return _ok(f"yama ptrace_scope {scope} allows it")
    return (
        "slow",
        f"yama ptrace_scope {scope}: processes may not read each other's memory",
        "use buffers of onehop.empty, or set kernel.yama.ptrace_scope=0 by sysctl, or grant"
        " CAP_SYS_PTRACE",
    )


def _has_capability(bit: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def _socket_folder() -> Answer:
    folder = _value("ONEHOP_SOCKET_DIR")
    if os.access(folder, os.W_OK | os.X_OK):
        return _ok(f"{folder} can be written")
    return (
        "slow",
        f"{folder} cannot be written: containers with separate networks do not find each other",
        "name another folder in ONEHOP_SOCKET_DIR",
    )


def _ports() -> Answer:
    first, _, last = _value("ONEHOP_PORT_RANGE").partition("-")
    ports = range(int(first), int(last or first) + 1)
    free = sum(_is_free(port) for port in ports)
    seen = f"{free} of {len(ports)} ports are free ({first}-{last or first})"
    if free == 0:
        return "fault", seen, "set ONEHOP_PORT_RANGE to a free range"
    if free < min(_FEW_PORTS, len(ports)):
        return "slow", seen, "widen ONEHOP_PORT_RANGE"
    return _ok(seen)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError as failure:
            if failure.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _loopback() -> Answer:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        with socket.create_connection(server.getsockname(), timeout=5):
            server.accept()[0].close()
    return _ok("TCP connections to 127.0.0.1 work")


def ucx() -> onehop.Transport:
    """Return whether UCX is available here, and why not."""
    (found,) = [one for one in onehop.info().transports if one.name == "ucx"]
    return found


def _ucx() -> Answer:
    found = ucx()
    if found.viable:
        return _ok(found.why)
    return (
        "slow",
        f"links to other hosts go over the control socket: {found.why}",
        "pip install libucx-cu13 (TCP only), or the system's libucx of UCX 1.13 or newer, which"
        " RDMA needs; on both hosts",
    )


def _cores() -> Answer:
    cores = len(os.sched_getaffinity(0))
    if cores > 1:
        return _ok(f"{cores} cores may be used")
    return (
        "slow",
        "only one core may be used: two sides take turns on it",
        "give the processes cores of their own (taskset, cgroup, container limits)",
    )
