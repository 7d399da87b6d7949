// SPDX-License-Identifier: Apache-2.0
//
// Two sides of one link, for the conformance tests: two threads of one process, or two processes. A
// test is two functions, one per side; they meet at sync().
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

// One way to make a link. Instantiating the suite takes one of these.
struct LinkKind {
  std::string name;
  bool processes = true;                        // else two threads of this process
  std::map<std::string, std::string> env = {};  // ONEHOP_* of both sides
  oh_path path = OH_PATH_SHM;                   // of what is not inline
  // Where the buffers of each side are.
  MemoryKind memory[2] = {MemoryKind::kPrivate, MemoryKind::kPrivate};
  // The device of each side's endpoint: -1 is none, for host memory.
  int device[2] = {-1, -1};
  std::string driver = {};  // the library; empty: the real one
  // Whether there is a segment; else frames travel through the network.
  bool shares_memory() const { return path != OH_PATH_SOCKET && path != OH_PATH_UCX; }
  // Whether an endpoint has a GPU.
  bool on_gpu() const { return device[0] >= 0 || device[1] >= 0; }
  // Of host memory, whatever the buffers are.
  oh_path host_path() const {
    if (!on_gpu() || !shares_memory()) return path;
    return processes ? OH_PATH_SHM : OH_PATH_LOCAL;
  }
  // Of puts and gets by side 0, where it is another one.
  std::optional<oh_path> put_path = {};
  oh_path one_sided_path() const { return put_path.value_or(path); }
  // Switches another table of paths on and off, for the links of a test.
  void (*use_paths)(bool use) = nullptr;
  // Whether a path is what was expected; a GPU's worker is there or it is not.
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

// What Buffer::fill() fills with.
onehop::Bytes pattern(uint64_t seed, size_t size);

// A buffer of the kind under test. Its bytes are looked at through bytes() and at() only: they may
// be on a device.
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
  // Whether the first `size` bytes are those of the seed.
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
  // The process of the other side, where there is one.
  int other_process() const { return other_process_; }
  void set_other_process(int process) { other_process_ = process; }
  Buffer buffer(size_t size) const;

  // Both sides have come here.
  void sync();
  // Passes bytes to the other side, outside of the library under test.
  void tell(const onehop::Bytes& bytes);
  onehop::Bytes hear();
  void tell_number(int64_t number);
  int64_t hear_number();
  // Whether the other side has told something that was not heard yet.
  bool was_told() const;

  void connect();
  void disconnect();
  // The other way round: the peer's handle is released last.
  void disconnect_endpoint_first();
  // Closes the link; the endpoint stays.
  void drop_peer();

 private:
  const LinkKind& kind_;
  int number_;
  int in_;
  int out_;
  int other_process_ = 0;
  std::unique_ptr<onehop::Endpoint> endpoint_;
  std::unique_ptr<onehop::Peer> peer_;
};

// What we have read the library's threads may overwrite from now on, and what they wrote before is
// ours to read: through the link's locks, which ThreadSanitizer can see.
void meet_threads(const onehop::Peer& peer);

using Role = std::function<void(Side&)>;

// Runs both roles on a fresh link; the test fails if either does, or if it takes too long.
void run_pair(const LinkKind& kind, const Role& first, const Role& second);
// The same in two processes, of which the second may be stopped or killed: the first alone decides.
void run_with_victim(const LinkKind& kind, const Role& survivor, const Role& victim);
// The same in two processes that connect and disconnect by themselves, so that what each has open
// can be counted before and after. Both are children: the one that runs the test uses no GPU.
void run_apart(const LinkKind& kind, const Role& first, const Role& second);
// And with a third process, for the first to turn to when the second was killed.
using Survivor = std::function<void(Side& victim, Side& next)>;
void run_apart_with_victim(const LinkKind& kind, const Survivor& survivor, const Role& victim,
                           const Role& next);
// One function in `size` processes, which have nothing but their rank and an id for a communicator.
using RankRole = std::function<void(uint32_t rank, const onehop::Bytes& unique_id)>;
void run_ranks(const LinkKind& kind, uint32_t size, const RankRole& role);
// Whether UCX is here.
bool has_ucx();
// Until not one instruction of the process runs any more.
void await_stopped(int process);
// What the suites that need processes are instantiated with.
std::vector<LinkKind> process_kinds();
// Those of them over UCX, with its remote memory access.
std::vector<LinkKind> rma_kinds();
std::string name_of(const ::testing::TestParamInfo<LinkKind>& test);

// Waits for the condition, 20 s at most.
bool eventually(const std::function<bool()>& condition);

// The status that `call` fails with, or OH_OK.
template <typename Call>
oh_status status_of(Call call) {
  try {
    call();
  } catch (const onehop::Error& failure) {
    return failure.status();
  }
  return OH_OK;
}

// What messages promise; Conformance is all of the contract.
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
// Of it, what puts and gets promise.
class OneSided : public Conformance {};

}  // namespace conformance
