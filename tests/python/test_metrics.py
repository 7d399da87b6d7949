# SPDX-License-Identifier: Apache-2.0
"""Metrics: what they say is what was moved, in Python's form and in Prometheus'."""

import collections
import math

import onehop
import pytest
from processes import LocalPair, run_pair
from prometheus_client.parser import text_string_to_metric_families

SIZES = (8, 300, 4096, 140_000, 1 << 20)
LABELS = {
    "onehop_bytes_total": ("direction", "path", "op"),
    "onehop_operations_total": ("direction", "path", "op"),
    "onehop_transfer_seconds": ("path", "op"),
    "onehop_post_seconds": ("path", "op"),
    "onehop_batch_blocks": ("op",),
    "onehop_errors_total": ("status",),
    "onehop_peer_lost_total": ("reason",),
    "onehop_fallback_total": ("reason",),
    "onehop_peers": (),
    "onehop_inflight": (),
    "onehop_registered_bytes": (),
    "onehop_imported_bytes": (),
}


def leaves(value, depth):
    """The values of a metric by the values of its labels."""
    if depth == 0:
        return {(): value}
    return {
        (label, *rest): leaf
        for label, inner in value.items()
        for rest, leaf in leaves(inner, depth - 1).items()
    }


def moved(direction, op, name="onehop_bytes_total"):
    """What was moved by each path."""
    paths = onehop.metrics()[name].get(direction, {})
    return collections.Counter({path: of_op[op] for path, of_op in paths.items() if op in of_op})


def errors(status):
    return onehop.metrics()["onehop_errors_total"][status]


def test_every_metric_is_there_before_anything_is_moved():
    metrics = onehop.metrics()
    assert set(metrics) == set(LABELS)
    assert "OH_ERR_TIMEOUT" in metrics["onehop_errors_total"]
    assert set(metrics["onehop_peer_lost_total"]) == {"closed", "died", "protocol", "failed"}
    assert "no_single_copy" in metrics["onehop_fallback_total"]


def test_the_text_parses_and_says_the_same(pair):
    region = pair.endpoints[1].register(onehop.empty(1 << 20))
    remote = pair.first.attach(region.descriptor)
    pair.first.put(bytes(1 << 20), remote).wait(timeout=30)
    pair.first.put_batch(bytes(1000), remote, [0, 100], [0, 500], [50, 60]).wait(timeout=30)
    metrics, text = onehop.metrics(), onehop.prometheus()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, labels in LABELS.items():
        family = families.pop(name.removesuffix("_total"))
        assert family.documentation
        values = leaves(metrics[name], len(labels))
        if family.type == "histogram":
            check_histogram(name, labels, family, values)
            continue
        assert family.type == ("counter" if name.endswith("_total") else "gauge")
        read = {tuple(s.labels[label] for label in labels): s.value for s in family.samples}
        assert read == values
    assert not families


def check_histogram(name, labels, family, values):
    read = collections.defaultdict(lambda: {"buckets": {}})
    for sample in family.samples:
        leaf = read[tuple(sample.labels[label] for label in labels)]
        what = sample.name.removeprefix(name + "_")
        if what == "bucket":
            leaf["buckets"][float(sample.labels["le"])] = sample.value
        else:
            leaf[what] = sample.value
    assert set(read) == set(values)
    assert any(leaf["count"] for leaf in read.values())
    for key, leaf in read.items():
        assert leaf["count"] == values[key]["count"] == leaf["buckets"][math.inf]
        assert leaf["sum"] == pytest.approx(values[key]["sum"])
        assert leaf["buckets"] == pytest.approx(values[key]["buckets"])
        counts = list(leaf["buckets"].values())
        assert counts == sorted(counts)


def test_counters_outlive_their_endpoints_and_gauges_do_not():
    before = onehop.metrics()
    pair = LocalPair()
    region = pair.endpoints[1].register(bytearray(5000))
    sent = moved("sent", "send")
    pair.first.send(bytes(100))
    now = onehop.metrics()
    assert now["onehop_peers"] == before["onehop_peers"] + 2
    assert now["onehop_registered_bytes"] == before["onehop_registered_bytes"] + 5000
    region.deregister()
    for endpoint in pair.endpoints:
        endpoint.close()
    after = onehop.metrics()
    assert after["onehop_peers"] == before["onehop_peers"]
    assert after["onehop_registered_bytes"] == before["onehop_registered_bytes"]
    del pair, region, endpoint
    assert moved("sent", "send") - sent == {"inline": 100}


def test_errors_count_by_their_status(pair):
    before, invalid = errors("OH_ERR_TIMEOUT"), errors("OH_ERR_INVALID")
    with pytest.raises(onehop.TimeoutError):
        pair.first.recv(bytearray(8), timeout=0.01)
    assert errors("OH_ERR_TIMEOUT") == before + 1
    with pytest.raises(onehop.Error):
        pair.first.attach(b"no descriptor")
    assert errors("OH_ERR_INVALID") == invalid + 1


def test_ends_of_lists_are_no_errors(pair):
    before = errors("OH_ERR_RANGE")
    onehop.config()
    onehop.paths(pair.first)
    onehop.info()
    assert errors("OH_ERR_RANGE") == before


def put_into(side):
    remote = side.peer.attach(side.take())
    for size in SIZES:
        side.peer.put(bytearray(size), remote[:size]).wait(timeout=30)
    side.peer.send(bytes(500))
    metrics = onehop.metrics()
    assert metrics["onehop_imported_bytes"] >= 1 << 20
    assert metrics["onehop_transfer_seconds"]["shm"]["put"]["count"] == 2  # 128 KiB and more
    side.sync()
    return dict(moved("sent", "put")), dict(moved("sent", "send"))


def be_put_into(side):
    region = side.endpoint.register(onehop.empty(1 << 20))
    side.give(region.descriptor)
    side.peer.recv(bytearray(500))
    side.sync()
    assert not moved("received", "put")  # our processor had no part in it
    return dict(moved("received", "recv"))


def test_counters_are_the_bytes_between_two_processes():
    (puts, sends), receives = run_pair(put_into, be_put_into)
    assert puts == {"shm": sum(SIZES)}
    assert sends == receives
    assert sum(sends.values()) == 500
