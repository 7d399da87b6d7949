# SPDX-License-Identifier: Apache-2.0
"""`onehop bench --listen` and `--connect`, and `onehop doctor --connect`, between two hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess

import onehop
import pytest
from command import ONEHOP, rows_that_passed, run_onehop
from hosts import any_way
from onehop.cli.between import PORT, Place, _accept
from onehop.cli.measure import BENCH, CORRUPT, Job
from onehop.cli.sides import SideError
from onehop.cli.wire import decode, encode

DEADLINE = 60
KEY = "ONEHOP_SECRET"


def start(host, *arguments, **env):
    """Start the command on a host."""
    return subprocess.Popen(
        [*ONEHOP, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=host.enter,
        env={**os.environ, **host.environment, **env},
    )


def end(process, *arguments):
    """Return how a command ended."""
    out, err = process.communicate(timeout=DEADLINE)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def line_of(process) -> str:
    """Return its next line; pytest's timeout ends this."""
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line


class Listener:
    """`onehop bench --listen` on a host."""

    def __init__(self, host, *options, **env) -> None:
        self.place = f"{host.ipv4}:{PORT}"
        self.process = start(host, "bench", "--listen", host.ipv4, *options, **env)
        assert line_of(self.process) == f"listening on {self.place}; run on the other host:\n"
        self.key = re.search(rf"{KEY}=(\S+) onehop bench", line_of(self.process))[1]
        assert f"onehop doctor --connect {self.place}" in line_of(self.process)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        return end(self.process)


@pytest.fixture
def listener(network):
    made = Listener(network.a)
    yield made
    made.process.kill()
    end(made.process)


def connect(network, listener, *arguments, **env):
    settings = {KEY: listener.key, **env}
    return start(network.b, *arguments, "--connect", listener.place, **settings)


def bench(network, listener, *arguments, **env):
    words = ("bench", *arguments, "--json", "-")
    return end(connect(network, listener, *words, **env))


def test_rows_between_hosts(network, listener):
    how = ("--sizes", "8,70K", "--iters", "20")
    modes = ("--mode", "put", "--mode", "get")
    path = network.way.path
    for api in ("c", "python"):
        done = bench(network, listener, "latency", "--api", api, "--mode", "sendrecv", *modes, *how)
        found = rows_that_passed(done)
        assert [(row["mode"], row["size"], row["path"]) for row in found] == [
            ("sendrecv", 8, "inline"), ("sendrecv", 70 << 10, path),
            ("put", 8, path), ("put", 70 << 10, path),
            ("get", 8, path), ("get", 70 << 10, path),
        ]  # fmt: skip
        for row in found:
            assert row["api"] == api
            assert row["provenance"]["machine"] == "host-b"
            assert row["provenance"]["other_machine"] == "host-a"
        assert "| machine host-a |" in done.stderr
    for op, mode in (("bandwidth", "put"), ("bandwidth", "sendrecv"), ("batch", "put_prepared")):
        found = rows_that_passed(bench(network, listener, op, "--mode", mode, *how))
        assert [row["path"] for row in found] == [path, path] if mode != "sendrecv" else [
            "inline", path,
        ]  # fmt: skip
    steps = rows_that_passed(bench(network, listener, "setup", "--iters", "3", "--peers", "2"))
    assert {row["mode"] for row in steps} == {"endpoint", "connect", "first", "further"}
    stopped = listener.stop()
    assert stopped.returncode == 130
    assert "failed" not in stopped.stderr
    assert stopped.stderr.endswith("interrupted\n")
    assert len(re.findall(r"host-b:\d+: done", stopped.stdout)) == 6


def test_transport_of_both_sides(network, listener):
    (row,) = rows_that_passed(
        bench(network, listener, "latency", "--transport", "socket", "--sizes", "70K",
              "--iters", "10")
    )  # fmt: skip
    assert row["path"] == "socket"


@any_way
def test_both_sides_check_bytes(network, listener):
    done = bench(network, listener, "latency", "--iters", "10", "--sizes", "70K", **{CORRUPT: "1"})
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
    assert json.loads(done.stdout)["wrong"] > 0


def test_doctor_between_hosts(network, listener):
    done = end(connect(network, listener, "doctor", "--json", "-"))
    assert done.returncode == 0, done.stderr
    found = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert found["name"]["detail"] == f"{network.a.ipv4} is {network.a.ipv4}"
    assert "machine host-a" in found["other side"]["detail"]
    assert found["message 8"]["p50_us"] > 0
    path = network.way.path
    assert re.fullmatch(rf"by {path}, [\d.,]+ GB/s", found["put 1M, 16 in flight"]["detail"])
    for operation in ("message", "put/get"):
        told = found[f"paths of {operation}"]
        assert f": {path}, " in told["detail"]
        assert told["state"] == ("slow" if path == "socket" else "ok")
    spoilt = end(connect(network, listener, "doctor", **{CORRUPT: "1"}))
    assert spoilt.returncode == 1
    assert "bytes are wrong" in spoilt.stdout


