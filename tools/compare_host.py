#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare onehop with UCX and MPI on this host: two processes, host memory, alternating runs.

comparison.py describes the order of runs and the intervals.

ucx_perftest uses one buffer for all messages in flight, onehop and the MPI program one for each;
all use private memory. UCX runs with UCX_TLS=posix,cma,self unless the environment overrides it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from comparison import (
    TIMEOUT,
    Case,
    Tool,
    add_arguments,
    compile_pingpong,
    drive,
    figure,
    onehop,
    pingpong_row,
    provenance,
    run,
)

MIB = 2**20


def ucx_version(perftest: Path) -> str:
    """Return the version of the UCX that contains ucx_perftest."""
    program = perftest.resolve().parent / "ucx_info"
    if not program.exists():
        return "unknown"
    words = run([str(program), "-v"], **ucx_environment(perftest)).split()
    return words[words.index("version:") + 1] if "version:" in words else "unknown"


def ucx_environment(perftest: Path) -> dict[str, str]:
    """Return the environment of UCX's programs; those of a wheel do not find their libraries."""
    library = perftest.resolve().parent.parent / "lib"
    env = {"UCX_TLS": os.environ.get("UCX_TLS", "posix,cma,self")}
    if library.is_dir():
        env["LD_LIBRARY_PATH"] = f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return env


def ucx(perftest: Path) -> Tool:
    """Return the Tool that measures UCX."""
    env = ucx_environment(perftest)

    def measure(case: Case) -> float:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        test = "tag_lat" if case.op == "latency" else "tag_bw"
        command = [str(perftest), "-p", str(port), "-t", test, "-s", str(case.size), "-f", "-v"]
        command += ["-n", str(case.iterations), "-w", str(case.iterations // 10 + 2)]
        if case.op == "bandwidth":
            command += ["-O", str(case.window)]
        pinned = [["-c", str(cpu)] for cpu in case.cpus] or [[], []]
        server = subprocess.Popen(
            # Line-buffered, so that the server's message that it is ready arrives.
            ["stdbuf", "-oL", *command, *pinned[1]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env},
        )
        try:
            assert server.stdout
            for line in server.stdout:
                if "Waiting for connection" in line:
                    break
            out = run([command[0], "127.0.0.1", *command[1:], *pinned[0]], **env)
            server.communicate(timeout=TIMEOUT)
        finally:
            server.kill()
            server.wait()
        values = out.strip().splitlines()[-1].split(",")
        # iterations, p50, average, overall latency, average, overall bandwidth in MiB/s, ...
        return float(values[1]) if case.op == "latency" else float(values[5]) * MIB / 1e9

    return measure


def mpi(folder: Path) -> Tool | None:
    """Return the Tool that measures MPI, if there is a compiler for it."""
    compiler, launcher = shutil.which("mpicxx"), shutil.which("mpiexec")
    if not compiler or not launcher:
        return None
    program = compile_pingpong("mpi", folder, compiler=compiler)

    def measure(case: Case) -> float:
        command = [launcher, "-n", "2"]
        if case.cpus:
            command += ["-bind-to", "user:" + ",".join(map(str, case.cpus))]
        unpinned = replace(case, cpus=[])
        return figure(case, pingpong_row([*command, str(program)], unpinned, {}))

    return measure


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ucx-perftest", type=Path, metavar="PATH")
    parser.add_argument("--mpi", action="store_true", help="also MPI, compiled with mpicxx")
    add_arguments(parser, sizes="8,1K,8K,64K,1M,64M")
    return parser.parse_args()


def main() -> None:
    """Run the comparison."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        tools: dict[str, Tool] = {"onehop": onehop()}
        if arguments.ucx_perftest:
            tools["UCX"] = ucx(arguments.ucx_perftest)
        if arguments.mpi:
            found_mpi = mpi(Path(folder))
            if found_mpi is None:
                sys.exit("--mpi needs mpicxx and mpiexec")
            tools["MPI"] = found_mpi
        if len(tools) == 1:
            sys.exit("nothing to compare with: give --ucx-perftest PATH or --mpi")
        facts = provenance()
        if arguments.ucx_perftest:
            facts += f", UCX {ucx_version(arguments.ucx_perftest)}"
        drive(arguments, tools, facts)


if __name__ == "__main__":
    main()
