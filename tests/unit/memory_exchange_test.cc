// SPDX-License-Identifier: Apache-2.0
//
// MemoryExchange at both ends of a control socket within this process: the blocks that one side
// sends are mapped a second time.
#include "link/memory_exchange.h"

#include <sys/eventfd.h>

#include <cstring>

#include "unit/fake_link.h"
#include "unit/gpu_memory.h"

namespace unit::memory_exchange_test {
namespace {

using namespace oh;

// One end; its messages arrive on the watcher's thread.
class End final : public ConnectionOwner {
 public:
  End(const std::shared_ptr<Node>& node, UniqueFd socket, Id peer)
      : connection(std::make_shared<Connection>(node, MessageSocket(std::move(socket), 1 << 20),
                                                /*pid=*/0)),
        memory(fakes.link, connection.get(), peer,
               {.mapped = [this](const auto& block) { block ? ++mapped : ++failed; },
                .retired = [this](uint32_t number) { retired.store(number); }}) {
    fakes.link.my_bell = &page.doorbell();
  }
  Status on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) override {
    ++messages;
    switch (static_cast<Control>(type)) {
      case Control::kBlock:
        return memory.on_block(payload, std::move(fds));
      case Control::kBlockWanted:
        return memory.on_block_wanted(payload);
      case Control::kBlockRetired:
        return memory.on_block_retired(payload);
      case Control::kBlockReached:
        return memory.on_block_reached(payload);
      case Control::kExport:
      case Control::kExportMore:
        return memory.on_export(payload, std::move(fds),
                                static_cast<Control>(type) == Control::kExport);
      default:
        return error(OH_ERR_PROTOCOL, "a message of type %u", unsigned{type});
    }
  }
  void on_idle() override {}
  void on_lost(const Status&) override {}

  std::shared_ptr<ImportedBlock> imported(uint32_t number) {
    bool unused = false;
    return memory.imported(number, &unused);
  }
  bool has_failed(uint32_t number) {
    bool found = false;
    (void)memory.imported(number, &found);
    return found;
  }
  uint32_t block_of(const void* data, uint64_t size) {
    LinkGuard guard(fakes.link);
    return memory.block_of(data, size);
  }

  FakeLink fakes;
  ControlPage page = std::move(*ControlPage::create());
  std::shared_ptr<Connection> connection;
  std::atomic<int> mapped{0};
  std::atomic<int> failed{0};
  std::atomic<uint32_t> retired{0};
  std::atomic<int> messages{0};
  MemoryExchange memory;
};

class MemoryExchangeTest : public GpuMemoryTest {
 protected:
  MemoryExchangeTest() {
    std::shared_ptr<Node> node = *Node::get(config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}));
    auto [ours, theirs] = socket_pair();
    owner_ = std::make_shared<End>(node, std::move(ours), node->process());
    user_ = std::make_shared<End>(node, std::move(theirs), node->process());
    EXPECT_TRUE(is_ok(owner_->connection->start(owner_)));
    EXPECT_TRUE(is_ok(user_->connection->start(user_)));
    block_ = *SharedHeap::instance().allocate(8192);
  }
  ~MemoryExchangeTest() override {
    for (const auto& end : {owner_, user_}) {
      end->connection->close({}, Deadline::after(0));
      (void)end->memory.close();
    }
    EXPECT_TRUE(is_ok(SharedHeap::instance().free(block_->mapping.data())));
  }
  uint8_t* data() const { return block_->mapping.data(); }
  // Waits until the user has mapped the owner's block.
  std::shared_ptr<ImportedBlock> comes(uint32_t number) {
    std::shared_ptr<ImportedBlock> found;
    EXPECT_TRUE(eventually([&] { return (found = user_->imported(number)) != nullptr; }));
    return found;
  }

  std::shared_ptr<End> owner_;
  std::shared_ptr<End> user_;
  std::shared_ptr<SharedBlock> block_;
};

TEST_F(MemoryExchangeTest, ABlockIsHandedOverWhenItIsNamedFirst) {
  ASSERT_EQ(owner_->block_of(data() + 10, 100), block_->number);
  const std::shared_ptr<ImportedBlock> import = comes(block_->number);
  ASSERT_TRUE(import);
  EXPECT_EQ(import->size, 8192u);
  uint8_t* mapped = import->translate(block_->base() + 10, 100);
  ASSERT_TRUE(mapped);
  EXPECT_NE(mapped, data() + 10);
  std::memset(data() + 10, 7, 100);
  EXPECT_EQ(std::memcmp(mapped, data() + 10, 100), 0) << "the same memory";
  EXPECT_FALSE(import->translate(block_->base() + 8192, 1));
  // The next message is the reply to the request; the block is not sent again.
  EXPECT_EQ(owner_->block_of(data(), 1), block_->number);
  user_->memory.want_block(999);
  EXPECT_TRUE(eventually([&] { return user_->has_failed(999); }));
  EXPECT_EQ(user_->messages, 2);
}

