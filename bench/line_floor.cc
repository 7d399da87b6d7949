// SPDX-License-Identifier: Apache-2.0
#include "line_floor.h"

#include <algorithm>

#include "kernels.h"

namespace bench {
namespace {

constexpr size_t kLine = 16;
constexpr size_t kPayload = 12;
constexpr size_t kBlockThreads = 512;
// All blocks of a receive must find room: they wait.
constexpr size_t kMostBlocks = 128;
// Where the payload that was received lies, behind the payload to send.
constexpr size_t kAlignment = 256;

size_t lines_of(size_t size) { return (size + kPayload - 1) / kPayload; }
size_t room_of(size_t size) {
  return (lines_of(size) * kPayload + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

LineFloor::LineFloor(int number, const std::string& device, size_t largest)
    : MappedPair(number, device, {2 * room_of(largest), lines_of(largest) * kLine}),
      words_(device_, Memory::kCuda, sizeof(LineCount) + sizeof(Findings)) {}

void LineFloor::reset() {
  for (const GpuBlock* block : {&out_, &in_, &words_}) {
    BENCH_CUDA(device_.driver(), memset8_async, address_of(block->data()), 0, block->size(),
               device_.stream());
  }
  device_.synchronize();
  meeting_.sync();
}

Outcome LineFloor::latency(const Spec& spec) {
  Current current(device_);
  const Kernels kernels(device_);
  reset();
  uint8_t* received = out_.data() + room_of(spec.size);
  uint8_t* findings = words_.data() + sizeof(LineCount);
  const size_t lines = lines_of(spec.size);
  LineArgs args{address_of(in_.data()), theirs_, address_of(words_.data()), lines, {}};
  args.payload = {address_of(out_.data()),
                  address_of(received),
                  spec.size,
                  address_of(findings),
                  static_cast<uint32_t>(number_),
                  0,
                  0,
                  0};
  auto sync = [&] { meeting_.sync(); };
  if (spec.mode == Mode::kKernel) {
    cuda::Function plain = kernels.find("bench_line_pingpong");
    cuda::Function checked = kernels.find("bench_line_pingpong_checked");
    auto launch = [&](bool check_bytes, uint32_t rounds, bool corrupt) {
      args.payload.rounds = rounds;
      args.payload.corrupt = corrupt;
      kernels.launch(check_bytes ? checked : plain, 1, static_cast<unsigned>(spec.threads), args);
    };
    return kernel_latency(spec, number_, {device_, findings, sync, launch});
  }
  const size_t threads = std::clamp<size_t>((lines + 31) / 32 * 32, 32, kBlockThreads);
  const size_t blocks = std::min((lines + threads - 1) / threads, kMostBlocks);
  cuda::Function send = kernels.find("bench_line_send");
  cuda::Function receive = kernels.find("bench_line_recv");
  auto enqueue = [&](cuda::Function kernel) {
    kernels.launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), args);
  };
  return stream_latency(spec, {device_,
                               number_,
                               out_.data(),
                               received,
                               sync,
                               [&] { enqueue(send); },
                               [&] { enqueue(receive); },
                               {},
                               {}});
}

}  // namespace bench
