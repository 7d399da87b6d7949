// SPDX-License-Identifier: Apache-2.0
#include "fuzz/victim.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "platform/os/os.h"

namespace fuzz {

using namespace oh;

namespace {

constexpr size_t kRegionSize = 1000;

// Stands for the other side's memory: there is none, but every address can be read and written.
class NoMover final : public Mover {
 public:
  const char* name() const override { return "none"; }
  Status read(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) std::memset(piece.local, 7, piece.size);
    return {};
  }
  Status write(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) {
      const auto* bytes = static_cast<const uint8_t*>(piece.local);
      for (size_t i = 0; i < piece.size; ++i) sum_ += bytes[i];
    }
    return {};
  }

 private:
  uint64_t sum_ = 0;
};

Config config() {
  Result<Config> made = Config::from([](const char* name) -> const char* {
    std::string_view wanted = name;
    if (wanted == "ONEHOP_LOG" || wanted == "ONEHOP_PROGRESS_THREAD") return "off";
    if (wanted == "ONEHOP_INTERFACE") return "127.0.0.1";
    return nullptr;
  });
  return *made;
}

}  // namespace

std::shared_ptr<Endpoint> Victim::shared_endpoint() {
  static std::weak_ptr<Endpoint>* const shared = new std::weak_ptr<Endpoint>;
  std::shared_ptr<Endpoint> endpoint = shared->lock();
  if (!endpoint) {
    endpoint = *Endpoint::create(config(), {});
    *shared = endpoint;
  }
  return endpoint;
}

Victim::Victim(bool segment, int reach, std::unique_ptr<UcxChannel> ucx)
    : memory_(new uint8_t[kRegionSize]()) {
  endpoint_ = shared_endpoint();
  region_ = *endpoint_->memory().register_region(memory_.get(), kRegionSize);
  LinkParts parts;
  parts.identity.label = "fuzzer";
  parts.mine = endpoint_->limits();
  parts.theirs = endpoint_->limits();
  parts.asked_inline = endpoint_->limits().max_inline;
  if (segment) {
    theirs_ = std::move(*Segment::create(/*shared=*/false));
    parts.segment = Segment::alias(*theirs_);
    theirs_->take_side(0, false);
    parts.segment->take_side(1, false);
    theirs_->advance(SideState::kReady);
    parts.segment->advance(SideState::kReady);
    if (reach & 1) parts.mover = std::make_unique<NoMover>();
    parts.they_reach_us = (reach & 2) != 0;
    parts.their_page = endpoint_->control_page();
  } else {
    int fds[2] = {-1, -1};
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0,
            "sockets");
    their_socket_ = UniqueFd(fds[0]);
    parts.connection = std::make_shared<Connection>(endpoint_->node(),
                                                    MessageSocket(UniqueFd(fds[1]), 1 << 20), 0);
    parts.ucx = std::move(ucx);
  }
  peer_ = Peer::create(endpoint_, std::move(parts));
  // Behind a socket the watcher would read on a thread of its own: hear() does it instead.
  if (segment) require(endpoint_->adopt(peer_).ok(), "the peer is taken in");
}

Victim::~Victim() {
  for (auto& operation : operations_) (void)endpoint_->requests().cancel(&operation->request).ok();
  peer_->close();
  tidy();
  require(operations_.empty(), "every operation ends with its link");
  endpoint_->forget(peer_);
  require(endpoint_->memory().deregister(*region_, Deadline::never()).ok(),
          "a region can be retired");
  collect();
}

Victim::Operation& Victim::begin(OpKind kind, uint64_t tag, size_t size) {
  auto operation = std::make_unique<Operation>();
  operation->buffer.reset(new uint8_t[size]());
  operation->request.kind = kind;
  operation->request.endpoint = endpoint_.get();
  operation->request.data = operation->buffer.get();
  operation->request.size = size;
  operation->request.tag = tag;
  operations_.push_back(std::move(operation));
  return *operations_.back();
}

// Forgets what has ended.
void Victim::tidy() {
  std::erase_if(operations_, [](const auto& each) { return each->request.ended(); });
}

void Victim::post_recv(uint64_t tag, size_t capacity, bool any_source) {
  Operation& operation = begin(OpKind::kRecv, tag, capacity);
  Status status = any_source && segment()
                      ? endpoint_->requests().post_any_source(&operation.request)
                      : peer_->operations().messages().post_recv(&operation.request);
  if (!status.ok()) operations_.pop_back();
}

void Victim::post_send(uint64_t tag, size_t size) {
  Operation& operation = begin(OpKind::kSend, tag, size);
  if (!peer_->operations().messages().post_send(&operation.request).ok()) operations_.pop_back();
}

void Victim::post_one_sided(bool put, size_t size, bool notify, bool to_device) {
  Operation& operation = begin(put ? OpKind::kPut : OpKind::kGet, 0, size);
  RemoteTarget target;
  target.length = 100000;
  target.version = 1;
  std::vector<Block> halves = {{operation.buffer.get(), 0, size / 2},
                               {operation.buffer.get() + size / 2, 50000, size - size / 2}};
  ByteView bytes = as_bytes("done");
  const ByteView* behind = notify && put ? &bytes : nullptr;
  auto list = std::make_shared<const std::vector<Block>>(std::move(halves));
  target.on_device = to_device;
  const MovePart part{.target = target, .blocks = *list, .count = list->size(), .bytes = size};
  Status status = peer_->operations().one_sided().move(
      &operation.request, {.put = put, .parts = {&part, 1}, .list = list, .notify = behind});
  if (!status.ok()) operations_.pop_back();
}

void Victim::cancel_oldest(bool give_up) {
  tidy();
  if (operations_.empty()) return;
  Request* request = &operations_.front()->request;
  if (give_up && request->peer) {
    peer_->operations().try_end(request, error(OH_ERR_TIMEOUT, "given up"),
                                Operations::Force::kGiveUp);
  } else {
    (void)endpoint_->requests().cancel(request).ok();
  }
}

void Victim::progress() {
  if (segment()) {
    endpoint_->progress_thoroughly();
  } else {
    peer_->operations().progress(nullptr);
    char sink[4096];
    while (read(their_socket_.get(), sink, sizeof(sink)) > 0) {
    }
    peer_->on_idle();
  }
  tidy();
}

void Victim::collect() {
  Notification notification;
  size_t size = 0;
  while (true) {
    Result<bool> taken = endpoint_->notifications().take(SIZE_MAX, &notification, &size);
    if (!taken.ok() || !*taken) return;
  }
}

void Victim::hear(uint8_t type, ByteView payload, bool with_fd) {
  std::vector<UniqueFd> fds;
  if (with_fd) {
    Result<UniqueFd> fd = make_memfd("fuzz", 4096);
    if (fd.ok()) fds.push_back(std::move(*fd));
  }
  Status status = peer_->on_message(type, payload, std::move(fds));
  if (!status.ok()) peer_->on_lost(status);
}

}  // namespace fuzz
