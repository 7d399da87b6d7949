# SPDX-License-Identifier: Apache-2.0
"""Two sides on two hosts: `onehop bench --listen` plays side 1 of what `--connect` asks for.

    connecting host                                  listening host
    process that shows the rows                      process that says who comes
        │ pipe                                           │ pipe
    side 0  ───  control link: JSON, by socket  ───  side 1
            ───  the link that is measured      ───

The control link is a communicator of two ranks, which meet at the listening side's HOST:PORT and
prove to each other that they know ONEHOP_SECRET.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

import onehop
from onehop.cli.output import provenance
from onehop.cli.sides import Note, Placement, Role, Side, SideError, run_sides
from onehop.cli.wire import build, decode, encode

PORT = 29410
ANY = "0.0.0.0"
SECRET = "ONEHOP_SECRET"
# The variables that the connecting side may set in the other side's process.
SETTINGS = ("ONEHOP_TRANSPORT", "ONEHOP_LOG")
# Seconds to wait for the port to open, also between two runs of a listener; for the sides to meet;
# and for the other side's reason of a failure.
_PATIENCE = 5.0
_MEETING = 10.0
_LAST_WORDS = 1.0
# Longer than the library's own deadlines: for sides that hang in spite of them.
SILENCE = 600.0
_PLACE = re.compile(r"(\[(?P<ipv6>[\w:.%]+)\]|(?P<host>[\w.-]+))(:(?P<port>\d{1,5}))?")
_TAG = 0
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Place:
    """The meeting point of the listening side."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Place:
        """Parse HOST or HOST:PORT; an IPv6 address is in brackets.

        Raises:
            ValueError: the text is neither.

        """
        parts = _PLACE.fullmatch(text)
        port = int(parts["port"] or PORT) if parts else 0
        if not parts or not 1 <= port <= 65535:
            raise ValueError(
                f"'{text}' is no address: expected HOST or HOST:PORT, as node-a:{PORT} or"
                f" [fd00::1]:{PORT}"
            )
        return Place(parts["ipv6"] or parts["host"], port)

    @property
    def shown_host(self) -> str:
        """The host, as written before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.shown_host}:{self.port}"


@dataclass(frozen=True)
class Play:
    """A role that two hosts may play: its name, and the types of its messages."""

    name: str
    role: Role
    argument: Any
    report: Any


@dataclass(frozen=True)
class Host:
    """The identity of the other side, as `provenance` returns it."""

    facts: dict[str, str]

    def __str__(self) -> str:
        return " | ".join(f"{key} {value}" for key, value in self.facts.items())


@dataclass(frozen=True)
class _Request:
    """The request of the connecting side; the argument is that of the play."""

    onehop: str
    play: str
    settings: dict[str, str]
    argument: Any
    host: Host


@dataclass(frozen=True)
class _Word:
    """A message of the control link."""

    kind: str  # request, host, text, bytes, report or error
    body: Any


class _ToldError(SideError):
    """The other side's failure, with its text."""


class _Line:
    """The control link, as used by both sides."""

    def __init__(self, comm: onehop.Communicator) -> None:
        self._comm = comm
        self._peer = comm.peer(1 - comm.rank, timeout=_MEETING)
        self.other = self._peer.info().label

    def say(self, kind: str, body: object) -> None:
        """Send a message."""
        self._peer.send(encode(_Word(kind, body)), _TAG)

    def hear(self, *kinds: str, timeout: float | None = None) -> _Word:
        """Return the next message, which has one of these kinds; timeout: default ONEHOP_TIMEOUT.

        Raises:
            SideError: the other side has failed, or sent an unexpected message.

        """
        deadline = {} if timeout is None else {"timeout": timeout}
        size = self._peer.probe(_TAG, **deadline).nbytes
        if size > _MOST_BYTES:
            raise SideError(f"{self.other} sent a word of {size} bytes; {_MOST_BYTES} are allowed")
        data = bytearray(size)
        self._peer.recv(data, _TAG)
        word: _Word = decode(_Word, bytes(data))
        if word.kind == "error":
            raise _ToldError(f"{self.other}: {word.body}")
        if word.kind not in kinds:
            raise SideError(f"{self.other} sent '{word.kind}' instead of '{' or '.join(kinds)}'")
        return word

    def finish(self) -> None:
        """Return when the other side has called it, too."""
        self._comm.barrier()

    def cause(self, failure: Exception) -> Exception:
        """Return the other side's failure, or else send this side's to it and return that."""
        end = time.monotonic() + _LAST_WORDS
        while not isinstance(failure, _ToldError):
            try:
                self.hear(timeout=max(0.0, end - time.monotonic()))
            except _ToldError as theirs:
                return theirs
            except SideError:
                continue  # a message from before the failure
            except (onehop.Error, ValueError):
                with contextlib.suppress(onehop.Error):
                    self.say("error", str(failure) or type(failure).__name__)
                break
        return failure


