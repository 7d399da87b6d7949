// SPDX-License-Identifier: Apache-2.0
//
// oh_peer_get_path describes what happens: for each kind of link, memory and size the row names the
// path that the finished request reports, on both sides of a message. gpu_explained.cc has links
// between GPUs.
#include "conformance/explained.h"

#include <chrono>

#include "conformance/batches.h"
#include "conformance/message_batches.h"

namespace conformance::explained {
namespace {

using namespace std::chrono_literals;

void tell_sizes(Side& side, const std::vector<size_t>& sizes) {
  side.tell_number(static_cast<int64_t>(sizes.size()));
  for (size_t size : sizes) side.tell_number(static_cast<int64_t>(size));
}

std::vector<size_t> hear_sizes(Side& side) {
  std::vector<size_t> sizes(static_cast<size_t>(side.hear_number()));
  for (size_t& size : sizes) size = static_cast<size_t>(side.hear_number());
  return sizes;
}

// Both calls block, or one of them is posted first.
enum class Order { kBlocking, kReceiveFirst, kSendFirst };
constexpr Order kOrders[] = {Order::kBlocking, Order::kReceiveFirst, Order::kSendFirst};
const char* name_of(Order order) {
  return order == Order::kBlocking       ? "blocking"
         : order == Order::kReceiveFirst ? "receive first"
                                         : "send first";
}

void send_in_order(Side& side, Order order, Buffer& buffer, size_t size,
                   const std::vector<const Row*>& allowed) {
  if (order == Order::kBlocking) {
    side.peer().send(buffer.data(), size, 0, 20s);
    EXPECT_TRUE(is_among(side.hear_number(), allowed)) << "the receive";
    return;
  }
  if (order == Order::kReceiveFirst) side.sync();
  onehop::Request send = side.peer().isend(buffer.data(), size);
  if (order == Order::kSendFirst) side.sync();
  EXPECT_TRUE(is_among(send.wait(20s).path, allowed)) << "the send";
  EXPECT_TRUE(is_among(side.hear_number(), allowed)) << "the receive";
}

void receive_in_order(Side& side, Order order, Buffer& buffer, size_t size) {
  onehop::Message message;
  if (order == Order::kBlocking) {
    message = side.peer().recv(buffer.data(), size, 0, 20s);
  } else {
    if (order == Order::kSendFirst) side.sync();
    onehop::Request receive = side.peer().irecv(buffer.data(), size);
    if (order == Order::kReceiveFirst) side.sync();
    message = receive.wait(20s);
  }
  side.tell_number(message.path);
  EXPECT_EQ(message.size, size);
  EXPECT_TRUE(buffer.holds(1, size)) << size << " bytes, " << name_of(order);
}

TEST_P(ExplainedPaths, OfMessages) {
  run([](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      Buffer& buffer = memory[mine];
      if (!first) {
        const std::vector<size_t> sizes = hear_sizes(side);
        for (Order order : kOrders) {
          buffer.poison();
          for (size_t size : sizes) receive_in_order(side, order, buffer, size);
        }
        return;
      }
      rows.expect_complete("message", between);
      const std::vector<size_t> sizes = rows.sizes("message", between);
      tell_sizes(side, sizes);
      buffer.fill(1);
      for (Order order : kOrders) {
        for (size_t size : sizes) {
          SCOPED_TRACE(std::to_string(size) + " bytes, " + name_of(order));
          send_in_order(side, order, buffer, size, rows.allowed("message", between, size));
        }
      }
    });
  });
}

// A put and a get of the size, and a put with a notification.
void put_and_get(Side& side, Buffer& buffer, const onehop::RemoteRegion& remote, size_t size,
                 const std::vector<const Row*>& allowed) {
  buffer.fill(size);
  EXPECT_TRUE(is_among(side.peer().put(buffer.data(), remote, 0, size).wait(20s).path, allowed))
      << "put";
  buffer.poison();
  EXPECT_TRUE(is_among(side.peer().get(buffer.data(), remote, 0, size).wait(20s).path, allowed))
      << "get";
  EXPECT_TRUE(buffer.holds(size, size));
  const onehop::Bytes note = {1, 2, 3};
  EXPECT_TRUE(
      is_among(side.peer().put(buffer.data(), remote, 0, size, &note).wait(20s).path, allowed))
      << "put with a notification";
}

// Batches of non-contiguous blocks of several lengths.
void put_and_get_batches(Side& side, Buffer& buffer, const onehop::RemoteRegion& remote,
                         const Rows& rows, const Between& between) {
  for (uint64_t length : {64, 8192}) {
    SCOPED_TRACE("3 blocks of " + std::to_string(length) + " bytes");
    oh_batch batch = batch_of(buffer);
    batch.count = 3;
    batch.length = length;
    batch.local_stride = batch.remote_stride = 2 * length;
    const std::vector<const Row*> allowed = rows.allowed("put/get", between, 3 * length);
    EXPECT_TRUE(is_among(side.peer().put_batch(remote, batch).wait(20s).path, allowed)) << "put";
    EXPECT_TRUE(is_among(side.peer().get_batch(remote, batch).wait(20s).path, allowed)) << "get";
  }
}

TEST_P(ExplainedPaths, OfPutsAndGets) {
  run([](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      Buffer& buffer = memory[mine];
      if (!first) {
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        return;
      }
      // Of local memory only whether it is device memory matters.
      rows.expect_complete("put/get", between);
      {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        for (size_t size : rows.sizes("put/get", between)) {
          SCOPED_TRACE(std::to_string(size) + " bytes");
          put_and_get(side, buffer, remote, size, rows.allowed("put/get", between, size));
        }
        put_and_get_batches(side, buffer, remote, rows, between);
      }
      side.sync();
    });
  });
}

