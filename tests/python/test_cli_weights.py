# SPDX-License-Identifier: Apache-2.0
"""`onehop bench weights`: its rows, and spoilt bytes."""

import pytest
from command import rows_of, run_onehop

pytest.importorskip("numpy")

SMALL = ("bench", "weights", "--size", "1M", "--tensors", "4", "--rounds", "2")


def test_rows():
    done = run_onehop(*SMALL, "--engines", "1,2", "--prepare", "20,3", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = rows_of(done)
    assert [(row["what"], row["engines"]) for row in found] == [
        ("pull", 1), ("copies", 1), ("pull", 2), ("copies", 2), ("prepare", 1), ("pull of it", 1)
    ]  # fmt: skip
    for row in found:
        assert row["wrong"] == 0
        assert len(row["seconds"]) == 2
        assert min(row["seconds"]) > 0
    assert all(
        row["path"] == "shm" and row["of_copies"] > 0 for row in found if row["what"] == "pull"
    )
    prepare = found[4]
    assert (prepare["tensors"], prepare["publishers"], len(prepare["cpu_seconds"])) == (20, 3, 2)
    assert "by copies" in done.stderr


def test_spoilt_bytes_are_a_fault():
    done = run_onehop(*SMALL, "--engines", "1", "--prepare", "0,0", OH_BENCH_CORRUPT="1")
    assert done.returncode == 1
    assert "bytes were not what the trainer had" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--engines", "x"), "--engines x: give some integers"),
        (("--prepare", "1"), "--prepare 1: give 2 integers"),
        (("--vs", "nccl"), "--vs nccl goes with --memory cuda"),
        (("--vs", "gloo", "--memory", "cuda"), "--vs gloo goes with --memory host"),
        (("--memory", "cuda,host"), "--memory is host or cuda, of all processes"),
        (("--devices", "0,1"), "--devices goes with --memory cuda"),
    ],
)
def test_called_wrongly(arguments, text):
    done = run_onehop(*SMALL, *arguments)
    assert done.returncode == 2
    assert text in done.stderr
