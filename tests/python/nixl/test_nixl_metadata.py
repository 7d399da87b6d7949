# SPDX-License-Identifier: Apache-2.0
"""The metadata's format: what goes in comes out, and garbage is refused."""

import numpy as np
import pytest
from onehop.nixl import nixl_agent
from onehop.nixl.bindings import DRAM_SEG, VRAM_SEG, nixlMismatchError
from onehop.nixl.metadata import EndpointRecord, Metadata, RegionRecord, pack, parse
from test_nixl_descs import damaged, sealed

FULL = Metadata(
    "agent Ä",
    bytes(range(16)),
    7,
    True,
    [EndpointRecord(0, -1, "", b"address"), EndpointRecord(1, 3, "GPU-uuid", b"other")],
    [
        RegionRecord(1, DRAM_SEG, 0, 0, 2**64 - 2, 1, b"descriptor"),
        RegionRecord(9, VRAM_SEG, 3, 1, 4096, 0, b""),
    ],
)
PARTIAL = Metadata("B", bytes(16), 0, False)


@pytest.mark.parametrize("metadata", [FULL, PARTIAL])
def test_what_goes_in_comes_out(metadata):
    assert parse(pack(metadata)) == metadata


def test_truncations_and_what_follows():
    data = pack(FULL)
    for size in range(len(data)):
        with pytest.raises(nixlMismatchError):
            parse(data[:size])
        shorter = data[:8] + max(size - 20, 0).to_bytes(8, "little") + data[16:size]
        if size >= 20:
            with pytest.raises(nixlMismatchError):
                parse(sealed(shorter))
    with pytest.raises(nixlMismatchError, match="should follow"):
        parse(data + b"x")
    longer = data[:8] + (len(data) - 19).to_bytes(8, "little") + data[16:] + b"x"
    with pytest.raises(nixlMismatchError, match="follow its end"):
        parse(sealed(longer))


def test_each_altered_byte_is_seen():
    data = pack(FULL)
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1
        if place in (7,):  # the kind, which no checksum covers: full or partial
            continue
        with pytest.raises(nixlMismatchError):
            parse(bytes(altered))


def test_garbage_never_crashes():
    data = pack(FULL)
    rng = np.random.default_rng(2)
    refused = 0
    for copy in damaged(data, rng, 6000):
        try:
            assert isinstance(parse(copy), Metadata)
        except nixlMismatchError:
            refused += 1
    assert refused > 3000
    for _ in range(1000):
        with pytest.raises(nixlMismatchError):
            parse(rng.bytes(int(rng.integers(0, 200))))


def test_counts_without_room():
    for count in (2**32 - 1, 1000):
        body = pack(PARTIAL)[20:-8] + count.to_bytes(4, "little") + bytes(4)
        header = pack(PARTIAL)[:8] + len(body).to_bytes(8, "little") + bytes(4)
        with pytest.raises(nixlMismatchError, match="no room"):
            parse(sealed(header + body))


def test_values_that_cannot_be():
    for bad in (
        Metadata("", bytes(16), 0, True),
        Metadata("x" * 1025, bytes(16), 0, True),
        Metadata("x", bytes(15), 0, True),
        Metadata("x", bytes(16), 0, True, [], [RegionRecord(1, DRAM_SEG, 0, 0, 2**64 - 1, 1, b"")]),
        Metadata("x", bytes(16), 0, True, [], [RegionRecord(1, 4, 0, 0, 0, 1, b"")]),
    ):
        with pytest.raises(nixlMismatchError):
            parse(pack(bad))


def test_agents_survive_false_metadata():
    """Well-formed, but it leads nowhere: errors, and the agent goes on."""
    agent = nixl_agent("A")
    agent.add_remote_agent(pack(FULL))
    local = np.zeros(16, "u1")
    agent.register_memory([(local.ctypes.data, 16, 0, "")], "DRAM")
    ours = agent.get_xfer_descs([(local.ctypes.data, 1, 0)], "DRAM")
    theirs = agent.get_xfer_descs([(2**64 - 2, 1, 0)], "DRAM")
    for call in (
        lambda: agent.make_connection(FULL.name),
        lambda: agent.send_notif(FULL.name, b"x"),
        lambda: agent.initialize_xfer("WRITE", ours, theirs, FULL.name),
    ):
        with pytest.raises(Exception, match="connect agent 'A'") as caught:
            call()
        assert type(caught.value).__name__.startswith("nixl")
    # An address that is right, and a descriptor that is not.
    other = nixl_agent("B")
    true = parse(other.get_agent_metadata())
    true.regions = [RegionRecord(1, DRAM_SEG, 0, 0, 4096, 8, b"no descriptor")]
    agent.add_remote_agent(pack(true))
    agent.send_notif("B", b"x")
    with pytest.raises(Exception, match="reach 8 bytes") as caught:
        agent.initialize_xfer("WRITE", ours, agent.get_xfer_descs([(4096, 1, 0)], "DRAM"), "B")
    assert type(caught.value).__name__.startswith("nixl")
    true.regions = [RegionRecord(2, DRAM_SEG, 0, 99, 4096, 8, b"no endpoint")]
    true.sequence += 1
    agent.add_remote_agent(pack(true))
    with pytest.raises(Exception, match="how to reach"):
        agent.initialize_xfer("WRITE", ours, agent.get_xfer_descs([(4096, 1, 0)], "DRAM"), "B")