@any_way
def test_listener_for_one_run(network):
    listener = Listener(network.a, "--once")
    assert len(rows_that_passed(bench(network, listener, "latency", "--iters", "9"))) == 5
    assert end(listener.process).returncode == 0


@any_way
def test_listener_has_the_key_of_its_environment(network):
    key = "of the environment"
    listener = Listener(network.a, "--once", **{KEY: key})
    assert listener.key == "..."
    done = bench(network, listener, "latency", "--sizes", "8", "--iters", "9", **{KEY: key})
    assert len(rows_that_passed(done)) == 1
    assert end(listener.process).returncode == 0


# ---- Failures


LONG = ("latency", "--sizes", "8:64K", "--iters", "20000", "--json", "-")


def test_listener_that_dies(network, listener):
    connecting = connect(network, listener, "bench", *LONG)
    assert json.loads(line_of(connecting))["size"] == 8
    listener.process.kill()
    done = end(connecting)
    assert done.returncode == 1
    assert "lost host-a:" in done.stderr


def test_connecting_side_that_dies(network, listener):
    connecting = connect(network, listener, "bench", *LONG)
    assert json.loads(line_of(connecting))["size"] == 8
    connecting.kill()
    end(connecting)
    # It serves the next one.
    found = bench(network, listener, "latency", "--sizes", "8", "--iters", "9")
    assert len(rows_that_passed(found)) == 1
    stopped = listener.stop()
    assert "failed: " in stopped.stderr
    assert "lost host-b:" in stopped.stderr


def test_ctrl_c_on_the_listening_side(network, listener):
    connecting = connect(network, listener, "bench", *LONG)
    assert json.loads(line_of(connecting))["size"] == 8
    assert listener.stop().returncode == 130
    done = end(connecting)
    assert done.returncode == 1
    assert "lost host-a:" in done.stderr


@any_way
def test_what_the_listening_side_cannot_do(network, listener):
    done = bench(network, listener, "latency", "--memory", "host,cuda")
    assert done.returncode == 1
    assert re.search(r"Error: host-a:\d+: .*no CUDA driver", done.stderr), done.stderr
    assert re.search("failed: .*no CUDA driver", listener.stop().stderr)


@any_way
@pytest.mark.parametrize("key", ["another key of 16", ""], ids=["wrong", "none"])
def test_key_that_does_not_match(network, listener, key):
    for words in (("bench", "latency"), ("doctor",)):
        done = end(connect(network, listener, *words, **{KEY: key}))
        assert done.returncode == 1
        text = " ".join((done.stderr if words[0] == "bench" else done.stdout).split())
        assert f"set the {KEY} that `onehop bench" in text, text
    # Those who do not know the key do not end it.
    found = bench(network, listener, "latency", "--sizes", "8", "--iters", "9")
    assert len(rows_that_passed(found)) == 1


def failed(network, place, *words) -> str:
    done = end(start(network.b, *words, "--connect", place, **{KEY: "0123456789abcdef"}))
    assert done.returncode == 1
    return " ".join((done.stdout + done.stderr).split())


@any_way
def test_addresses_where_nobody_is(network):
    there = network.a.ipv4
    for words in (("bench", "latency"), ("doctor",)):
        assert f"{there}:{PORT} refuses connections: start" in failed(network, there, *words)
        assert "cannot resolve 'no-host.invalid'" in failed(network, "no-host.invalid:1", *words)
        silent = failed(network, "192.0.2.77:1234", *words)
        assert re.search("cannot connect to 192.0.2.77:1234|no answer from 192.0.2.77:1234", silent)


@any_way
def test_links_that_cannot_be_made(network):
    """The hosts meet, but neither tells an address where the other reaches it."""
    apart = {"ONEHOP_INTERFACE": "lo"}
    listener = Listener(network.a, "--once", **apart)
    done = bench(network, listener, "latency", **apart)
    assert done.returncode == 1
    assert "cannot connect to rank 0" in done.stderr
    assert "open the TCP ports of ONEHOP_PORT_RANGE between the two hosts" in done.stderr
    listens = end(listener.process)
    assert listens.returncode == 1
    assert "cannot connect to rank 1" in listens.stderr


@any_way
def test_packets_that_are_dropped(network, listener):
    network.down(network.a)
    text = failed(network, listener.place, "bench", "latency")
    assert re.search("no answer from .* within 5 s|cannot connect to ", text)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.9\r\n", b""], ids=["ssh", "silent"])
