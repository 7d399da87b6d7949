# SPDX-License-Identifier: Apache-2.0
"""The other side of the transfers: a process with an agent and 1 MiB of its memory."""

import multiprocessing

from outcomes import MIB, SECONDS, memory, until


class Target:
    """The other process: an agent and 1 MiB of its memory."""

    def __init__(self):
        from nixl._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent("target", nixl_agent_config())
        self.data, self.address = memory(MIB)
        self.second, _ = memory(MIB)
        self.registered = self.agent.register_memory([(self.address, MIB, 0, "")], "DRAM")

    def metadata(self):
        return self.agent.get_agent_metadata(), self.address

    def more(self):
        self.agent.register_memory([(self.second.ctypes.data, MIB, 0, "")], "DRAM")
        return self.agent.get_agent_metadata(), self.second.ctypes.data

    def partial(self):
        descs = self.agent.get_reg_descs([(self.address, MIB, 0, "")], "DRAM")
        return self.agent.get_partial_agent_metadata(descs, inc_conn_info=True)

    def read(self, begin, end):
        return self.data[begin:end].tobytes()

    def fill(self, value):
        self.data[:] = value

    def notifications(self, count, seconds=SECONDS):
        """The first `count` notifications as (sender, message), or what came by the deadline."""
        got = []

        def poll():
            for sender, messages in self.agent.get_new_notifs().items():
                got.extend((sender, message) for message in messages)
            return len(got) >= count

        until(poll, seconds)
        return got

    def check_done(self, sender, tag, tag_is_prefix):
        return until(
            lambda: self.agent.check_remote_xfer_done(sender, tag, tag_is_prefix=tag_is_prefix), 5
        )

    def updated(self):
        return self.agent.update_notifs()

    def deregister(self):
        self.agent.deregister_memory(self.registered)


def serve(connection):
    target = Target()
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, getattr(target, name)(*arguments)))
        except Exception as error:  # told to the caller
            connection.send((False, f"{type(error).__name__}: {error}"))


class Remote:
    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def __getattr__(self, name):
        def call(*arguments):
            self.connection.send((name, arguments))
            if not self.connection.poll(2 * SECONDS):
                raise TimeoutError(f"the target does not answer {name}")
            fine, value = self.connection.recv()
            if not fine:
                raise RuntimeError(value)
            return value

        return call