TEST_F(MemoryExchangeTest, PrivateMemoryIsInNoBlock) {
  Bytes apart(100);
  EXPECT_EQ(owner_->block_of(apart.data(), apart.size()), 0u);
  EXPECT_EQ(owner_->block_of(data() + 8000, 1000), 0u) << "not all of it is in the block";
}

TEST_F(MemoryExchangeTest, ABlockComesWhenItIsAskedFor) {
  user_->memory.ask_for_block(block_->number);
  EXPECT_TRUE(comes(block_->number));
  EXPECT_TRUE(eventually([&] { return user_->mapped == 1; }));
}

// A process has a bounded number of mappings. Transfers of the block take another path.
TEST_F(MemoryExchangeTest, ABlockBeyondTheMostMappedOnesIsNotMapped) {
  {
    LinkGuard guard(user_->fakes.link);
    for (uint32_t i = 0; i < Imports::kMost; ++i) {
      user_->fakes.link.imports.add(1'000'000 + i, std::make_shared<ImportedBlock>());
    }
  }
  ASSERT_EQ(owner_->block_of(data(), 1), block_->number);
  EXPECT_TRUE(eventually([&] { return user_->has_failed(block_->number); }));
  EXPECT_TRUE(user_->connection->is_open());
  {
    LinkGuard guard(user_->fakes.link);
    EXPECT_TRUE(user_->fakes.link.imports.retire(1'000'000));
  }
  user_->memory.ask_for_block(block_->number);
  EXPECT_TRUE(comes(block_->number));
}

TEST_F(MemoryExchangeTest, MessagesOfAnotherSizeBreakTheProtocol) {
  for (const size_t size : {3, 5}) {
    EXPECT_TRUE(fails_with(user_->memory.on_block_wanted(Bytes(size)), OH_ERR_PROTOCOL));
    EXPECT_TRUE(fails_with(user_->memory.on_block_retired(Bytes(size)), OH_ERR_PROTOCOL));
    EXPECT_TRUE(fails_with(user_->memory.on_block_reached(Bytes(size)), OH_ERR_PROTOCOL));
  }
  EXPECT_EQ(user_->messages, 0);
  EXPECT_EQ(owner_->messages, 0) << "nothing was answered";
}

// It may exist at the next request.
TEST_F(MemoryExchangeTest, ABlockThatIsNotThereIsAskedForAgain) {
  const uint32_t number = block_->number + 1;
  user_->memory.ask_for_block(number);
  EXPECT_TRUE(eventually([&] { return user_->has_failed(number); }));
  EXPECT_TRUE(eventually([&] { return user_->failed == 1; }));
  const std::shared_ptr<SharedBlock> next = *SharedHeap::instance().allocate(4096);
  ASSERT_EQ(next->number, number);
  user_->memory.ask_for_block(number);
  EXPECT_TRUE(comes(number));
  EXPECT_FALSE(user_->has_failed(number));
  EXPECT_TRUE(is_ok(SharedHeap::instance().free(next->mapping.data())));
}

TEST_F(MemoryExchangeTest, ARetiredBlockIsUnmapped) {
  owner_->memory.retire_block(block_->number);  // the peer does not have it
  ASSERT_EQ(owner_->block_of(data(), 1), block_->number);
  const std::weak_ptr<ImportedBlock> import = comes(block_->number);
  owner_->memory.retire_block(block_->number);
  EXPECT_TRUE(eventually([&] { return user_->retired == block_->number; }));
  EXPECT_TRUE(eventually([&] { return import.expired(); }));
  EXPECT_EQ(user_->messages, 2);
}

// The answer to an export: kernels of the user put messages into it.
TEST_F(MemoryExchangeTest, AnExportIsReachedOnceTheUserSaysSo) {
  const cuda::DevicePtr memory = allocate(4096);
  const std::shared_ptr<const GpuExport> ours = exported(memory, 4096);
  auto publish = [&] {
    LinkGuard guard(owner_->fakes.link);
    return owner_->memory.publish(ours);
  };
  user_->memory.tell_reached(ours->number);  // before it was handed over
  EXPECT_TRUE(eventually([&] { return owner_->messages == 1; }));
  EXPECT_FALSE(publish());
  EXPECT_FALSE(publish());
  user_->memory.tell_reached(ours->number);
  EXPECT_TRUE(eventually(publish));
  owner_->memory.retire_block(ours->number);
  EXPECT_FALSE(publish()) << "it is handed over again";
  free(memory);
}

