# SPDX-License-Identifier: Apache-2.0
"""`onehop bench compare`: two files of rows."""

import json

import pytest
from command import rows_of, run_onehop


def row(size, p50, **more):
    known = {"op": "latency", "api": "c", "mode": "sendrecv", "memory": "host", "path": "shm"}
    return {**known, "size": size, "p50_us": p50, "p99_us": 2 * p50, "wrong": 0, **more}


@pytest.fixture
def files(tmp_path):
    """Write files; return their names."""

    def write(*contents):
        paths = []
        for number, rows in enumerate(contents):
            paths.append(tmp_path / f"{number}.json")
            paths[-1].write_text("".join(json.dumps(one) + "\n" for one in rows))
        return [str(path) for path in paths]

    return write


def test_the_medians_of_the_runs_are_compared(files):
    before = [row(8, p50) for p50 in (1.0, 1.1, 0.9, 1.0, 1.0)]
    after = [row(8, p50) for p50 in (2.0, 2.2, 1.8, 2.0, 9.0)]
    done = run_onehop("bench", "compare", *files(before, after), "--json", "-")
    assert done.returncode == 0, done.stderr
    (found,) = rows_of(done)
    assert found["row"] == {
        "op": "latency", "api": "c", "mode": "sendrecv", "memory": "host", "size": 8
    }  # fmt: skip
    assert (found["before_us"], found["after_us"]) == (1.0, 2.0)
    assert (found["before_runs"], found["after_runs"]) == (5, 5)
    assert found["ratio"] == 2.0
    assert 1.5 < found["low"] <= 2.0 <= found["high"] <= 10.0
    assert "2.000" in done.stderr


def test_rows_are_told_apart_by_what_was_asked_for(files):
    before = [row(8, 1.0), row(8, 2.0, window=16), row(64, 3.0, path="inline"), row(1, 1.0)]
    after = [row(8, 1.0, window=16), row(64, 3.0), row(8, 1.5), row(2, 1.0), row(3, 1.0)]
    done = run_onehop("bench", "compare", *files(before, after), "--json", "-")
    found = {(one["row"]["size"], one["row"].get("window")): one for one in rows_of(done)}
    assert {key: one["ratio"] for key, one in found.items()} == {
        (8, None): 1.5,
        (8, 16): 0.5,
        (64, None): 1.0,
    }
    assert found[64, None]["path"] == "inline to shm"
    # One run says nothing about how they scatter.
    assert all(one["low"] is None and one["high"] is None for one in found.values())
    assert ".json: 1" in done.stderr
    assert ".json: 2" in done.stderr
    assert "the files differ" not in done.stderr


def test_few_runs_have_no_interval(files):
    done = run_onehop(
        "bench", "compare", *files([row(8, 1.0)] * 5, [row(8, 2.0)] * 4), "--json", "-"
    )
    assert rows_of(done)[0]["low"] is None


def test_another_machine_is_told(files):
    before, after = (row(8, 1.0, provenance={"cpu": cpu, "kernel": "6"}) for cpu in ("a", "b"))
    done = run_onehop("bench", "compare", *files([before], [after]))
    assert "the files differ in cpu: a; b" in done.stdout
    assert "differ in kernel" not in done.stdout


def test_rows_with_wrong_bytes_are_refused(files):
    done = run_onehop("bench", "compare", *files([row(8, 1.0)], [row(8, 1.0, wrong=3)]))
    assert done.returncode == 1
    assert "line 1: 3 bytes were wrong" in done.stderr


@pytest.mark.parametrize(
    ("runs", "code"),
    [((1.2, 1.3, 1.2, 1.2, 1.3), 1), ((0.9, 0.9, 1.3, 1.2, 1.3), 0), ((1.2,), 1), ((1.05,), 0)],
)
def test_a_limit(files, runs, code):
    """With five runs or more the whole interval has to be above it."""
    before = [row(8, 1.0) for _ in runs]
    after = [row(8, p50) for p50 in runs]
    done = run_onehop("bench", "compare", *files(before, after), "--most", "1.1")
    assert done.returncode == code, done.stderr
    assert ("1 of 1 rows take more than 1.1 of the time before" in done.stderr) == (code == 1)


def test_a_file_of_the_benchmark(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path in paths:
        arguments = ("--sizes", "8,64K", "--iters", "20", "--json", path)
        assert run_onehop("bench", "latency", *arguments).returncode == 0
    done = run_onehop("bench", "compare", *paths, "--json", "-")
    assert [one["row"]["size"] for one in rows_of(done)] == [8, 65536]
    assert all(one["ratio"] > 0 for one in rows_of(done))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no rows\n", "line 1 is no JSON"),
        ("", "has no row with a p50_us"),
        ('{"what": "pull", "seconds": [1.0]}\n[]\n', "has no row with a p50_us"),
        (json.dumps(row(9, 1.0)), "have no row in common"),
    ],
)
def test_files_of_something_else(files, tmp_path, text, said):
    (good,) = files([row(8, 1.0)])
    bad = tmp_path / "bad"
    bad.write_text(text)
    done = run_onehop("bench", "compare", good, str(bad))
    assert done.returncode == 1
    assert said in done.stderr


def test_a_file_that_is_not_there(files):
    (good,) = files([row(8, 1.0)])
    done = run_onehop("bench", "compare", good, good + ".none")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
