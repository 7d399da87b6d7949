# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine as a process: JSON lines with commands on standard input, answers on a pipe.

    python engine.py MODEL CONNECTOR ROLE SIDE_CHANNEL_PORT ANSWERS_FD EXTRA_CONFIG

The engine core runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0). As in vLLM's own busy loop,
it is stepped while the scheduler has requests, delayed sends included.
"""

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time


def answer(fd: int, **fields) -> None:
    os.write(fd, (json.dumps(fields) + "\n").encode())


def read_commands(commands: queue.Queue) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"op": "exit"})


class WrongBlocks:
    """Reverses the remote descriptors of `make_prepped_xfer`."""

    def __init__(self, agent):
        self.agent, self.original = agent, agent.make_prepped_xfer

    def set(self, on: bool) -> None:
        self.agent.make_prepped_xfer = self.reversed if on else self.original

    def reversed(self, operation, local, local_indices, remote, remote_indices, *args, **more):
        return self.original(
            operation, local, local_indices, remote, remote_indices[::-1].copy(), *args, **more
        )


def main() -> None:
    model, connector, role, port, fd, extra = sys.argv[1:7]
    fd = int(fd)
    faulthandler.register(signal.SIGUSR1)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": port,
    }
    from tiny_model import ENGINE
    from vllm import EngineArgs, LLMEngine, SamplingParams, TokensPrompt
    from vllm.config import KVTransferConfig

    config = KVTransferConfig(
        kv_connector=connector, kv_role=role, kv_buffer_device="cpu", **json.loads(extra)
    )
    engine = LLMEngine.from_engine_args(EngineArgs(model, kv_transfer_config=config, **ENGINE))
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector_worker = get_kv_transfer_group().connector_worker
    agent = connector_worker.nixl_wrapper
    wrong_blocks = WrongBlocks(agent)
    commands: queue.Queue = queue.Queue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    answer(fd, event="ready", library=sys.modules[type(agent).__module__].__file__)

    while True:
        try:
            command = commands.get(block=not scheduler.has_requests())
        except queue.Empty:
            command = {"op": "step"}
        match command["op"]:
            case "exit":
                break
            case "generate":
                sampling = SamplingParams(
                    temperature=0,
                    max_tokens=command["max_tokens"],
                    ignore_eos=True,
                    detokenize=False,
                    extra_args={"kv_transfer_params": command["params"]}
                    if command["params"]
                    else None,
                )
                engine.add_request(
                    command["id"], TokensPrompt(prompt_token_ids=command["prompt"]), sampling
                )
            case "abort":
                engine.abort_request([command["id"]])
            case "wrong_blocks":
                wrong_blocks.set(command["on"])
                answer(fd, event="wrong_blocks", on=command["on"])
            case "state":
                answer(
                    fd,
                    event="state",
                    requests=len(scheduler.requests),
                    free=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                )
        if not scheduler.has_requests():
            continue
        for output in engine.step():
            if output.finished:
                answer(
                    fd,
                    event="done",
                    id=output.request_id,
                    tokens=list(output.outputs[0].token_ids),
                    reason=output.outputs[0].finish_reason,
                    params=output.kv_transfer_params,
                )
        time.sleep(0.001)


if __name__ == "__main__":
    main()
