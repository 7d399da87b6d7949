// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/local/local_mover.h"
#include "transport/shm/cma_mover.h"
#include "unit/faulty_os.h"
#include "unit/support.h"

namespace mover_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

uint64_t address_of(const void* data) { return reinterpret_cast<uint64_t>(data); }

// Both movers, on this process's own memory.
class MoverTest : public ::testing::TestWithParam<bool> {
 protected:
  MoverTest() {
    if (GetParam()) {
      mover_ = std::make_unique<CmaMover>(getpid());
    } else {
      mover_ = std::make_unique<LocalMover>();
    }
  }
  std::unique_ptr<Mover> mover_;
};

TEST_P(MoverTest, ReadsAndWrites) {
  unit::Random random(1);
  Bytes there = random.bytes(100000);
  Bytes here(there.size());
  CopyPiece whole{here.data(), address_of(there.data()), there.size()};
  ASSERT_TRUE(is_ok(mover_->read({&whole, 1})));
  EXPECT_EQ(here, there);
  for (uint8_t& byte : here) byte = static_cast<uint8_t>(random.next() >> 56);
  ASSERT_TRUE(is_ok(mover_->write({&whole, 1})));
  EXPECT_EQ(here, there);
}

TEST_P(MoverTest, MovesManyPiecesOfAllSizesInOneCall) {
  unit::Random random(2);
  Bytes there = random.bytes(1 << 20);
  Bytes here(there.size());
  std::vector<CopyPiece> pieces;
  for (size_t at = 0; at < there.size();) {
    size_t size = std::min<size_t>(random.below(600), there.size() - at);  // zero, too
    pieces.push_back({here.data() + at, address_of(there.data() + at), size});
    at += size;
  }
  ASSERT_GT(pieces.size(), 2500u);
  ASSERT_TRUE(is_ok(mover_->read(pieces)));
  EXPECT_EQ(here, there);
}

TEST_P(MoverTest, MovesNothing) {
  EXPECT_TRUE(is_ok(mover_->read({})));
  uint8_t byte = 0;
  std::vector<CopyPiece> pieces(3, CopyPiece{&byte, address_of(&byte), 0});
  EXPECT_TRUE(is_ok(mover_->read(pieces)));
  EXPECT_TRUE(is_ok(mover_->write(pieces)));
}

INSTANTIATE_TEST_SUITE_P(Both, MoverTest, ::testing::Bool(), [](const auto& which) {
  return std::string(which.param ? "process_vm" : "memcpy");
});

TEST(CmaMoverTest, AnUnmappedAddressIsAFault) {
  long page = sysconf(_SC_PAGESIZE);
  auto* memory =
      static_cast<uint8_t*>(mmap(nullptr, static_cast<size_t>(2 * page), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  munmap(memory + page, static_cast<size_t>(page));
  CmaMover mover(getpid());
  Bytes here(static_cast<size_t>(2 * page));
  // The first page can be read, the second cannot.
  CopyPiece piece{here.data(), address_of(memory), here.size()};
  EXPECT_TRUE(fails_with(mover.read({&piece, 1}), OH_ERR_FAULT, "process_vm_readv of"));
  EXPECT_TRUE(fails_with(mover.write({&piece, 1}), OH_ERR_FAULT, "process_vm_writev of"));
  CopyPiece null{here.data(), 0, 1};
  EXPECT_TRUE(fails_with(mover.read({&null, 1}), OH_ERR_FAULT, "EFAULT"));
  munmap(memory, static_cast<size_t>(page));
}

TEST(CmaMoverTest, AProcessThatIsGoneIsLost) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  CmaMover mover(child);
  uint8_t byte = 0;
  CopyPiece piece{&byte, address_of(&byte), 1};
  EXPECT_TRUE(fails_with(mover.read({&piece, 1}), OH_ERR_PEER_LOST, "is gone"));
}

TEST(CmaMoverTest, InterruptsAreNoFailures) {
  FaultyOs faulty;
  faulty.arm(Call::process_vm_readv, 0, EINTR);
  CmaMover mover(getpid());
  uint8_t there = 7;
  uint8_t here = 0;
  CopyPiece piece{&here, address_of(&there), 1};
  EXPECT_TRUE(is_ok(mover.read({&piece, 1})));
  EXPECT_EQ(here, 7);
  faulty.arm(Call::process_vm_readv, 0, EPERM);
  EXPECT_TRUE(fails_with(mover.read({&piece, 1}), OH_ERR_FAULT, "EPERM"));
}

TEST(CmaMoverTest, TheProbeBelievesTheNonceOnly) {
  uint8_t nonce[kNonceSize];
  for (uint8_t& byte : nonce) byte = static_cast<uint8_t>(&byte - nonce + 1);
  EXPECT_TRUE(is_ok(CmaMover::probe(getpid(), address_of(nonce), nonce)));
  uint8_t other[kNonceSize] = {1, 2, 3};
  EXPECT_TRUE(fails_with(CmaMover::probe(getpid(), address_of(other), nonce), OH_ERR_NOT_VIABLE,
                         "something else than the peer's nonce"));
  EXPECT_TRUE(fails_with(CmaMover::probe(0, address_of(nonce), nonce), OH_ERR_NOT_VIABLE,
                         "not visible from this PID namespace"));
  EXPECT_TRUE(fails_with(CmaMover::probe(getpid(), 0, nonce), OH_ERR_NOT_VIABLE, "EFAULT"));
  FaultyOs faulty;
  faulty.arm(Call::process_vm_readv, 0, EPERM);
  EXPECT_TRUE(
      fails_with(CmaMover::probe(getpid(), address_of(nonce), nonce), OH_ERR_NOT_VIABLE, "EPERM"));
}

}  // namespace
}  // namespace mover_test
