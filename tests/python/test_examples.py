# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ that the documentation shows, as a reader runs them.

Those for GPUs with PyTorch are in test_torch_gpu_stream.py, and their stream calls here, on the
fake driver; those with torch or vLLM alone are in tests/integrations.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import hosts
import onehop
import pytest
from fake_gpu import CudaArray, Driver
from processes import run_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE = 60  # seconds
LARGE = 1 << 20
STEPS = 3


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def run_both(folder, name, first=(), second=(), environment=None):
    """Run a program as rank 0 and as rank 1, at a port of its own; return what both print."""
    program = folder / name
    program.write_text((EXAMPLES / name).read_text().replace("29400", str(free_port())))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), *arguments],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, arguments in enumerate((first, second))
    ]
    try:
        said = [rank.communicate(timeout=DEADLINE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [out for out, _ in said]


def test_pair(tmp_path):
    first, second = run_both(tmp_path, "pair.py")
    assert "4000000 bytes came back by shm, first value 1.0" in first
    assert "put/get" in first
    assert second == "received 4000000 bytes from rank 0 by shm\n"


def test_messages(tmp_path):
    first, second = run_both(tmp_path, "messages.py")
    lines = second.splitlines()
    assert lines[0] == "tag 2: b'tag 2', by inline"
    assert lines[2] == "tag 1: b'tag 1, second', by inline"
    assert "first value 1.0" in first
    assert "12345 bytes of tag 3 from rank 0" in second
    assert "TIMEOUT, scope OPERATION: the deadline passed after" in first


def test_put_notify(tmp_path):
    owner, initiator = run_both(tmp_path, "put_notify.py")
    assert owner.splitlines() == [f"layer {layer} is here: {10 + layer}" for layer in range(4)]
    assert initiator.splitlines() == ["wrote 4 layers by shm", "layer 1 holds 11"]


def test_prefetch(tmp_path):
    _, said = run_both(tmp_path, "prefetch.py")
    assert said == f"8 layers, sums {list(range(8))}\n"


def test_asyncio_pair(tmp_path):
    for said in run_both(tmp_path, "asyncio_pair.py"):
        assert said.splitlines() == [f"tag {i}: 100000 bytes of {i}" for i in range(8)]


def test_batches(tmp_path):
    first, second = run_both(tmp_path, "batches.py")
    assert first == "100 blocks by shm\n"
    assert second.splitlines()[:4] == ["scattered", "step 0", "step 1", "step 2"]
    assert "409600 bytes as one message" in second


@pytest.mark.parametrize("transport", ["socket", "ucx"])
def test_two_hosts(tmp_path, transport):
    if transport == "ucx" and (why := hosts.why_no_ucx()):
        pytest.skip(f"no UCX: {why}")
    environment = {
        "ONEHOP_TRANSPORT": transport,
        "ONEHOP_SECRET": "only for this test",
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "lo",
    }
    host = ["127.0.0.1"]
    first, second = run_both(tmp_path, "two_hosts.py", host, host, environment)
    assert f"4194304 bytes by {transport}, right" in first
    assert f"by {transport}; inline up to" in second


def why_no_namespaces() -> str:
    """Why containers.sh cannot run here; empty if it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (Debian: util-linux)"
    probe = ["unshare", "--net", "--ipc", "--pid", "--fork", "true"]
    if os.geteuid() != 0:
        probe[1:1] = ["--user", "--map-current-user"]
    found = subprocess.run(probe, capture_output=True, text=True, timeout=DEADLINE, check=False)
    return f"no namespaces may be made here: {found.stderr.strip()}" if found.returncode else ""


def test_containers():
    if why := why_no_namespaces():
        pytest.skip(why)
    command = [str(EXAMPLES / "containers.sh"), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Neither sees the other's process, so only memory that can be mapped takes one copy.
    assert "connect: path shm, single copy of private memory: False" in done.stdout
    assert "1048576 bytes by shm, last 7" in done.stdout


@pytest.mark.parametrize("name", ["kubernetes.yaml", "compose.yaml"])
def test_variables_and_programs_of_the_containers_exist(name):
    text = (EXAMPLES / name).read_text()
    named = set(re.findall(r"ONEHOP_\w+", text))
    assert named
    assert named <= {variable.name for variable in onehop.config()}
    programs = set(re.findall(r"\w+\.py", text))
    assert programs
    assert all((EXAMPLES / program).exists() for program in programs)


@pytest.mark.parametrize(
    ("name", "compilers", "standard", "said"),
    [
        ("put_notify.c", ("cc", "gcc", "clang"), "c11", "1 MiB: the bytes are right"),
        ("messages.cc", ("c++", "g++", "clang++"), "c++17", "4194304 bytes by shm, right"),
    ],
)
def test_compiled_examples(tmp_path, name, compilers, standard, said):
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        pytest.skip(f"there is none of the compilers {', '.join(compilers)}")
    program, library = str(tmp_path / "program"), onehop.get_library_dir()
    command = [compiler, f"-std={standard}", str(EXAMPLES / name), f"-I{onehop.get_include()}"]
    command += [f"-L{library}", "-lonehop", f"-Wl,-rpath,{library}", "-o", program]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


# ---- Streams, on the fake driver


def load(name):
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replay_exchanges(comm):
    stream_graph, driver = load("stream_graph"), Driver(comm.rank)
    stream = driver.stream()
    comm.warmup(timeout=30)
    out, into = CudaArray(driver, bytes(LARGE)), CudaArray(driver, bytes(LARGE))
    with driver.capture(stream) as graphs:
        stream_graph.exchange(comm, stream, out, into)
    for step in range(STEPS):
        driver.write(out.address, bytes([10 * step + comm.rank]) * LARGE)
        driver.launch(graphs[0], stream)
        driver.synchronize(stream)
        assert into.bytes() == bytes([10 * step + 1 - comm.rank]) * LARGE
    assert comm.peer(1 - comm.rank).async_error() is None


def hand_over(comm):
    stream_graph, driver, peer = load("stream_graph"), Driver(comm.rank), comm.peer(1 - comm.rank)
    stream = driver.stream()
    comm.warmup(timeout=30)
    memory = CudaArray(driver, bytes([comm.rank + 1]) * LARGE)
    if comm.rank == 0:
        region = comm.endpoint.register(memory)
        peer.send(region.descriptor, timeout=30)
        stream_graph.take_over(peer, stream)
        driver.synchronize(stream)
        assert memory.bytes() == b"\2" * LARGE
    else:
        descriptor = bytearray(1024)
        message = peer.recv(descriptor, timeout=30)
        remote = peer.attach(descriptor[: message.nbytes], timeout=30)
        stream_graph.hand_over(peer, stream, memory, remote)
        driver.synchronize(stream)
    comm.barrier(timeout=30)


@pytest.mark.usefixtures("fake_gpus")
@pytest.mark.parametrize("function", [replay_exchanges, hand_over])
def test_stream_calls(function):
    if onehop.info().kernel_bytes == 0:
        pytest.skip("this build of onehop has no kernels (ONEHOP_CUDA=OFF)")
    run_ranks(2, function, devices=(0, 1))


# ---- The pages that show them

PAGES = [EXAMPLES.parent / "docs" / "start.md", *(EXAMPLES.parent / "docs/guides").glob("*.md")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What is not run: it shows what is printed, or needs GPUs, a cluster, or a build from the sources.
SHOWN = ("text", "console")


def blocks_of(page):
    return BLOCK.findall(page.read_text())


def shell_blocks():
    for page in sorted(PAGES):
        blocks = [block for language, block in blocks_of(page) if language == "sh"]
        for number, block in enumerate(blocks):
            yield pytest.param(block, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_programs_of_examples_only(page):
    assert page.read_text().count("```") == 2 * len(blocks_of(page))
    for language, block in blocks_of(page):
        if language not in ("sh", *SHOWN):
            assert re.fullmatch(r'--8<-- "examples/[\w.]+(:\w+)?"\n', block), block


@pytest.mark.parametrize("block", list(shell_blocks()))
def test_shell_commands_of_the_pages(block, tmp_path):
    if "containers.sh" in block and (why := why_no_namespaces()):
        pytest.skip(why)
    if "c++ " in block and shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    port = str(free_port())
    for program in (tmp_path / "examples").glob("*.py"):
        program.write_text(program.read_text().replace("29400", port))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
