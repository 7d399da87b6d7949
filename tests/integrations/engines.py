# SPDX-License-Identifier: Apache-2.0
"""Handles of engine processes: start, generate, kill. Every wait has a deadline."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
START_SECONDS = 300
# vLLM's handshake waits 5 s for an answer; the rest is room for a loaded machine.
REQUEST_SECONDS = 120
END_SECONDS = 60


def free_port() -> int:
    """A port below those that the kernel gives to connections: an engine binds it seconds later."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Engine:
    """A vLLM engine in a process of its own; see engine.py for the commands."""

    def __init__(self, name, model, connector, role, environment, log, **extra):
        self.name, self.log = name, log
        self.done, self.buffer = {}, b""
        read, write = os.pipe()
        self.answers = read
        command = [sys.executable, str(HERE / "engine.py"), str(model), connector, role]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, str(free_port()), str(write), json.dumps(extra)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[write],
            )
        os.close(write)
        self.library = None

    def wait_ready(self) -> "Engine":
        self.library = self._wait("ready", START_SECONDS)["library"]
        return self

    def start(self, name, prompt, params=None, max_tokens=16) -> None:
        self._send(op="generate", id=name, prompt=prompt, params=params, max_tokens=max_tokens)

    def finish(self, name, seconds=REQUEST_SECONDS) -> dict:
        end = time.monotonic() + seconds
        while name not in self.done:
            self._read(end, f"the end of request {name}")
        return self.done.pop(name)

    def generate(self, name, prompt, params=None, max_tokens=16, seconds=REQUEST_SECONDS) -> dict:
        self.start(name, prompt, params, max_tokens)
        return self.finish(name, seconds)

    def abort(self, name) -> None:
        self._send(op="abort", id=name)

    def wrong_blocks(self, on: bool) -> None:
        self._send(op="wrong_blocks", on=on)
        self._wait("wrong_blocks", REQUEST_SECONDS)

    def state(self) -> dict:
        self._send(op="state")
        return self._wait("state", REQUEST_SECONDS)

    def wait_idle(self, seconds=REQUEST_SECONDS) -> float:
        """Waits until no request, delayed sends included, holds a block; the seconds it took."""
        begin = time.monotonic()
        while (state := self.state())["requests"]:
            if time.monotonic() - begin > seconds:
                raise TimeoutError(f"{self.name} still has requests after {seconds} s: {state}")
            time.sleep(0.05)
        return time.monotonic() - begin

    def signal(self, number) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> int | None:
        """Ends the process; its exit code, or None if it had to be killed."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.close()
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # all stacks into the log
            time.sleep(1)
            self.kill()
            return None
        finally:
            os.close(self.answers)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _send(self, **command) -> None:
        self.process.stdin.write((json.dumps(command) + "\n").encode())
        self.process.stdin.flush()

    def _wait(self, event, seconds) -> dict:
        end = time.monotonic() + seconds
        while True:
            seen = self._read(end, event)
            if seen["event"] == event:
                return seen

    def _read(self, end, what) -> dict:
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            data = os.read(self.answers, 1 << 16) if ready else b""
            if not data:
                why = "ended" if ready else "did not answer in time"
                raise AssertionError(
                    f"{self.name} {why}, waiting for {what}; its log ends:\n{self.text()[-6000:]}"
                )
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        seen = json.loads(line)
        if seen["event"] == "done":
            self.done[seen["id"]] = seen
        return seen


CONNECTORS = {"pull": "NixlConnector", "push": "NixlPushConnector"}


class PrefillDecode:
    """Two engines over one connector, and the router between them."""

    def __init__(self, model, mode, environment, folder, **extra):
        self.model, self.mode, self.environment = model, mode, environment
        self.folder, self.extra, self.count = folder, extra, 0
        self.prefill, self.decode = self.engine("prefill"), self.engine("decode")
        self.prefill.wait_ready()
        self.decode.wait_ready()

    def engine(self, side, **extra) -> Engine:
        self.count += 1
        return Engine(
            side,
            self.model,
            CONNECTORS[self.mode],
            {"prefill": "kv_producer", "decode": "kv_consumer"}[side],
            self.environment,
            self.folder / f"{side}.{self.count}.log",
            **(self.extra | extra),
        )

    def prefilled(self, name, prompt) -> dict:
        """Prefills; what the prefill engine tells the decode engine."""
        first = self.prefill.generate(name, prompt, {"do_remote_decode": True}, 1)
        assert first["reason"] == "length", first
        return first["params"]

    def start(self, name, prompt, max_tokens=16) -> None:
        self.decode.start(name, prompt, self.prefilled(name, prompt), max_tokens)

    def generate(self, name, prompt, max_tokens=16, seconds=REQUEST_SECONDS) -> dict:
        self.start(name, prompt, max_tokens)
        return self.decode.finish(name, seconds)

    def close(self) -> list[int | None]:
        return [self.prefill.close(), self.decode.close()]
