# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefill-decode disaggregation: its own managers, senders and receivers move KV pages.

    python sglang_program.py mooncake|nixl

A prefill process serves one decode process, which is killed between its last registration and the
transfer, and then its successor. The last line is JSON: the file of the engine's library, wrong
pages of each decode process, the state of the transfer to the killed one, and the exit codes.
"""

import importlib.machinery
import json
import multiprocessing
import socket
import sys
import time
import unittest.mock

import numpy as np

LAYERS, PAGES, PAGE = 4, 256, 8192
ROWS, ROW = 32, 512  # of the auxiliary buffer
ROOMS, PER_ROOM = 8, 24
DEATH_ROOM = 1000
SECONDS = 60
FAILED, WAITING_FOR_INPUT, SUCCESS = 0, 2, 4  # KVPoll
HOST = "127.0.0.1"


def content(layer):
    return np.random.default_rng(layer).integers(0, 256, (PAGES, PAGE), np.uint8)


def rows():
    return np.random.default_rng(99).integers(0, 256, (ROWS, ROW), np.uint8)


def pages(seed):
    """The pages of each room, which are of one room only."""
    return np.random.default_rng(seed).permutation(PAGES)[: ROOMS * PER_ROOM].reshape(ROOMS, -1)


def leave_out_torchvision():
    """SGLang imports it for images. Builds of it are for other versions of torch."""
    from transformers import AutoProcessor  # noqa: F401  before the replacement is there

    for name in ("", ".io", ".transforms", ".transforms.functional"):
        module = unittest.mock.MagicMock(name=f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(f"torchvision{name}", None)
        module.__path__ = []
        sys.modules[f"torchvision{name}"] = module


def arguments_of(buffers, aux):
    from sglang.srt.disaggregation.base.conn import KVArgs

    args = KVArgs()
    args.kv_data_ptrs = [buffer.ctypes.data for buffer in buffers]
    args.kv_data_lens = [buffer.nbytes for buffer in buffers]
    args.kv_item_lens = [PAGE] * LAYERS
    args.kv_layer_ids = list(range(LAYERS))
    args.kv_data_mem_kinds = ["DRAM"] * LAYERS  # read by the manager of NIXL
    args.kv_cache_dtype_str = "auto"
    args.aux_data_ptrs, args.aux_data_lens = [aux.ctypes.data], [aux.nbytes]
    args.aux_item_lens = [ROW]
    for name in ("types", "data_ptrs", "data_lens", "item_lens", "layer_ids", "dim_per_tensor",
                 "slice_outer_counts", "conv_shard_groups"):  # fmt: skip
        setattr(args, f"state_{name}", [])
    args.swa_kv_cache_layout = args.rust_http_port = args.mla_compression_ratios = None
    args.engine_rank = args.gpu_id = args.system_dp_rank = args.pp_rank = args.kv_buf_groups = 0
    args.is_hybrid_mla_backend, args.ib_device = False, ""
    args.kv_head_num = args.total_kv_head_num = 1
    args.page_size = 16
    args.prefill_start_layer, args.prefill_end_layer = 0, LAYERS
    return args


class Engine:
    """What a scheduler of SGLang has of the disaggregation, with buffers in main memory."""

    def __init__(self, backend, mode, port):
        leave_out_torchvision()
        from sglang.srt.disaggregation.utils import (
            DisaggregationMode,
            KVClassType,
            TransferBackend,
            get_kv_class,
        )
        from sglang.srt.distributed.device_communicators import mooncake_transfer_engine
        from sglang.srt.runtime_context import get_context, get_parallel

        settings = get_context().override_server_args(
            device="cpu", host=HOST, disaggregation_mode=mode,
            disaggregation_bootstrap_port=port, disaggregation_transfer_backend=backend,
        ).install()  # fmt: skip
        ranks = ("tp_rank", "attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "attn_dcp_rank")
        get_parallel().override_permanently(pp_rank=0, pp_group=None, **dict.fromkeys(ranks, 0))
        which = {
            kind.name: get_kv_class(TransferBackend(backend), kind)
            for kind in (KVClassType.MANAGER, KVClassType.SENDER, KVClassType.RECEIVER)
        }
        self.sender, self.receiver = which["SENDER"], which["RECEIVER"]
        self.address = f"{HOST}:{port}"
        self.kv = [np.zeros((PAGES, PAGE), np.uint8) for _ in range(LAYERS)]
        self.aux = np.zeros((ROWS, ROW), np.uint8)
        if mode == "prefill":
            server = get_kv_class(TransferBackend(backend), KVClassType.BOOTSTRAP_SERVER)
            self.server = server(HOST, port)  # the manager's registration is repeated until it runs
        if backend == "mooncake":
            mooncake_transfer_engine.init_mooncake_transfer_engine(HOST, 0, None)
        self.manager = which["MANAGER"](
            arguments_of(self.kv, self.aux), DisaggregationMode(mode), settings, False
        )

    def library(self, backend):
        if backend == "nixl":
            return sys.modules[type(self.manager.agent).__module__].__file__
        return sys.modules[type(self.manager.engine.engine).__module__].__file__


def until(transfers, *wanted):
    """Poll until each transfer is in one of these states; return the states."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        states = [int(transfer.poll()) for transfer in transfers]
        if set(states) <= set(wanted):
            return states
        time.sleep(0.002)
    raise TimeoutError(f"after {SECONDS} s the states are {states}, not of {wanted}")


