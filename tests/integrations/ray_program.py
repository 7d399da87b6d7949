# SPDX-License-Identifier: Apache-2.0
"""Ray Direct Transport with tensor_transport="nixl" and CPU tensors; prints {step: outcome}."""

import json
import os
import sys

import ray
import torch

SECONDS = 120


@ray.remote(num_cpus=1)
class Holder:
    def library(self):
        from nixl._api import nixl_agent

        return sys.modules[nixl_agent.__module__].__file__

    @ray.method(tensor_transport="nixl")
    def make(self, size):
        return torch.arange(size, dtype=torch.float32)

    @ray.method(tensor_transport="nixl")
    def make_many(self):
        return {
            "weights": [torch.full((i + 1, 3), float(i)) for i in range(40)],
            "ids": torch.arange(1000, dtype=torch.int64),
            "flag": torch.tensor([True, False]),
            "half": torch.full((17,), 1.5, dtype=torch.bfloat16),
        }

    def put(self, value):
        tensor = torch.full((1 << 18,), value)
        return ray.put(tensor, _tensor_transport="nixl")

    def put_views(self):
        whole = torch.arange(1 << 16, dtype=torch.float32).reshape(256, 256)
        return ray.put([whole[row] for row in (200, 3, 77)], _tensor_transport="nixl")

    def total(self, tensor):
        return float(tensor.sum())

    def check_many(self, value):
        weights = all(bool((w == i).all()) for i, w in enumerate(value["weights"]))
        return (
            weights
            and value["ids"].tolist() == list(range(1000))
            and value["flag"].tolist() == [True, False]
            and bool((value["half"] == 1.5).all())
        )

    def fetch(self, refs):
        return float(ray.get(refs[0]).sum())

    def fetch_rows(self, refs):
        return [float(row[0]) for row in ray.get(refs[0])]

    def pid(self):
        return os.getpid()


def main():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    holder, user = Holder.remote(), Holder.remote()
    steps = {}
    steps["library"] = ray.get([holder.library.remote(), user.library.remote()], timeout=SECONDS)
    size = 1 << 20
    steps["method"] = ray.get(
        user.total.remote(holder.make.remote(size)), timeout=SECONDS
    ) == float(torch.arange(size, dtype=torch.float32).sum())
    steps["tree"] = ray.get(user.check_many.remote(holder.make_many.remote()), timeout=SECONDS)
    # Memory is registered and deregistered again and again: the metadata's version changes.
    steps["again"] = [
        ray.get(user.total.remote(holder.make.remote(1000 + i)), timeout=SECONDS)
        == float(torch.arange(1000 + i, dtype=torch.float32).sum())
        for i in range(20)
    ]
    ref = ray.get(holder.put.remote(2.0), timeout=SECONDS)
    steps["put"] = ray.get(user.fetch.remote([ref]), timeout=SECONDS) == 2.0 * (1 << 18)
    rows = ray.get(holder.put_views.remote(), timeout=SECONDS)
    steps["views"] = ray.get(user.fetch_rows.remote([rows]), timeout=SECONDS)
    both = [user.make.remote(5000), holder.make.remote(6000)]
    steps["both ways"] = ray.get(
        [holder.total.remote(both[0]), user.total.remote(both[1])], timeout=SECONDS
    )

    # The holder dies with the only copy.
    lost = ray.get(holder.put.remote(3.0), timeout=SECONDS)
    os.kill(ray.get(holder.pid.remote(), timeout=SECONDS), 9)
    try:
        steps["holder killed"] = ray.get(user.fetch.remote([lost]), timeout=SECONDS)
    except ray.exceptions.GetTimeoutError:
        steps["holder killed"] = "hangs"
    except Exception as error:  # the outcome
        steps["holder killed"] = "raises"
        print(f"holder killed: {type(error).__name__}: {error}", file=sys.stderr)
    # The one that lives goes on with a new partner.
    fresh = Holder.remote()
    steps["after the kill"] = ray.get(user.total.remote(fresh.make.remote(100)), timeout=SECONDS)
    ray.shutdown()
    print(json.dumps(steps), flush=True)


if __name__ == "__main__":
    main()
