// SPDX-License-Identifier: Apache-2.0
#include "platform/os/handles.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "unit/faulty_os.h"
#include "unit/support.h"

namespace handles_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

UniqueFd some_fd() { return UniqueFd(::memfd_create("unit", MFD_CLOEXEC)); }

TEST(UniqueFdTest, ClosesOnceAndOnlyItsOwn) {
  UniqueFd fd = some_fd();
  int number = fd.get();
  EXPECT_TRUE(is_open(number));
  fd.reset();
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(fd.valid());
  // The number has a new owner: a second reset must not close it.
  UniqueFd other = some_fd();
  EXPECT_EQ(other.get(), number);
  fd.reset();
  EXPECT_TRUE(is_open(number));
}

TEST(UniqueFdTest, MovesHandTheDescriptorOver) {
  UniqueFd first = some_fd();
  int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT: moved from on purpose
  EXPECT_EQ(second.get(), number);
  UniqueFd third = some_fd();
  int closed = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(is_open(closed));
  UniqueFd& same = third;
  third = std::move(same);
  EXPECT_TRUE(is_open(number));
  {
    UniqueFd last = std::move(third);
  }
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFdTest, HoldsNothingAtFirst) {
  UniqueFd none;
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(none.get(), -1);
  none.reset();
  UniqueFd failed(-1);
  EXPECT_FALSE(failed.valid());
}

TEST(MappingTest, AnonymousMemoryIsZeroAndWritable) {
  Result<Mapping> mapping = Mapping::anonymous(10000);
  ASSERT_TRUE(is_ok(mapping));
  EXPECT_EQ(mapping->size(), 10000u);
  for (uint64_t i = 0; i < mapping->size(); ++i) ASSERT_EQ(mapping->data()[i], 0);
  std::memset(mapping->data(), 7, mapping->size());
}

TEST(MappingTest, TwoMappingsOfOneFileAreTheSameMemory) {
  Result<UniqueFd> fd = make_memfd("unit", 8192);
  ASSERT_TRUE(is_ok(fd));
  Result<Mapping> one = Mapping::of_fd(fd->get(), 8192, true);
  Result<Mapping> two = Mapping::of_fd(fd->get(), 4096, false);
  ASSERT_TRUE(is_ok(one));
  ASSERT_TRUE(is_ok(two));
  fd->reset();
  one->data()[4095] = 42;
  EXPECT_EQ(two->data()[4095], 42);
  Mapping moved = std::move(*one);
  EXPECT_FALSE(one->valid());
  EXPECT_EQ(moved.data()[4095], 42);
  moved = std::move(*two);
  EXPECT_EQ(moved.size(), 4096u);
  moved.reset();
  moved.reset();
  EXPECT_FALSE(moved.valid());
}

TEST(MappingTest, RefusesAFileThatIsShorterThanAnnounced) {
  Result<UniqueFd> fd = make_memfd("unit", 4096);
  ASSERT_TRUE(is_ok(fd));
  EXPECT_TRUE(fails_with(Mapping::of_fd(fd->get(), 4097, false), OH_ERR_PROTOCOL,
                         "4096 bytes or may shrink, 4097 were announced"));
}

