# SPDX-License-Identifier: Apache-2.0
"""ONEHOP_METRICS: where metrics are served, and that a wrong value or a fork does no harm."""

import contextlib
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from onehop import metrics_server
from onehop.metrics_server import Place
from prometheus_client.parser import text_string_to_metric_families

# Says where it serves, then waits for its standard input to end.
SERVE = """
import sys, onehop
from onehop import metrics_server
print(metrics_server.address(), flush=True)
sys.stdin.read()
"""
DEADLINE = 60


@contextlib.contextmanager
def serving(value, code=SERVE):
    """A process with that value; yields it and what it says first."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "ONEHOP_METRICS": value},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, process.stdout.readline().strip()
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def read(address, path="/metrics", method="GET"):
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return answer.headers, answer.read().decode()


def listens(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=DEADLINE).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def ports():
    """The first of four ports in a row that are free."""
    for first in range(42000, 60000, 4):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 4):
                    taken = stack.enter_context(socket.socket())
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    taken.bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    pytest.fail("no ports are free")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0.0.0.0:9400", Place("0.0.0.0", 9400, 9400)),
        ("node-7.cluster:1-65535", Place("node-7.cluster", 1, 65535)),
        ("[::1]:9400-9401", Place("::1", 9400, 9401)),
        (":9400", Place("127.0.0.1", 9400, 9400)),
        ("9400", Place("127.0.0.1", 9400, 9400)),
        ("9400-9407", Place("127.0.0.1", 9400, 9407)),
    ],
)
def test_places(text, place):
    assert metrics_server.parse(text) == place


BAD = [
    "yes",
    "localhost",
    "127.0.0.1:",
    "127.0.0.1:http",
    "host:0",
    "host:65536",
    "host:9407-9400",
    "host:9400-",
    "::1:9400",
    "http://host:9400",
    "host:9400 ",
    "host:9400\n",
    "[]:9400",
    "host:\u0663\u0664",
]


@pytest.mark.parametrize("text", BAD)
def test_places_that_are_none(text):
    with pytest.raises(ValueError, match=r"expected HOST:PORT or HOST:FIRST-LAST") as failure:
        metrics_server.parse(text)
    assert text in str(failure.value)


def test_a_bad_value_is_a_warning():
    code = "import onehop; onehop.Endpoint().close(); print('lives')"
    command = [sys.executable, "-W", "error", "-c", code]
    env = {**os.environ, "ONEHOP_METRICS": "9400-please"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    assert done.stdout == "lives\n"
    assert "ONEHOP_METRICS=9400-please: expected HOST:PORT" in done.stderr


def test_nothing_is_served_or_imported_unless_asked():
    code = """
import sys, threading, onehop
assert threading.active_count() == 1
assert not {"onehop.metrics_server", "http.server", "logging"} & set(sys.modules)
from onehop import metrics_server
assert metrics_server.address() is None
"""
    env = {name: value for name, value in os.environ.items() if name != "ONEHOP_METRICS"}
    subprocess.run([sys.executable, "-c", code], env=env, timeout=DEADLINE, check=True)


def test_it_serves_metrics_and_nothing_else(ports):
    with serving(f"127.0.0.1:{ports}") as (_, address):
        assert address == f"127.0.0.1:{ports}"
        headers, text = read(address)
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        names = {family.name for family in text_string_to_metric_families(text)}
        assert "onehop_bytes" in names
        headers, body = read(address, method="HEAD")
        assert int(headers["Content-Length"]) > 0
        assert body == ""
        assert read(address, "/metrics?name=x")[1]
        for path in ("/", "/metrics/x", "/etc/passwd"):
            with pytest.raises(urllib.error.HTTPError) as failure:
                read(address, path)
            assert failure.value.code == 404
        # Noise, and a reader that says nothing: others are served nevertheless.
        with socket.create_connection(("127.0.0.1", ports), timeout=DEADLINE) as silent:
            with socket.create_connection(("127.0.0.1", ports), timeout=DEADLINE) as noise:
                noise.sendall(b"\x00\xff\r\n\r\n")
                while noise.recv(4096):
                    pass
            assert read(address)[1]
            silent.sendall(b"GET")
    assert not listens(address)


def test_processes_take_the_next_free_port(ports):
    value = f"127.0.0.1:{ports}-{ports + 1}"
    with serving(value) as (_, first), serving(value) as (_, second):
        assert {first, second} == {f"127.0.0.1:{ports}", f"127.0.0.1:{ports + 1}"}
        assert read(first)[1]
        assert read(second)[1]
        with serving(value) as (third, address):
            assert address == "None"
            _, text = third.communicate(timeout=DEADLINE)
            assert f"ONEHOP_METRICS={value}: metrics are not served" in text
            assert "in use" in text


def test_a_host_that_is_not_ours_is_a_warning(ports):
    with serving(f"203.0.113.7:{ports}") as (process, address):
        assert address == "None"
        _, text = process.communicate(timeout=DEADLINE)
        assert "metrics are not served" in text


# The child outlives the parent's server, and its own exit does not end that.
FORK = """
import os, sys, onehop
from onehop import metrics_server
endpoint = onehop.Endpoint()
try:
    endpoint.connect(b"no address")