def test_another_program_at_the_port(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        with subprocess.Popen(
            [*ONEHOP, "bench", "latency", "--connect", place],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            server.settimeout(DEADLINE)
            taken = []
            server.accept()[0].close()  # sees whether the port is open
            with contextlib.suppress(OSError):
                taken.append(server.accept()[0])
                taken[-1].sendall(answer)
            assert process.wait(DEADLINE) == 1
            text = process.stderr.read()
            assert f"cannot meet {place}: " in text
            assert "is it `onehop bench --listen`" in text
            for one in taken:
                one.close()


def test_gpu_memory(fake_gpus):
    """Of the connecting side's second device and the listening side's first."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    key = {**os.environ, KEY: "0123456789abcdef"}
    listens = [*ONEHOP, "bench", "--listen", place, "--once"]
    with subprocess.Popen(listens, stdout=subprocess.PIPE, text=True, env=key) as process:
        done = run_onehop(
            "bench", "latency", "--memory", "cuda", "--devices", "1,0", "--sizes", "70K",
            "--iters", "9", "--transport", "socket", "--connect", place, "--json", "-",
            **{KEY: key[KEY]},
        )  # fmt: skip
        (row,) = rows_that_passed(done)
        assert (row["path"], row["devices"]) == ("socket", "1,0")
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 0


def test_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        done = run_onehop("bench", "--listen", place)
    assert done.returncode == 1
    assert f"cannot listen on {place}: Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bench", "--listen", "latency"], "the connecting side says what is measured"),
        (["bench", "--listen", "host-a", "latency"], "the connecting side says what is measured"),
        (["bench", "--listen", "host:port"], "'host:port' is no address"),
        (["bench", "--listen", "fd00::1"], "'fd00::1' is no address"),
        (["bench"], "Usage: "),
        (["bench", "--once"], "--once goes with --listen"),
        (["bench", "latency", "--connect", "a:70000"], "'a:70000' is no address"),
        (["bench", "latency", "--connect", "tcp://a:1"], "is no address"),
        (["bench", "latency", "--connect", ""], "'' is no address"),
        (["bench", "latency", "--connect", "a", "--threads"], "not with --threads"),
        (["bench", "latency", "--connect", "a", "--vs", "memcpy"], "not with --connect"),
        (["bench", "latency", "--connect", "a", "--cpus", "0,0"], "names 2 CPUs"),
        (
            ["bench", "latency", "--connect", "a", "--memory", "cuda", "--mode", "kernel"],
            "kernels do not reach another host",
        ),
        (["bench", "matrix", "--connect", "a"], "No such option"),
        (["doctor", "--connect", "a:0"], "'a:0' is no address"),
    ],
)
def test_wrong_calls(arguments, text):
    done = run_onehop(*arguments)
    assert done.returncode == 2, done.stderr
    assert text in " ".join(done.stderr.replace("│", "").split())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("node-a", Place("node-a", PORT)),
        ("Node-A:1", Place("Node-A", 1)),
        ("[fd00::1]:65535", Place("fd00::1", 65535)),
        ("[::]", Place("::", PORT)),
    ],
)
def test_places(text, place):
    assert Place.parse(text) == place
    assert Place.parse(str(place)) == place


class Saying:
    """Stands in for a control link: says one word."""

    def __init__(self, body) -> None:
        self.body = body

    def hear(self, *_, **__):
        return self


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"onehop": "9.9.9"}, "the other side 9.9.9: install the same version on both hosts"),
        ({"play": "os.system"}, "does not know 'os.system'"),
        ({"settings": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
        ({"argument": [{"op": 1}]}, "is no Job"),
        ({"more": 1}, "is no _Request"),
    ],
)
def test_requests_that_are_refused(change, text):
    job = json.loads(encode(Job("latency", "c", "sendrecv", 8)))
    right = {
        "onehop": onehop.__version__,
        "play": "bench",
        "settings": {},
        "argument": [job],
        "host": {"facts": {}},
    }
    play, request = _accept(Saying(right), [BENCH])
    assert play is BENCH
    assert request.argument == [Job("latency", "c", "sendrecv", 8)]
    with pytest.raises((SideError, ValueError), match=re.escape(text)):
        _accept(Saying({**right, **change}), [BENCH])


def test_values_on_the_wire():
    job = Job("batch", "c", "put", 4096, memory=("cuda", "host"), devices=("cuda:0", ""), inline=7)
    assert decode(Job, encode(job)) == job
    assert decode(bytes, encode(b"\x00\xff")) == b"\x00\xff"
    for kind, value in ((int, True), (int, "1"), (Job, {}), (list[int], {"a": 1}), (bytes, "zz")):
        with pytest.raises(ValueError, match=r"is no |hex"):
            decode(kind, encode(value))
