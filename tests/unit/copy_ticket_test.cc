// SPDX-License-Identifier: Apache-2.0
#include "device/copy_ticket.h"

#include "unit/fake_gpu.h"

namespace unit::copy_ticket_test {
namespace {

using oh::CopyTicket;
using oh::Deadline;
using oh::Result;
using oh::Status;

class CopyTicketTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    Result<oh::cuda::DevicePtr> made = gpu->allocate(kSize);
    ASSERT_TRUE(is_ok(made));
    memory = *made;
  }
  void TearDown() override {
    gpu->free(memory);
    GpuTest::TearDown();
  }
  CopyTicket open() const {
    Result<CopyTicket> opened = CopyTicket::open(*gpu);
    EXPECT_TRUE(is_ok(opened));
    return std::move(*opened);
  }
  // Copies the first half to the second.
  Status copy(CopyTicket& ticket, uint64_t value) const {
    return ticket.copy(reinterpret_cast<void*>(memory + kSize / 2), reinterpret_cast<void*>(memory),
                       kSize / 2, value);
  }

  static constexpr size_t kSize = 4096;
  oh::cuda::DevicePtr memory = 0;
};

TEST_F(CopyTicketTest, AClosedOneIsDone) {
  CopyTicket ticket;
  EXPECT_FALSE(ticket.is_open());
  EXPECT_TRUE(ticket.is_done());
  EXPECT_FALSE(ticket.is_late());
}

TEST_F(CopyTicketTest, IsDoneOnceTheLastValueIsWritten) {
  CopyTicket ticket = open();
  EXPECT_TRUE(ticket.is_done()) << "nothing was enqueued";
  const oh::Bytes bytes = Random(1).bytes(kSize / 2);
  ASSERT_TRUE(fake.write(memory, bytes));
  ASSERT_EQ(fake.hold(ticket.stream()), 0);
  const uint64_t first = ticket.next_value();
  ASSERT_TRUE(is_ok(copy(ticket, first)));
  EXPECT_FALSE(ticket.is_done());
  Result<bool> idle = ticket.check();
  ASSERT_TRUE(is_ok(idle));
  EXPECT_FALSE(*idle);
  ASSERT_EQ(fake.release(ticket.stream()), 0);
  EXPECT_TRUE(is_ok(ticket.wait(first)));
  EXPECT_EQ(fake.bytes_at(memory + kSize / 2, kSize / 2), bytes);
  EXPECT_TRUE(ticket.is_done());
  // A copy without a value is not waited for; the next copy's value covers both.
  const uint64_t second = ticket.next_value();
  EXPECT_FALSE(ticket.is_done());
  ASSERT_TRUE(is_ok(copy(ticket, 0)));
  ASSERT_TRUE(is_ok(copy(ticket, second)));
  EXPECT_TRUE(is_ok(ticket.end({})));
  EXPECT_EQ(ticket.seen(), second);
}

TEST_F(CopyTicketTest, IsLateOnceInAWhile) {
  CopyTicket ticket = open();
  ASSERT_EQ(fake.hold(ticket.stream()), 0);
  ASSERT_TRUE(is_ok(copy(ticket, ticket.next_value())));
  EXPECT_TRUE(eventually([&] { return ticket.is_late(); }));
  ASSERT_EQ(fake.release(ticket.stream()), 0);
  EXPECT_TRUE(is_ok(ticket.wait()));
  EXPECT_FALSE(ticket.is_late());
}

TEST_F(CopyTicketTest, GivesBackWhatItTook) {
  oh::cuda::Stream stream = open().stream();
  CopyTicket again = open();
  EXPECT_EQ(again.stream(), stream);
  CopyTicket moved = std::move(again);
  EXPECT_FALSE(again.is_open());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(moved.stream(), stream);
  moved = {};
  EXPECT_FALSE(moved.is_open());
  EXPECT_EQ(open().stream(), stream);
}

TEST_F(CopyTicketTest, KeepsWhatTheDeviceStillUses) {
  oh::cuda::Stream stream = nullptr;
  {
    CopyTicket ticket = open();
    stream = ticket.stream();
    ASSERT_EQ(fake.hold(stream), 0);
    ASSERT_TRUE(is_ok(copy(ticket, ticket.next_value())));
  }
  EXPECT_NE(open().stream(), stream);
  ASSERT_EQ(fake.release(stream), 0);
  EXPECT_TRUE(finish(stream));
  gpu->give_stream(stream);
}

// Work enqueued before the failure still runs.
TEST_F(CopyTicketTest, AFailureToEnqueueEndsWhenTheStreamIsIdle) {
  CopyTicket ticket = open();
  ASSERT_EQ(fake.hold(ticket.stream()), 0);
  ASSERT_EQ(fake.fail("cuStreamWriteValue64_v2", 1, oh::cuda::kInvalidValue), 0);
  Status failed = copy(ticket, ticket.next_value());
  ASSERT_FALSE(failed.ok());
  EXPECT_FALSE(ticket.is_done());
  EXPECT_FALSE(ticket.drain(Deadline::after(1)));
  EXPECT_FALSE(ticket.is_done());
  ASSERT_EQ(fake.release(ticket.stream()), 0);
  EXPECT_EQ(ticket.end(failed).code(), failed.code());
  EXPECT_TRUE(ticket.is_done());
}

TEST_F(CopyTicketTest, ALostContextWritesNoWord) {
  CopyTicket ticket = open();
  const oh::cuda::Stream stream = ticket.stream();
  ASSERT_EQ(fake.hold(stream), 0);
  ASSERT_TRUE(is_ok(copy(ticket, ticket.next_value())));
  // An error of the query alone does not end the copy.
  ASSERT_EQ(fake.fail("cuStreamQuery", 1, oh::cuda::kInvalidValue), 0);
  Result<bool> idle = ticket.check();
  ASSERT_TRUE(is_ok(idle));
  EXPECT_FALSE(*idle);
  ASSERT_EQ(fake.fail("cuStreamQuery", 1, oh::cuda::kIllegalAddress), 0);
  EXPECT_TRUE(fails_with(ticket.wait(), OH_ERR_DEVICE, "start a new process"));
  EXPECT_FALSE(ticket.is_done());
  EXPECT_TRUE(ticket.drain(Deadline::never()));
  EXPECT_TRUE(ticket.is_done());
  ASSERT_EQ(fake.release(stream), 0);
  EXPECT_TRUE(finish(stream));
}

}  // namespace
}  // namespace unit::copy_ticket_test