// A block that arrived after the end of the link would never be released.
TEST_F(MemoryExchangeTest, AClosedLinkMapsNothing) {
  ASSERT_EQ(owner_->block_of(data(), 1), block_->number);
  ASSERT_TRUE(comes(block_->number));
  Imports rest = user_->memory.close();
  EXPECT_TRUE(rest.find(block_->number));
  user_->memory.want_block(block_->number);
  EXPECT_TRUE(eventually([&] { return user_->failed == 1; }));
  EXPECT_FALSE(user_->imported(block_->number));
}

// The link's transfers then use another path.
TEST_F(MemoryExchangeTest, WithoutAGpuNoDeviceMemoryIsMapped) {
  const uint32_t number = GpuExports::kNumberBit | 5;
  ExportRecord record;
  record.base = 0x7000;
  record.length = 100;
  record.chunks.push_back({0, 100, ChunkKind::kCudaIpc, Bytes(64)});
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  writer.u32(0);
  record.encode(writer);
  EXPECT_TRUE(is_ok(user_->memory.on_export(bytes, {}, /*first=*/true)));
  EXPECT_TRUE(user_->has_failed(number));
}

// The process is at its limit of open files: the kernel drops them.
TEST_F(MemoryExchangeTest, DeviceMemoryWhoseDescriptorsAreLostIsNotMapped) {
  const uint32_t number = GpuExports::kNumberBit | 5;
  constexpr uint64_t kChunks = 11;
  ExportRecord record;
  record.base = 0x7000;
  record.length = kChunks * 100;
  for (uint64_t i = 0; i < kChunks; ++i) {
    record.chunks.push_back({i * 100, 100, ChunkKind::kCudaFd, {}});
  }
  Bytes rest;
  Writer(rest).u32(number);
  Bytes first = rest;
  Writer writer(first);
  writer.u32(kChunks);
  record.encode(writer);
  auto some = [](size_t count) {
    std::vector<UniqueFd> fds;
    while (fds.size() < count) fds.emplace_back(eventfd(0, EFD_CLOEXEC));
    return fds;
  };
  EXPECT_TRUE(is_ok(user_->memory.on_export(first, {}, /*first=*/true)));
  EXPECT_FALSE(user_->has_failed(number));
  EXPECT_TRUE(is_ok(user_->memory.on_export(rest, some(3), /*first=*/false)));
  EXPECT_TRUE(user_->has_failed(number));
  EXPECT_TRUE(is_ok(user_->memory.on_export(first, some(8), /*first=*/true)));
  EXPECT_TRUE(is_ok(user_->memory.on_export(rest, {}, /*first=*/false)));
  EXPECT_EQ(user_->failed, 2);
  EXPECT_TRUE(is_ok(user_->memory.on_export(first, some(8), /*first=*/true)));
  EXPECT_TRUE(fails_with(user_->memory.on_export(rest, some(2), /*first=*/false), OH_ERR_PROTOCOL));
}

TEST_F(MemoryExchangeTest, TheLinkOutlivesLostDescriptors) {
  const uint32_t number = GpuExports::kNumberBit | 6;
  ExportRecord record;
  record.base = 0x7000;
  record.length = 200;
  record.chunks = {{0, 100, ChunkKind::kCudaFd, {}}, {100, 100, ChunkKind::kCudaFd, {}}};
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  writer.u32(2);
  record.encode(writer);
  const UniqueFd one(eventfd(0, EFD_CLOEXEC));
  {
    const FewFiles few(1);  // room for one of two
    EXPECT_TRUE(
        is_ok(owner_->connection->send_control(Control::kExport, bytes, {one.get(), one.get()})));
    EXPECT_TRUE(eventually([&] { return user_->has_failed(number); }));
  }
  user_->memory.ask_for_block(block_->number);
  EXPECT_TRUE(comes(block_->number));
}

TEST_F(MemoryExchangeTest, MalformedMessagesBreakTheProtocol) {
  EXPECT_TRUE(fails_with(user_->memory.on_block(Bytes(7), {}), OH_ERR_PROTOCOL));
  EXPECT_TRUE(fails_with(user_->memory.on_export(Bytes(4), {}, /*first=*/false), OH_ERR_PROTOCOL))
      << "the rest of nothing";
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(5);  // not a number of device memory
  writer.u32(0);
  EXPECT_TRUE(fails_with(user_->memory.on_export(bytes, {}, /*first=*/true), OH_ERR_PROTOCOL));
}

}  // namespace
}  // namespace unit::memory_exchange_test
