#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare messages between hosts with UCX and TCP: two processes, loopback, alternating runs.

comparison.py describes the order of runs and the intervals. bench/pingpong_ucp.cc and
bench/pingpong_tcp.cc, compiled here, measure UCP's active messages and a plain socket. All tools
run the same loops, use one buffer for each message in flight, poll, and check their bytes.

UCX runs with the settings found best on loopback, with its defaults, or as onehop runs it: with the
same settings, error handling for peer failure, which disables some transports, and wake-up for
threads that sleep. Variables of the environment take precedence. With --over shm UCX uses shared
memory, and TCP is omitted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from comparison import (
    Case,
    Tool,
    add_arguments,
    compile_pingpong,
    drive,
    onehop,
    pingpong,
    pingpong_row,
    provenance,
)

# The transport that UCX uses.
OVER = {
    "tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
    "shm": {"UCX_TLS": "posix,cma,self"},
}
# With its defaults, 1.22 takes several times as long as 1.13 for large messages over TCP; with
# these settings both are equal or better.
TUNED = {
    "tcp": {
        "UCX_RNDV_SCHEME": "put_zcopy",
        "UCX_RNDV_THRESH": "256k",
        "UCX_ZCOPY_THRESH": "16k",
        "UCX_TCP_TX_SEG_SIZE": "64k",
        "UCX_TCP_RX_SEG_SIZE": "128k",
    },
    "shm": {"UCX_RNDV_THRESH": "16k"},
}
# For every transport; UCX would warn about unused ones in its output.
ALIKE = {**TUNED["tcp"], "UCX_POSIX_ERROR_HANDLING": "y", "UCX_WARN_UNUSED_ENV_VARS": "n"}
ALIKE_OPTIONS = ("--peer-errors", "--wakeup", "--threads", "serialized", "--header", "72")


def compile_ucp(prefix: Path, folder: Path) -> Path:
    """Compile the UCX program against the installation under a prefix."""
    libraries = [prefix / name for name in ("lib", "lib64") if (prefix / name).is_dir()]
    if not (prefix / "include" / "ucp" / "api" / "ucp.h").exists() or not libraries:
        sys.exit(f"--ucx {prefix}: no include/ucp/api/ucp.h, or no lib beside it")
    options = [f"-I{prefix / 'include'}", *(f"-L{library}" for library in libraries)]
    # RPATH, not RUNPATH: UCX's libraries find each other through it, too, and no other UCX.
    options += ["-Wl,--disable-new-dtags", *(f"-Wl,-rpath,{library}" for library in libraries)]
    return compile_pingpong("ucp", folder, [*options, "-lucp", "-lucs"])


def ucx_tools(prefix: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Tool]:
    """Return the Tools for one installation of UCX, by column name."""
    plain = {**OVER[arguments.over], **ucx_environment()}
    tuned = {**TUNED[arguments.over], **plain}
    command = [str(compile_ucp(prefix, folder))]
    row = pingpong_row(command, Case("latency", 8, 1, 1, []), plain)
    name = f"UCP {row['ucx']}"
    tools = {
        "tuned": (name, pingpong(command, tuned)),
        "alike": (f"{name} alike", pingpong(command, {**ALIKE, **plain}, ALIKE_OPTIONS)),
        "as-shipped": (f"{name} as shipped", pingpong(command, plain)),
    }
    return dict(tools[settings] for settings in arguments.ucx_settings or ["tuned"])


def ucx_environment() -> dict[str, str]:
    """Return the UCX variables of the environment, which take precedence."""
    return {name: value for name, value in os.environ.items() if name.startswith("UCX_")}


def parse_way(text: str) -> tuple[str, dict[str, str]]:
    """Parse NAME:VARIABLE=VALUE,..."""
    name, colon, settings = text.partition(":")
    pairs = [setting.partition("=") for setting in settings.split(",") if setting]
    if not name or not colon or not all(middle for _, middle, _ in pairs):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:VARIABLE=VALUE,...")
    return name, {variable: value for variable, _, value in pairs}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--onehop", type=parse_way, action="append", metavar="NAME:VARIABLE=VALUE,...",
        help="a way of onehop's and the variables that choose it; may be repeated, the first is "
        "compared with all others (default: onehop:ONEHOP_SEGMENT=off, the socket)",
    )  # fmt: skip
    parser.add_argument(
        "--ucx", type=Path, action="append", default=[], metavar="PREFIX",
        help="an installation with include/ and lib/: /usr, or the folder libucx of UCX's wheel",
    )  # fmt: skip
    parser.add_argument(
        "--ucx-settings", choices=["tuned", "alike", "as-shipped"], action="append",
        help="tuned: the best on loopback (default); alike: as onehop runs it; may be repeated",
    )  # fmt: skip
    parser.add_argument("--over", choices=list(OVER), default="tcp", help="what UCX goes through")
    add_arguments(parser, sizes="0,8,64,400,1K,4K,8K,16K,64K,256K,512K,4M")
    return parser.parse_args()


def main() -> None:
    """Run the comparison."""
    arguments = parse_arguments()
    ways = dict(arguments.onehop or [parse_way("onehop:ONEHOP_SEGMENT=off")])
    with tempfile.TemporaryDirectory() as folder:
        tools = {name: onehop(**env) for name, env in ways.items()}
        for number, prefix in enumerate(arguments.ucx):
            place = Path(folder) / str(number)
            place.mkdir()
            tools.update(ucx_tools(prefix, place, arguments))
        if arguments.over == "tcp":
            tools["TCP"] = pingpong([str(compile_pingpong("tcp", Path(folder)))], {})
        if len(tools) == 1:
            sys.exit("nothing to compare with: give --ucx PREFIX")
        drive(arguments, tools, provenance(**next(iter(ways.values()))))


if __name__ == "__main__":
    main()