except onehop.Error:
    pass
endpoint.close()
assert sum(onehop.metrics()["onehop_errors_total"].values()) == 1
address = metrics_server.address()
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    assert metrics_server.address() is None
    assert sum(onehop.metrics()["onehop_errors_total"].values()) == 0
    metrics_server.start()
    print(address, metrics_server.address(), flush=True)
    os.close(theirs)
    os.read(ours, 1)
    sys.exit()
os.close(ours)
sys.stdin.readline()
metrics_server.stop()
print("stopped", flush=True)
sys.stdin.readline()
os.close(theirs)
assert os.waitpid(child, 0)[1] == 0
sys.stdin.read()
"""


def test_a_fork_lets_go_of_the_socket_and_serves_when_asked(ports):
    with serving(f"127.0.0.1:{ports}-{ports + 1}", FORK) as (process, addresses):
        parent, child = addresses.split()
        assert (parent, child) == (f"127.0.0.1:{ports}", f"127.0.0.1:{ports + 1}")
        assert read(parent)[1]
        assert read(child)[1]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopped\n"
        assert not listens(parent)
        assert read(child)[1]
        process.stdin.write("\n")
        process.stdin.flush()


def test_the_exit_of_a_child_leaves_the_server_alone(ports):
    code = """
import os, sys, onehop
from onehop import metrics_server
address = metrics_server.address()
if os.fork() == 0:
    sys.exit()
os.wait()
print(address, flush=True)
sys.stdin.read()
"""
    with serving(f"127.0.0.1:{ports}", code) as (_, address):
        assert read(address)[1]


# Takes all descriptors, and says how much of a second the server's thread computes while a
# connection is pending that it cannot accept.
NO_DESCRIPTORS = """
import os, resource, sys, threading, time, onehop
from onehop import metrics_server
print(metrics_server.address(), flush=True)
(server,) = [one for one in threading.enumerate() if one.name == "onehop-metrics"]
clock = time.pthread_getcpuclockid(server.ident)
taken = []
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 256), most))
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    print("none is free", flush=True)
sys.stdin.readline()
before = time.clock_gettime(clock)
time.sleep(1)
print(time.clock_gettime(clock) - before, flush=True)
for descriptor in taken:
    os.close(descriptor)
sys.stdin.read()
"""


def test_a_process_without_descriptors_does_not_spin(ports):
    with serving(f"127.0.0.1:{ports}", NO_DESCRIPTORS) as (process, address):
        assert process.stdout.readline() == "none is free\n"
        with socket.create_connection(("127.0.0.1", ports), timeout=DEADLINE):
            process.stdin.write("\n")
            process.stdin.flush()
            assert float(process.stdout.readline()) < 0.1
        assert read(address)[1]
