# SPDX-License-Identifier: Apache-2.0
"""``onehop info``: versions, host, transports, topology, and the configuration."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

import click
from rich.markup import escape
from rich.table import Table

import onehop
from onehop.cli.gpus import facts, version
from onehop.cli.output import json_lines, listing, make_console, provenance

_HEADER = """\
# Configuration

onehop reads these environment variables when an endpoint is created. Options of a call take
precedence over variables. An invalid value is an error of the call that creates the endpoint; its
text names the variable. An empty variable counts as not set. Choices may be written in upper case.
Switches also accept 1 and 0.

<!-- Written by `onehop info --config --markdown`. -->

| variable | type | allowed | default | meaning |
|---|---|---|---|---|
"""


def markdown(variables: Iterable[onehop.Variable]) -> str:
    """Write the documentation page that lists all variables."""
    rows = []
    for variable in variables:
        default = f"`{variable.default}`" if variable.default else "empty"
        cells = (f"`{variable.name}`", variable.type, variable.allowed, default, variable.meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return _HEADER + "".join(rows)


def setting(name: str) -> str:
    """Return the value of an onehop variable, or its default."""
    (variable,) = [one for one in onehop.config() if one.name == name]
    return variable.value or variable.default


def unknown_variables() -> dict[str, str]:
    """Return unknown ONEHOP_* variables of the environment, each with a remedy."""
    known = [variable.name for variable in onehop.config()]
    found = {}
    for name in sorted(os.environ):
        if name.startswith("ONEHOP_") and name not in known:
            meant = difflib.get_close_matches(name, known, 1, 0.8)
            found[name] = f"did you mean {meant[0]}?" if meant else "see onehop info --config"
    return found


def _config_table() -> Table:
    table = listing("Configuration", "variable", "value", "default", "type", "allowed", "meaning")
    for variable in onehop.config():
        value = variable.value
        table.add_row(
            variable.name,
            "-" if value is None else f"[bold]{escape(value)}[/]",
            variable.default or "empty",
            variable.type,
            variable.allowed,
            variable.meaning,
        )
    return table


def _transport_table(transports: Iterable[onehop.Transport]) -> Table:
    table = listing("Transports", "transport", "viable", "why")
    for transport in transports:
        viable = "[green]yes[/]" if transport.viable else "[dim]no[/]"
        table.add_row(transport.name, viable, escape(transport.why))
    return table


def _facts_table(found: onehop.Info) -> Table:
    table = Table(box=None, show_header=False)
    for key, value in provenance().items():
        table.add_row(key, escape(value))
    kernels = f"{found.kernel_bytes} bytes" if found.kernel_bytes else "not in this build"
    table.add_row("CUDA kernels", kernels)
    table.add_row("library", escape(onehop.get_library_dir()))
    return table


def _gpu_tables() -> Iterator[Table]:
    """Show the driver with its devices and their connections, or why there is none."""
    found = facts()
    if isinstance(found, str):
        missing = Table(title="GPUs", title_justify="left", box=None, show_header=False)
        missing.add_row(f"none: {escape(found)}")
        yield missing
        yield from _node_tables(onehop.topology())
        return
    title = f"GPUs: {found.library}, {version(found)}"
    machine = found.machine
    shown = listing(title, "device", "name", "capability", "PCI", "NUMA", "UUID")
    for device in machine.devices:
        node = "-" if device.numa_node is None else str(device.numa_node)
        capability = f"{device.major}.{device.minor}"
        shown.add_row(
            f"cuda:{device.ordinal}", escape(device.name), capability, device.pci, node, device.uuid
        )
    yield shown
    yield from _node_tables(machine)
    if len(machine.devices) > 1:
        yield _peer_table(machine)
        yield from _link_tables(machine)


def _node_tables(machine: onehop.Topology) -> Iterator[Table]:
    if not machine.nodes:
        return
    table = listing("NUMA nodes", "node", "CPUs", "usable here", "GPUs")
    for node in machine.nodes:
        near = [f"cuda:{gpu.ordinal}" for gpu in machine.devices if gpu.numa_node == node.node]
        table.add_row(str(node.node), node.cpus or "-", node.usable or "-", ", ".join(near) or "-")
    yield table


def _matrix(title: str, machine: onehop.Topology, cell: Callable[[onehop.GpuLink], str]) -> Table:
    table = listing(title, "from, to")
    for device in machine.devices:
        table.add_column(str(device.ordinal))
    for device, links in zip(machine.devices, machine.links, strict=True):
        table.add_row(str(device.ordinal), *map(cell, links))
    return table


def _peer_table(machine: onehop.Topology) -> Table:
    def cell(link: onehop.GpuLink) -> str:
        if link.kind == "same":
            return "-"
        if not link.peer_access:
            return "[yellow]no[/]"
        return "[green]yes[/]" if link.native_atomics else "[green]yes[/], no atomics"

    return _matrix("Peer access", machine, cell)


_SHORT = {
    "same": "-",
    "pcie_switch": "PCIe switch",
    "pcie_bridge": "PCIe bridge",
    "pcie_node": "PCIe, node",
    "pcie_system": "PCIe, nodes",
    "unknown": "?",
}


def _link_tables(machine: onehop.Topology) -> Iterator[Table]:
    """Show the connections between GPUs, then a description of each kind of link."""

    def cell(link: onehop.GpuLink) -> str:
        return _SHORT.get(link.kind) or f"NVLink {link.nvlinks or ''}".rstrip()

    yield _matrix("Links", machine, cell)
    links = [link for row in machine.links for link in row if link.kind != "same"]
    words = Table(box=None, show_header=False)
    for short, text in dict.fromkeys((cell(link), link.text) for link in links):
        words.add_row(short, escape(text))
    yield words


_LIMITS = (
    "ONEHOP_MAX_INLINE",
    "ONEHOP_EAGER_MAX",
    "ONEHOP_EAGER_CREDIT",
    "ONEHOP_MAX_PENDING",
    "ONEHOP_TIMEOUT",
)


def _limits_table() -> Table:
    table = listing("Limits", "value", "of", "set by")
    for variable in onehop.config():
        if variable.name in _LIMITS:
            value = escape(variable.value or variable.default)
            table.add_row(value, variable.meaning, variable.name)
    return table


def tables() -> Iterator[Table]:
    """Show versions, transports, GPUs, NUMA nodes and limits."""
    found = onehop.info()
    yield _facts_table(found)
    yield _transport_table(found.transports)
    yield from _gpu_tables()
    yield _limits_table()


def as_json() -> str:
    """Write everything as one JSON object."""
    found = onehop.info()
    gpus = facts()
    driver = {"why_none": gpus} if isinstance(gpus, str) else {"version": version(gpus)}
    return json.dumps(
        {
            **asdict(found),
            "provenance": provenance(),
            "library": onehop.get_library_dir(),
            "include": onehop.get_include(),
            "driver": driver,
            "topology": asdict(onehop.topology()),
            "config": [
                {**asdict(variable), "value": variable.value} for variable in onehop.config()
            ],
            "unknown_variables": unknown_variables(),
        }
    )


@click.command()
@click.option(
    "--config", is_flag=True, help="List every ONEHOP_* variable: value, default, allowed values."
)
@click.option(
    "--markdown",
    "as_markdown",
    is_flag=True,
    help="With --config: as the page of the documentation.",
)
@click.option("--json", "json_to", metavar="FILE|-", help="Write everything as one JSON object.")
def info(config: bool, as_markdown: bool, json_to: str | None) -> None:
    """Show what this build can do on this machine."""
    if as_markdown:
        if not config:
            raise click.UsageError("--markdown goes with --config")
        click.echo(markdown(onehop.config()), nl=False)
        return
    if json_to:
        with json_lines(json_to) as write:
            write(as_json())
        return
    console = make_console()
    if config:
        console.print(_config_table())
    else:
        for table in tables():
            console.print(table)
    for name, advice in unknown_variables().items():
        console.print(f"[yellow]{escape(name)} is set, but no variable of onehop: {advice}[/]")