TEST(MappingTest, RefusesAFileThatMayShrink) {
  UniqueFd fd(::memfd_create("unit", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  EXPECT_TRUE(fails_with(Mapping::of_fd(fd.get(), 4096, false), OH_ERR_PROTOCOL, "may shrink"));
}

TEST(MappingTest, RefusesWhatIsNoMemory) {
  EXPECT_TRUE(fails_with(Mapping::of_fd(-1, 4096, false), OH_ERR_SYSTEM, "EBADF"));
  auto [one, two] = unit::socket_pair();
  EXPECT_FALSE(Mapping::of_fd(one.get(), 4096, false).ok());
  UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(Mapping::of_fd(file.get(), 4096, false).ok());
}

// Shrinks and seals a file just after its size was read, as a hostile peer would.
class Shrinking : public Os {
 public:
  Shrinking() { former_ = os_replace(this); }
  ~Shrinking() override { os_replace(former_); }
  int fstat_size(int fd, uint64_t* size) override {
    int result = Os::fstat_size(fd, size);
    EXPECT_TRUE(::ftruncate(fd, 0) == 0 || is_sealed(fd) == 1);
    Os::seal(fd);
    return result;
  }

 private:
  Os* former_;
};

TEST(MappingTest, AFileThatShrinksMeanwhileIsNotMapped) {
  UniqueFd fd(::memfd_create("unit", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  Shrinking shrinking;
  EXPECT_TRUE(fails_with(Mapping::of_fd(fd.get(), 4096, false), OH_ERR_PROTOCOL, "may shrink"));
}

TEST(UniqueFdTest, RoomForMoreIsToldAndLeftFree) {
  // In a child, where no thread of an earlier test closes descriptors.
  unit::in_child([] {
    const size_t before = unit::open_fds();
    {
      const unit::FewFiles few(5);
      EXPECT_TRUE(is_ok(check_room_for_fds(5)));
      EXPECT_TRUE(fails_with(check_room_for_fds(6), OH_ERR_NO_RESOURCE,
                             "6 descriptors more are needed, and 5 can be had: EMFILE"));
      EXPECT_TRUE(is_ok(check_room_for_fds(5)));
    }
    EXPECT_EQ(unit::open_fds(), before);
  });
}

TEST(MemfdTest, IsSealedAndClosedOnExec) {
  Result<UniqueFd> fd = make_memfd("unit", 4096);
  ASSERT_TRUE(is_ok(fd));
  EXPECT_LT(ftruncate(fd->get(), 0), 0);
  EXPECT_LT(ftruncate(fd->get(), 8192), 0);
  EXPECT_EQ(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(MemfdTest, WhereTheyAreForbiddenMemoryIsPrivate) {
  FaultyOs faulty;
  for (int failure : {EPERM, EACCES, ENOSYS}) {
    faulty.arm(Call::memfd_create, 0, failure);
    EXPECT_TRUE(fails_with(make_memfd("unit-name", 4096), OH_ERR_NOT_VIABLE,
                           "memfd_create(unit-name), which a seccomp filter"));
    faulty.arm(Call::memfd_create, 0, failure);
    Result<SharedMemory> memory = make_shared_memory("unit-name", 4096);
    ASSERT_TRUE(is_ok(memory));
    EXPECT_FALSE(memory->fd.valid());
    EXPECT_TRUE(fails_with(memory->why_private, OH_ERR_NOT_VIABLE, "memfd_create(unit-name)"));
    std::memset(memory->mapping.data(), 7, memory->mapping.size());
  }
  faulty.arm(Call::memfd_create, 0, EMFILE);
  EXPECT_TRUE(fails_with(make_shared_memory("unit-name", 4096), OH_ERR_SYSTEM, "ulimit -n"));
  Result<SharedMemory> memory = make_shared_memory("unit-name", 4096);
  ASSERT_TRUE(is_ok(memory));
  EXPECT_TRUE(memory->fd.valid());
  EXPECT_TRUE(is_ok(memory->why_private));
}

TEST(MemfdTest, EveryFailureSaysWhatFailedAndLeaksNothing) {
  FaultyOs faulty;
  size_t before = unit::open_fds();
  faulty.arm(Call::memfd_create, 0, EMFILE);
  EXPECT_TRUE(
      fails_with(make_memfd("unit-name", 4096), OH_ERR_SYSTEM, "memfd_create(unit-name): EMFILE"));
  faulty.arm(Call::ftruncate, 0, ENOMEM);
  EXPECT_TRUE(fails_with(make_memfd("unit-name", 4096), OH_ERR_NO_RESOURCE, "4096 bytes"));
  faulty.arm(Call::ftruncate, 0, EPERM);
  EXPECT_TRUE(fails_with(make_memfd("unit-name", 4096), OH_ERR_SYSTEM, "4096 bytes"));
  faulty.arm(Call::seal, 0, EPERM);
  EXPECT_TRUE(fails_with(make_memfd("unit-name", 4096), OH_ERR_SYSTEM, "sealing"));
  faulty.arm(Call::mmap, 0, ENOMEM);
  EXPECT_TRUE(fails_with(Mapping::anonymous(4096), OH_ERR_SYSTEM, "mmap of 4096 anonymous bytes"));
  EXPECT_EQ(unit::open_fds(), before);
  Result<UniqueFd> fd = make_memfd("unit-name", 4096);
  faulty.arm(Call::mmap, 0, ENOMEM);
  EXPECT_TRUE(fails_with(Mapping::of_fd(fd->get(), 4096, true), OH_ERR_SYSTEM, "mmap of 4096"));
  faulty.arm(Call::fstat_size, 0, EIO);
  EXPECT_TRUE(fails_with(Mapping::of_fd(fd->get(), 4096, true), OH_ERR_SYSTEM, "fstat"));
}

}  // namespace
}  // namespace handles_test