// The calling thread executes them where the memory is mapped; they are refused where nothing can.
TEST_P(ExplainedPaths, OfAtomics) {
  run([](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      if (!first) {
        Buffer& buffer = memory[mine];
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        return;
      }
      {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        if (is_host(between.source)) {  // what is another kind to GPUs has no row of its own
          const std::vector<const Row*> found = rows.of("atomic", {"host", between.target});
          EXPECT_EQ(found.size(), 1u) << between.target;
          const Row* row = found.empty() ? nullptr : found.front();
          uint64_t before[2] = {};
          const auto add = [&](uint64_t* was) {
            return oh_peer_fetch_add(side.peer().get(), remote.get(), 8, 1,
                                     std::chrono::nanoseconds(20s).count(), was);
          };
          const oh_status status = add(&before[0]);
          const bool viable = row && row->path != OH_PATH_NONE;
          EXPECT_EQ(status, viable ? OH_OK : OH_ERR_NOT_VIABLE)
              << oh_error_text() << "; the row: " << (row ? row->why : "none");
          if (status == OH_OK) {
            EXPECT_EQ(add(&before[1]), OH_OK);
            EXPECT_EQ(before[1], before[0] + 1);
          }
          if (row && is_host(between.target)) {
            EXPECT_EQ(remote.is_mapped(), row->method == "direct") << row->why;
          }
        }
      }
      side.sync();
    });
  });
}

// A sent batch is put into the receive's blocks.
TEST_P(ExplainedPaths, OfBatchesAsMessages) {
  run([](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      for (uint64_t length : {100, 10'000}) {
        SCOPED_TRACE("3 blocks of " + std::to_string(length) + " bytes");
        Cut cut;
        for (uint64_t i = 0; i < 3; ++i) cut.add(2 * i * length, length);
        if (first) {
          side.peer().send_batch(cut.of(memory[mine]), 0, 20s);
          EXPECT_TRUE(is_among(side.hear_number(), rows.allowed("put/get", between, 3 * length)));
        } else {
          side.tell_number(side.peer().recv_batch(cut.of(memory[mine]), 0, 20s).path);
        }
      }
    });
  });
}

TEST_P(ExplainedWithoutCredit, OfMessages) {
  const uint64_t credit = std::stoull(GetParam().link.env.at("ONEHOP_EAGER_CREDIT"));
  run([&](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      Buffer& buffer = memory[mine];
      buffer.fill(1);
      for (size_t size : {size_t{1}, size_t{400}, size_t{512}}) {
        SCOPED_TRACE(std::to_string(size) + " bytes");
        const uint64_t charge = (size + 63) / 64 * 64;
        const uint64_t early = is_host(between.source) ? credit / charge : 0;
        std::vector<onehop::Request> requests;
        if (first) {
          for (uint64_t i = 0; i < early + 3; ++i) {
            requests.push_back(side.peer().isend(buffer.data(), size));
          }
          side.sync();
        } else {
          side.sync();
          for (uint64_t i = 0; i < early + 3; ++i) {
            requests.push_back(side.peer().irecv(buffer.data(), size));
          }
        }
        for (uint64_t i = 0; i < requests.size(); ++i) {
          const oh_path path = requests[i].wait(20s).path;
          if (!first) {
            side.tell_number(path);
            continue;
          }
          const std::vector<const Row*> allowed =
              rows.allowed("message", between, i < early ? size : UINT64_MAX);
          EXPECT_TRUE(is_among(path, allowed)) << "send " << i;
          EXPECT_TRUE(is_among(side.hear_number(), allowed)) << "receive " << i;
        }
      }
    });
  });
}

// ---- Links between endpoints for host memory --------------------------------------------------

std::vector<LinkKind> host_links() {
  std::vector<LinkKind> links = {{.name = "threads", .processes = false, .path = OH_PATH_LOCAL}};
  for (LinkKind& link : process_kinds()) {
    if (link.memory[0] == MemoryKind::kPrivate) links.push_back(std::move(link));
  }
  for (LinkKind& link : rma_kinds()) links.push_back(std::move(link));
  return links;
}

std::vector<Explained> host_kinds() {
  std::vector<Explained> kinds;
  for (LinkKind& link : host_links()) kinds.push_back(over(std::move(link), kHostKinds));
  // Less credit than a message of that size needs: it is never sent eagerly.
  LinkKind little{.name = "little_credit", .env = {{"ONEHOP_EAGER_CREDIT", "256"}}};
  kinds.push_back(over(little, kHostKinds));
  LinkKind none{.name = "no_credit", .env = {{"ONEHOP_EAGER_CREDIT", "0"}}};
  kinds.push_back(over(none, kHostKinds));
  LinkKind no_inline{.name = "no_inline", .env = {{"ONEHOP_MAX_INLINE", "0"}}};
  kinds.push_back(over(no_inline, kHostKinds));
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Host, ExplainedPaths, ::testing::ValuesIn(host_kinds()), name_of_link);

std::vector<Explained> host_kinds_without_credit() {
  std::vector<Explained> kinds;
  for (const LinkKind& link : host_links()) {
    if (link.name == "tiny_credit" || link.name.ends_with("_rma")) continue;
    kinds.push_back(over(with_little_credit(link), kHostKinds));
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Host, ExplainedWithoutCredit,
                         ::testing::ValuesIn(host_kinds_without_credit()), name_of_link);

}  // namespace
}  // namespace conformance::explained
