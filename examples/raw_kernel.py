# SPDX-License-Identifier: Apache-2.0
"""Two processes whose kernels, compiled here from a string, send to each other's GPU.

python raw_kernel.py: needs PyTorch and two GPUs that reach each other's memory. The kernel is
compiled by NVRTC, which PyTorch brings, and launched by the driver; cupy.RawKernel takes the same
source, and the handle as a numpy scalar of 128 bytes. Exits with 0 if all bytes were right.
"""

import ctypes
import multiprocessing
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import onehop

SOURCE = r"""
#include "onehop/device.cuh"

extern "C" __global__ void exchange(oh_lane_handle lane, const unsigned char* out,
                                    unsigned char* in, unsigned long long bytes, int* fault) {
  onehop::BlockGroup block;
  oh_lane_fault sent = onehop::send(lane, block, out, bytes);
  oh_lane_fault received = onehop::recv(lane, block, in, bytes);
  if (threadIdx.x == 0) *fault = sent != OH_LANE_OK ? sent : received;
}
"""
Call = Callable[..., int]
SIZE = 10_000  # small enough for the lane's ring without a receiver: see stream_info()
STEPS = 10


def load_nvrtc() -> ctypes.CDLL:
    """Return NVRTC: PyTorch's, or the system's."""
    # NVIDIA's packages use either folder. The compiler loads its built-ins by name.
    folders = [pathlib.Path(path) / "nvidia" for path in sys.path]
    for folder in folders:
        for path in sorted(folder.glob("c*/lib/libnvrtc.so.*")):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    msg = "NVRTC is not there: pip install nvidia-cuda-nvrtc"
    raise SystemExit(msg)


def compile_kernel(source: str, architecture: str, folders: Sequence[str] = ()) -> bytes:
    """Return the code of the source for an architecture, such as "sm_90".

    `folders` are where further headers are, CUDA's own for instance.
    """
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"exchange.cu", 0, None, None
    )
    assert code == 0, f"nvrtcCreateProgram: {code}"
    options = [f"--gpu-architecture={architecture}", "-std=c++17"]
    options += [f"-I{folder}" for folder in (onehop.get_include(), *folders)]
    given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    text = take(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    assert failed == 0, text.decode()
    return take(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)


def take(program: ctypes.c_void_p, get_size: Call, get: Call) -> bytes:
    """Return what NVRTC has of a program."""
    size = ctypes.c_size_t()
    assert get_size(program, ctypes.byref(size)) == 0
    room = ctypes.create_string_buffer(size.value)
    assert get(program, room) == 0
    return room.raw


class Kernel:
    """A kernel in the context that is current, PyTorch's."""

    def __init__(self, image: bytes, name: str) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(self.module), image))
        self.check(
            self.driver.cuModuleGetFunction(ctypes.byref(self.function), self.module, name.encode())
        )

    def check(self, code: int) -> None:
        """Stop at an error of the driver."""
        assert code == 0, f"the driver refused with {code}"

    def launch(self, stream: int, threads: int, *arguments: Any) -> None:  # noqa: ANN401
        """Launch one block; the driver copies the arguments before it returns."""
        pointers = [ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in arguments]
        params = (ctypes.c_void_p * len(pointers))(*pointers)
        one = ctypes.c_uint(1)
        shape = (one, one, one, ctypes.c_uint(threads), one, one, ctypes.c_uint(0))
        stream_of = ctypes.c_void_p(stream)
        self.check(self.driver.cuLaunchKernel(self.function, *shape, stream_of, params, None))


def expected(rank: int, step: int) -> Any:  # noqa: ANN401
    """Bytes that differ from step to step, and from rank to rank."""
    import torch

    return ((torch.arange(SIZE) * 7 + 31 * step + 101 * rank) % 251).to(torch.uint8)


def run(rank: int, identity: bytes) -> None:
    """Exchange messages with the other rank, on the GPU of the same number."""
    import torch

    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")  # creates the context
    major, minor = torch.cuda.get_device_capability()
    kernel = Kernel(compile_kernel(SOURCE, f"sm_{major}{minor}"), "exchange")
    with onehop.Communicator(rank, 2, unique_id=identity, device=rank, timeout=60) as comm:
        peer = comm.peer(1 - rank)
        # The 128 bytes of oh_lane_handle, by value: launches use the same arguments.
        lane = (ctypes.c_char * 128).from_buffer_copy(bytes(peer.device_handle(0)))
        out = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        into = torch.empty_like(out)
        fault = torch.full((1,), -1, dtype=torch.int32, device="cuda")
        addresses = [ctypes.c_void_p(one.data_ptr()) for one in (out, into, fault)]
        stream = torch.cuda.current_stream().cuda_stream
        for step in range(STEPS):
            out.copy_(expected(rank, step))
            into.fill_(0xEE)
            kernel.launch(
                stream, 256, lane, addresses[0], addresses[1], ctypes.c_uint64(SIZE), addresses[2]
            )
            assert fault.item() == 0, f"fault {fault.item()} in step {step}"
            assert torch.equal(into.cpu(), expected(1 - rank, step)), f"wrong bytes in step {step}"
        comm.barrier()
        path = peer.stream_info().path
        print(f"rank {rank}: {STEPS} messages of {SIZE} bytes by {path}, all right", flush=True)


def main() -> int:
    """Run both ranks, a process each."""
    context = multiprocessing.get_context("spawn")
    identity = onehop.unique_id()
    ranks = [context.Process(target=run, args=(rank, identity)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return 0 if all(process.exitcode == 0 for process in ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