@contextlib.contextmanager
def _meeting(rank: int, place: Place, timeout: float | None) -> Iterator[onehop.Communicator]:
    """Connect the control link, over the socket transport whatever transport is measured."""
    # Suppresses the warning that this path is slow.
    quiet = {"ONEHOP_TRANSPORT": "socket", "ONEHOP_LOG": os.environ.get("ONEHOP_LOG", "error")}
    former = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    try:
        comm = onehop.Communicator(rank, 2, rendezvous=f"tcp://{place}", timeout=timeout)
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    with comm:
        yield comm


def _play(play: Play, side: Side, line: _Line, argument: object) -> None:
    """Play a role with the other host, and report failures to it."""
    try:
        play.role(side, argument)
        line.finish()
    except Exception as failure:
        raise line.cause(failure) from failure


def _tell(line: _Line) -> Callable[[Any], None]:
    return lambda value: line.say("bytes" if isinstance(value, bytes) else "text", value)


def _hear(line: _Line) -> Callable[[], Any]:
    def hear() -> Any:  # noqa: ANN401
        word = line.hear("bytes", "text")
        return build(bytes if word.kind == "bytes" else str, word.body)

    return hear


# ---- The connecting side


def resolve(place: Place) -> list[str]:
    """Return the numeric addresses of a place.

    Raises:
        SideError: there are none.

    """
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as failure:
        why = getattr(failure, "strerror", failure)
        raise SideError(
            f"cannot resolve '{place.host}': {why}; correct the name, or give the numeric address"
        ) from failure
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def knock(place: Place) -> None:
    """Return when the port of a place accepts connections.

    Raises:
        SideError: it does not; the text has the reason and the remedy.

    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            left = max(0.01, end - time.monotonic())
            socket.create_connection((place.host, place.port), timeout=left).close()
        except ConnectionRefusedError as failure:
            # A listener refuses connections briefly between two runs.
            if time.monotonic() < end:
                time.sleep(0.02)
                continue
            raise SideError(
                f"{place} refuses connections: start `onehop bench --listen` there; one that"
                " serves another run refuses, too"
            ) from failure
        except TimeoutError as failure:
            raise SideError(
                f"no answer from {place} within {_PATIENCE:g} s: its host is down, the address is"
                f" another one's, or a firewall drops TCP to port {place.port}"
            ) from failure
        except OSError as failure:
            raise SideError(f"cannot connect to {place}: {failure.strerror}") from failure
        else:
            return


def run_between(play: Play, argument: object, placement: Placement) -> Iterator[tuple[int, Any]]:
    """Play side 0 here, and side 1 on the host `placement.connect`: see sides.run_sides.

    Each report of side 0 except a Note has a counterpart of side 1. The first report is side 1's
    Host.

    Raises:
        SideError: as with run_sides; also: the other side cannot be reached or refuses.

    """
    place = Place.parse(placement.connect)
    resolve(place)
    knock(place)
    settings = {name: value for name, value in placement.env.items() if name in SETTINGS}
    request = _Request(onehop.__version__, play.name, settings, argument, Host(provenance()))
    here = replace(placement, count=1, connect="", silence=SILENCE)
    for _, told in run_sides(_connecting_role, (place, play, request), here):
        yield told


def _connecting_role(side: Side, asked: tuple[Place, Play, _Request]) -> None:
    """Run side 0; each report to the parent is the number of a side and its value."""
    place, play, request = asked
    with _meeting_at(place) as line:
        line.say("request", request)

        def report(value: object) -> None:
            side.report((0, value))
            if not isinstance(value, Note):
                side.report((1, build(play.report, line.hear("report").body)))

        side.report((1, build(Host, line.hear("host").body)))
        ours = Side(0, side.placement, report, _tell(line), _hear(line))
        _play(play, ours, line, request.argument)


@contextlib.contextmanager
def _meeting_at(place: Place) -> Iterator[_Line]:
    with contextlib.ExitStack() as met:
        advice = "is it `onehop bench --listen`, of this version of onehop?"
        try:
            comm = met.enter_context(_meeting(1, place, _MEETING))
            advice = "open the TCP ports of ONEHOP_PORT_RANGE between the two hosts"
            line = _Line(comm)
        except onehop.Error as failure:
            if failure.status is onehop.Status.AUTH:
                advice = f"set the {SECRET} that `onehop bench --listen` printed or was given"
            raise SideError(f"cannot meet {place}: {failure}; {advice}") from failure
        yield line


# ---- The listening side


def serve(place: Place, plays: Sequence[Play], *, once: bool) -> None:
    """Play side 1 for one connecting side after the other; with `once` only for one.

    Raises:
        SideError: cannot listen at the place; with `once` also: the run failed.

    """
    try:
        family = socket.AF_INET6 if ":" in resolve(place)[0] else socket.AF_INET
        socket.create_server((place.host, place.port), family=family).close()
    except OSError as failure:
        raise SideError(f"cannot listen on {place}: {failure.strerror}") from failure
    env = {}
    secret = f"{SECRET}=... "
    if not os.environ.get(SECRET):
        env[SECRET] = secrets.token_hex(16)
        secret = f"{SECRET}={env[SECRET]} "
    shown = Place(socket.gethostname(), place.port) if place.host in (ANY, "::") else place
    click.echo(
        f"listening on {place}; run on the other host:\n"
        f"  {secret}onehop bench latency --connect {shown}\n"
        f"  {secret}onehop doctor --connect {shown}"
    )
    while True:
        met = False
        placement = Placement(count=1, env=env, silence=None)
        try:
            for _, told in run_sides(_listening_role, (place, list(plays)), placement):
                if met:
                    click.echo(told)
                met = True
        except SideError as failure:
            if once or not met:
                raise
            click.echo(f"failed: {failure}", err=True)
        if once:
            return


def _listening_role(side: Side, served: tuple[Place, list[Play]]) -> None:
    """Run side 1 of one run; reports that a client has connected, then lines to show."""
    place, plays = served
    with _meeting(0, place, None) as comm:
        # From here on a failure ends only this run.
        side.report(None)
        line = _Line(comm)
        try:
            play, request = _accept(line, plays)
        except Exception as failure:
            raise line.cause(failure) from failure
        side.report(f"{line.other}: {play.name}, of {request.host}")
        os.environ.update(request.settings)
        line.say("host", Host(provenance()))
        theirs = Side(
            1, side.placement, lambda value: line.say("report", value), _tell(line), _hear(line)
        )
        _play(play, theirs, line, request.argument)
        side.report(f"{line.other}: done")


def _accept(line: _Line, plays: Sequence[Play]) -> tuple[Play, _Request]:
    """Return the request of the connecting side."""
    body = line.hear("request", timeout=_MEETING).body
    version = body.get("onehop") if isinstance(body, dict) else None
    if version != onehop.__version__:
        raise SideError(
            f"this side runs onehop {onehop.__version__}, the other side {str(version)[:20]}:"
            " install the same version on both hosts"
        )
    request: _Request = build(_Request, body)
    play = next((one for one in plays if one.name == request.play), None)
    if play is None or not request.settings.keys() <= set(SETTINGS):
        raise SideError(f"this side does not know '{request.play}' with {request.settings}")
    return play, replace(request, argument=build(play.argument, request.argument))
