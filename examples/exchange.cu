// SPDX-License-Identifier: Apache-2.0
//
// An application kernel that exchanges messages with the GPU of another process: it computes what
// it sends and uses what arrives, in one launch. Needs two GPUs with access to each other's memory.
//
//   nvcc -std=c++20 -arch=native -I include examples/exchange.cu -L LIBRARY -lonehop -o exchange
//   ./exchange
//
// LIBRARY and the headers of an installed package: python -c "import onehop;
// print(onehop.get_library_dir(), onehop.get_include())". Exits with 0 if all bytes were right.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "onehop/device.cuh"
#include "onehop/onehop.hpp"

namespace {

constexpr int kThreads = 256;
constexpr unsigned kRounds = 100;
constexpr unsigned kWords = 1024;  // per message, 4 bytes each
constexpr uint32_t kLane = 0;

__host__ __device__ unsigned word_of(unsigned rank, unsigned round, unsigned i) {
  return (rank + 1) * 2654435761u ^ round * 40503u ^ i;
}

struct Result {
  int fault;       // oh_lane_fault of the first operation that failed
  unsigned wrong;  // words that differ from those sent
};

// --8<-- [start:kernel]
// One block. Each round sends a message and receives the peer's. A message that fits into the
// lane's ring does not wait for its receiver.
__global__ void exchange(oh_lane_handle lane, unsigned rank, unsigned* out, unsigned* in,
                         Result* result) {
  onehop::BlockGroup block;
  for (unsigned round = 0; round < kRounds; ++round) {
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
      out[i] = word_of(rank, round, i);
      in[i] = 0;
    }
    block.sync();
    oh_lane_fault fault = onehop::send(lane, block, out, kWords * sizeof(unsigned));
    // All threads have the same fault.
    if (fault == OH_LANE_OK) {
      fault = onehop::recv(lane, block, in, kWords * sizeof(unsigned));
    }
    if (fault != OH_LANE_OK) {
      if (threadIdx.x == 0) result->fault = fault;
      return;
    }
    for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
      if (in[i] != word_of(1 - rank, round, i)) atomicAdd(&result->wrong, 1u);
    }
    block.sync();
  }
}
// --8<-- [end:kernel]

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

int run_rank(unsigned rank, const onehop::Bytes& id) {
  CHECK(cudaSetDevice(static_cast<int>(rank)));
  const std::string device = "cuda:" + std::to_string(rank);
  auto options = onehop::detail::sized<oh_comm_options>();
  options.rank = rank;
  options.size = 2;
  options.unique_id = id.data();
  options.unique_id_size = id.size();
  options.timeout_ns = 60'000'000'000;
  options.endpoint = onehop::detail::sized<oh_endpoint_options>();
  options.endpoint.device = device.c_str();
  // --8<-- [start:host]
  onehop::Communicator comm(options);
  onehop::Peer peer = comm.peer(1 - rank);
  const oh_lane_handle lane = peer.device_handle(kLane);  // connects the lanes

  unsigned* buffers = nullptr;
  Result* result = nullptr;
  CHECK(cudaMalloc(&buffers, 2 * kWords * sizeof(unsigned)));
  CHECK(cudaMalloc(&result, sizeof(Result)));
  CHECK(cudaMemset(result, 0, sizeof(Result)));
  // The first launch loads the kernel, which may wait for running kernels: none of ours runs here.
  exchange<<<1, kThreads>>>(lane, rank, buffers, buffers + kWords, result);
  CHECK(cudaGetLastError());
  // --8<-- [end:host]
  Result found{};
  CHECK(cudaMemcpy(&found, result, sizeof(found), cudaMemcpyDeviceToHost));
  comm.barrier();  // no rank leaves while the other still works
  const bool right = found.fault == OH_LANE_OK && found.wrong == 0;
  const char* path = peer.stream_info().path == OH_PATH_NVLINK ? "nvlink" : "another way";
  std::printf("rank %u: %u messages of %zu bytes by %s, fault %d, %u words wrong\n", rank, kRounds,
              kWords * sizeof(unsigned), path, found.fault, found.wrong);
  std::fflush(stdout);
  CHECK(cudaFree(buffers));
  CHECK(cudaFree(result));
  return right ? 0 : 1;
}

int run_caught(unsigned rank, const onehop::Bytes& id) {
  try {
    return run_rank(rank, id);
  } catch (const onehop::Error& failure) {
    std::fprintf(stderr, "rank %u: %s\n", rank, failure.what());
    return 1;
  }
}

}  // namespace

// Two processes, forked before either has used onehop or CUDA.
int main() {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t other = fork();
  if (other < 0) return 1;
  onehop::Bytes id(4096);
  if (other == 0) {
    close(ends[1]);
    const ssize_t got = read(ends[0], id.data(), id.size());
    if (got <= 0) return 1;
    id.resize(static_cast<size_t>(got));
    return run_caught(1, id);
  }
  close(ends[0]);
  int failed = 1;
  try {
    id = onehop::unique_id();
    if (write(ends[1], id.data(), id.size()) == static_cast<ssize_t>(id.size())) {
      failed = run_caught(0, id);
    }
  } catch (const onehop::Error& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
  }
  close(ends[1]);
  int status = 1;
  waitpid(other, &status, 0);
  return failed != 0 || status != 0 ? 1 : 0;
}
