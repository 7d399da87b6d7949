// SPDX-License-Identifier: Apache-2.0
//
// Two sides of one link, for the conformance tests: two threads of one process, or two processes. A
// test is two functions, one per side, which synchronise by sync().
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/device_memory.h"
#include "onehop/onehop.hpp"

namespace conformance {

// One kind of link, the parameter of the suite.
struct LinkKind {
  std::string name;
  bool processes = true;                        // false: two threads of this process
  std::map<std::string, std::string> env = {};  // ONEHOP_* of both sides
  oh_path path = OH_PATH_SHM;                   // of messages that are not inline
  // Memory kind of each side's buffers.
  MemoryKind memory[2] = {MemoryKind::kPrivate, MemoryKind::kPrivate};
  // Device of each side's endpoint; -1: none, for host memory.
  int device[2] = {-1, -1};
  std::string driver = {};  // the driver library; empty: the real one
  // Whether the sides have a shared-memory segment; otherwise frames travel over the network.
  bool shares_memory() const { return path != OH_PATH_SOCKET && path != OH_PATH_UCX; }
  // Whether either endpoint has a GPU.
  bool on_gpu() const { return device[0] >= 0 || device[1] >= 0; }
  // The path of host memory, whatever the buffers are.
  oh_path host_path() const {
    if (!on_gpu() || !shares_memory()) return path;
    return processes ? OH_PATH_SHM : OH_PATH_LOCAL;
  }
  // Path of puts and gets by side 0, if it differs from `path`.
  std::optional<oh_path> put_path = {};
  oh_path one_sided_path() const { return put_path.value_or(path); }
  // Switches an alternative path table on or off, for the links of a test.
  void (*use_paths)(bool use) = nullptr;
  // Whether the path taken is the expected one; a GPU's worker may replace it if enabled.
  bool takes(oh_path taken, oh_path expected) const {
    return taken == expected || (taken == OH_PATH_WORKER && env.count("ONEHOP_WORKER") != 0);
  }

  LinkKind with(MemoryKind kind) const {
    LinkKind other = *this;
    other.memory[0] = other.memory[1] = kind;
    return other;
  }
};

inline void PrintTo(const LinkKind& kind, std::ostream* out) { *out << kind.name; }

// Returns the bytes that Buffer::fill() writes.
onehop::Bytes pattern(uint64_t seed, size_t size);

// A buffer of the kind under test. Tests read it only through bytes() and at(), since it may be
// device memory.
class Buffer {
 public:
  Buffer(size_t size, MemoryKind kind);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  uint8_t* data() { return data_; }
  size_t size() const { return size_; }
  onehop::Bytes bytes() const;
  uint8_t at(size_t index) const;
  // Fills it with bytes that depend on the seed and the position.
  void fill(uint64_t seed);
  void poison();
  // Whether the first `size` bytes match the seed.
  ::testing::AssertionResult holds(uint64_t seed, size_t size) const;
  // Whether all bytes from the position on are as poison() left them.
  ::testing::AssertionResult is_poisoned(size_t from = 0) const;

 private:
  void set(const onehop::Bytes& bytes);

  MemoryKind kind_;
  std::optional<onehop::SharedMemory> shared_;
  std::vector<uint8_t> own_;
  uint8_t* data_ = nullptr;
  size_t size_;
};

class Side {
 public:
  Side(const LinkKind& kind, int number, int in, int out)
      : kind_(kind), number_(number), in_(in), out_(out) {}

  int number() const { return number_; }
  const LinkKind& kind() const { return kind_; }
  onehop::Endpoint& endpoint() { return *endpoint_; }
  onehop::Peer& peer() { return *peer_; }
  // Process id of the peer, if it is another process.
  int other_process() const { return other_process_; }
  void set_other_process(int process) { other_process_ = process; }
  Buffer buffer(size_t size) const;

  // Waits until both sides have called it.
  void sync();
  // Passes bytes to the peer over a pipe, not through the library under test.
  void tell(const onehop::Bytes& bytes);
  onehop::Bytes hear();
  void tell_number(int64_t number);
  int64_t hear_number();
  // Whether the peer has sent bytes that hear() has not returned yet.
  bool was_told() const;

  void connect();
  void disconnect();
  // Releases the handles in reverse order: the peer's last.
  void disconnect_endpoint_first();
  // Closes the link; the endpoint stays open.
  void drop_peer();
  // Releases the peer's handle; the link stays open.
  void release_peer();

 private:
  const LinkKind& kind_;
  int number_;
  int in_;
  int out_;
  int other_process_ = 0;
  std::unique_ptr<onehop::Endpoint> endpoint_;
  std::unique_ptr<onehop::Peer> peer_;
};

// Orders this thread with the library's threads through the link's locks, which ThreadSanitizer
// sees: they may overwrite what this thread has read, and this thread may read what they wrote.
void meet_threads(const onehop::Peer& peer);

using Role = std::function<void(Side&)>;

// Runs both roles on a new link; the test fails if either role fails, or on a timeout.
void run_pair(const LinkKind& kind, const Role& first, const Role& second);
// The same in two processes, of which the second may be stopped or killed: only the first decides
// the result.
void run_with_victim(const LinkKind& kind, const Role& survivor, const Role& victim);
// The same in two processes that connect and disconnect by themselves, so that each can count its
// open objects before and after. Both are children: the process that runs the test uses no GPU.
void run_apart(const LinkKind& kind, const Role& first, const Role& second);
// The same with a third process, to which the first turns after the second was killed.
using Survivor = std::function<void(Side& victim, Side& next)>;
void run_apart_with_victim(const LinkKind& kind, const Survivor& survivor, const Role& victim,
                           const Role& next);
// Runs one function in `size` processes, which get only their rank and a communicator id.
using RankRole = std::function<void(uint32_t rank, const onehop::Bytes& unique_id)>;
void run_ranks(const LinkKind& kind, uint32_t size, const RankRole& role);
// Whether UCX is available.
bool has_ucx();
// Waits until no thread of the process executes any more.
void await_stopped(int process);
// The parameters of suites that need two processes.
std::vector<LinkKind> process_kinds();
// Those over UCX with its remote memory access.
std::vector<LinkKind> rma_kinds();
std::string name_of(const ::testing::TestParamInfo<LinkKind>& test);

// Waits for the condition, at most 20 s.
bool eventually(const std::function<bool()>& condition);

// Returns the status that `call` fails with, or OH_OK.
template <typename Call>
oh_status status_of(Call call) {
  try {
    call();
  } catch (const onehop::Error& failure) {
    return failure.status();
  }
  return OH_OK;
}

// The contract of messages; Conformance covers the whole contract.
class Messages : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    if (GetParam().use_paths) GetParam().use_paths(true);
  }
  void TearDown() override {
    if (GetParam().use_paths) GetParam().use_paths(false);
  }
  void run(const Role& first, const Role& second) { run_pair(GetParam(), first, second); }
  // Both sides do the same.
  void run_both(const Role& both) { run_pair(GetParam(), both, both); }
};
class Conformance : public Messages {};
// The part of the contract about puts and gets.
class OneSided : public Conformance {};

}  // namespace conformance