def hear(connection):
    assert connection.poll(2 * SECONDS), f"nothing is said for {2 * SECONDS} s"
    return connection.recv()


def prefill(backend, port, connection):
    engine = Engine(backend, "prefill", port)
    for layer, buffer in enumerate(engine.kv):
        buffer[:] = content(layer)
    engine.aux[:] = rows()
    connection.send(engine.library(backend))
    while (order := hear(connection)) is not None:
        rooms, source = order
        senders = [engine.sender(engine.manager, engine.address, room) for room in rooms]
        until(senders, WAITING_FOR_INPUT)
        connection.send("ready")
        hear(connection)  # the killed decode process is gone
        for number, (sender, own) in enumerate(zip(senders, source, strict=True)):
            sender.init(len(own), number)
            for part in np.array_split(own.astype(np.int32), 3):
                sender.send(part)
        states = until(senders, SUCCESS, FAILED)
        for sender in senders:
            sender.clear()
        connection.send(states)


def decode(backend, port, connection):
    engine = Engine(backend, "decode", port)
    assert engine.manager.try_ensure_parallel_info(engine.address)
    rooms, target = hear(connection)
    receivers = []
    for number, (room, own) in enumerate(zip(rooms, target, strict=True)):
        receivers.append(engine.receiver(engine.manager, engine.address, room))
        receivers[-1].init(0)
        receivers[-1].send_metadata(own.astype(np.int32), ROWS - 1 - number)
    states = until(receivers, SUCCESS, FAILED)
    source, wrong = pages(1), 0
    for layer, buffer in enumerate(engine.kv):
        expected = np.zeros_like(buffer)
        expected[target.ravel()] = content(layer)[source.ravel()]
        wrong += int((buffer != expected).any(axis=1).sum())
    expected = np.zeros_like(engine.aux)
    for number in range(len(rooms)):
        expected[ROWS - 1 - number] = rows()[number]
    wrong += int((engine.aux != expected).any(axis=1).sum())
    for receiver in receivers:
        receiver.clear()
    connection.send((states, wrong))
    hear(connection)


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def left(process):
    process.join(SECONDS)
    return process.exitcode


def main(backend):
    context = multiprocessing.get_context("spawn")
    port = free_port()

    def begin(role):
        ours, theirs = context.Pipe()
        process = context.Process(target=role, args=(backend, port, theirs), daemon=True)
        process.start()
        return process, ours

    sender, first = begin(prefill)
    seen = {"library": hear(first), "decodes": [], "exits": []}
    for number, killed in enumerate((False, True, False)):
        rooms = [DEATH_ROOM] if killed else [ROOMS * number + room for room in range(ROOMS)]
        process, second = begin(decode)
        count = len(rooms)
        second.send((rooms, pages(2 + number)[:count]))
        first.send((rooms, pages(1)[:count]))
        assert hear(first) == "ready"
        if killed:
            process.kill()
            process.join()
        first.send("go")
        states = hear(first)
        if killed:
            seen["killed"] = states
            continue
        theirs, wrong = hear(second)
        seen["decodes"].append({"sent": states, "received": theirs, "wrong": wrong})
        second.send("end")
        seen["exits"].append(left(process))
    first.send(None)
    if backend == "mooncake":  # over NIXL a thread of SGLang's manager never ends
        seen["exits"].append(left(sender))
    sender.kill()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
