// SPDX-License-Identifier: Apache-2.0
#include "conformance/gpu_script.h"

#include <unistd.h>

#include <chrono>

#include "conformance/batches.h"

namespace conformance {
namespace {

using namespace std::chrono_literals;

// The subject's requests to its partner. A step is: the command, its numbers, the outcome.
enum Command : int64_t {
  kEnd,
  kAddress,  // replied with the address
  kAccept,
  kReceive,    // size, seed; replied when the receive is posted, and with the outcome
  kSend,       // the same
  kUseRegion,  // descriptor; replied with the results of get and put
  kShowRegion,
  kHideRegion,
};

constexpr size_t kSmall = 40'000;
constexpr size_t kLarge = 5'000'000;  // more than the sides exchange without waiting
constexpr int64_t kPatience = 5'000'000'000;

int64_t outcome_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const onehop::Error& failure) {
    return failure.status();
  }
  return OH_OK;
}

// The partner's part.
class Partner {
 public:
  explicit Partner(Side& side) : side_(side) {
    oh_endpoint_options options{};
    options.struct_size = sizeof(options);
    std::string device = "cuda:" + std::to_string(side.kind().device[side.number()]);
    options.device = device.c_str();
    options.progress_thread = 1;
    use_device(side.kind().driver, side.kind().device[side.number()]);
    endpoint_ = std::make_unique<onehop::Endpoint>(&options);
  }

  void run() {
    while (true) {
      alarm(60);
      switch (side_.hear_number()) {
        case kAddress:
          side_.tell(endpoint_->address());
          break;
        case kAccept:
          peer_ = std::make_unique<onehop::Peer>(endpoint_->accept(20s));
          break;
        case kReceive:
          receive();
          break;
        case kSend:
          send();
          break;
        case kUseRegion:
          use_region();
          break;
        case kShowRegion:
          show_region();
          break;
        case kHideRegion:
          region_.reset();
          shown_.reset();
          break;
        default:
          return;
      }
    }
  }

 private:
  // The subject reports the outcome on its side: if it failed, the local request need not end by
  // itself.
  int64_t end(onehop::Request& request) {
    while (!side_.was_told()) endpoint_->progress();
    if (side_.hear_number() == OH_OK) {
      return outcome_of([&] { request.wait(20s); });
    }
    int64_t status = outcome_of([&] { request.wait(10ms); });
    EXPECT_TRUE(eventually([&] { return request.buffer_released(); })) << status;
    return status;
  }

  void receive() {
    auto size = static_cast<size_t>(side_.hear_number());
    auto seed = static_cast<uint64_t>(side_.hear_number());
    Buffer buffer = side_.buffer(size);
    buffer.poison();
    std::optional<onehop::Request> request;
    int64_t status = outcome_of([&] { request.emplace(peer_->irecv(buffer.data(), size, seed)); });
    side_.tell_number(0);
    if (request) {
      status = end(*request);
    } else {
      side_.hear_number();
    }
    if (status == OH_OK) {
      EXPECT_TRUE(buffer.holds(seed, size));
    }
    side_.tell_number(status);
  }

  void send() {
    auto size = static_cast<size_t>(side_.hear_number());
    auto seed = static_cast<uint64_t>(side_.hear_number());
    Buffer buffer = side_.buffer(size);
    buffer.fill(seed);
    std::optional<onehop::Request> request;
    int64_t status = outcome_of([&] { request.emplace(peer_->isend(buffer.data(), size, seed)); });
    side_.tell_number(0);
    if (request) {
      status = end(*request);
    } else {
      side_.hear_number();
    }
    side_.tell_number(status);
  }

  void use_region() {
    onehop::Bytes descriptor = side_.hear();
    auto seed = static_cast<uint64_t>(side_.hear_number());
    Buffer buffer = side_.buffer(kSmall);
    side_.tell_number(outcome_of([&] {
      onehop::RemoteRegion remote = peer_->attach(descriptor, 5s);
      peer_->get(buffer.data(), remote, 0, kSmall).wait(5s);
      EXPECT_TRUE(buffer.holds(seed, kSmall));
      buffer.fill(seed + 1);
      peer_->put(buffer.data(), remote, 0, kSmall).wait(5s);
    }));
  }

  void show_region() {
    auto seed = static_cast<uint64_t>(side_.hear_number());
    shown_.emplace(side_.buffer(kSmall));
    shown_->fill(seed);
    region_.emplace(endpoint_->register_memory(shown_->data(), kSmall));
    side_.tell(region_->descriptor());
  }

  Side& side_;
  std::unique_ptr<onehop::Endpoint> endpoint_;
  std::unique_ptr<onehop::Peer> peer_;
  std::optional<Buffer> shown_;
  std::optional<onehop::Region> region_;
};

}  // namespace

void go_along(Side& side) { Partner(side).run(); }

Subject::Subject(Side& side)
    : side_(side), small_(side.buffer(kSmall)), large_(side.buffer(kLarge)) {
  stream_ = make_stream();
}

Subject::~Subject() {
  close();
  destroy_stream(stream_);
  side_.tell_number(kEnd);
}

bool Subject::step(const std::string& name, const std::function<oh_status()>& call) {
  oh_status status = call();
  if (status == OH_OK) return true;
  failures_.push_back({name, status, oh_error_text()});
  return false;
}

void Subject::put_bytes(Buffer& buffer, uint64_t seed) {
  onehop::Bytes bytes = pattern(seed, buffer.size());
  fake_driver().poke(reinterpret_cast<uint64_t>(buffer.data()), bytes.data(), bytes.size());
}

bool Subject::has_bytes(Buffer& buffer, uint64_t seed) {
  onehop::Bytes bytes(buffer.size());
  fake_driver().peek(reinterpret_cast<uint64_t>(buffer.data()), bytes.data(), bytes.size());
  return bytes == pattern(seed, buffer.size());
}

bool Subject::link() {
  side_.tell_number(kAddress);
  onehop::Bytes address = side_.hear();
  oh_peer* made = nullptr;
  bool linked = step("connect", [&] {
    return oh_endpoint_connect(endpoint_.get(), address.data(), address.size(), kPatience, &made);
  });
  if (!linked) return false;
  peer_.reset(made);
  side_.tell_number(kAccept);
  return true;
}

void Subject::begin() {
  std::string device = "cuda:" + std::to_string(side_.kind().device[side_.number()]);
  oh_endpoint_options options{};
  options.struct_size = sizeof(options);
  options.device = device.c_str();
  for (int attempt = 0; attempt < 2 && !endpoint_; ++attempt) {
    oh_endpoint* made = nullptr;
    if (step("create", [&] { return oh_endpoint_create(&options, &made); })) endpoint_.reset(made);
  }
  for (int attempt = 0; attempt < 2 && endpoint_ && !peer_; ++attempt) link();
  ASSERT_TRUE(peer_) << "there is no link although the driver fails only once";
}

void Subject::message(const std::string& name, bool sends, Buffer& buffer,
                      const onehop::After& after) {
  uint64_t seed = ++seed_;
  if (sends) put_bytes(buffer, seed);
  side_.tell_number(sends ? kReceive : kSend);
  side_.tell_number(static_cast<int64_t>(buffer.size()));
  side_.tell_number(static_cast<int64_t>(seed));
  side_.hear_number();
  oh_transfer_options options = onehop::detail::with(onehop::Timeout(kPatience), after);
  options.on_device = 1;
  oh_status status = OH_OK;
  // Small messages by the blocking call, others by a request.
  bool ended = step(name, [&] {
    if (buffer.size() == kSmall) {
      return status =
                 sends ? oh_peer_send(peer_.get(), buffer.data(), kSmall, seed, &options)
                       : oh_peer_recv(peer_.get(), buffer.data(), kSmall, seed, &options, nullptr);
    }
    oh_request* request = nullptr;
    status =
        sends ? oh_peer_isend(peer_.get(), buffer.data(), buffer.size(), seed, &options, &request)
              : oh_peer_irecv(peer_.get(), buffer.data(), buffer.size(), seed, &options, &request);
    if (status != OH_OK) return status;
    status = oh_request_wait(request, kPatience);
    EXPECT_TRUE(status != OH_OK || oh_request_buffer_released(request));
    std::string text = oh_error_text();
    EXPECT_TRUE(eventually([&] {
      oh_endpoint_progress(endpoint_.get());
      return oh_request_buffer_released(request) != 0;
    })) << text;
    // The failure's text is needed afterwards.
    if (status != OH_OK) (void)oh_request_wait(request, kPatience);
    oh_request_release(request);
    return status;
  });
  side_.tell_number(status);
  int64_t theirs = side_.hear_number();
  if (ended) {
    EXPECT_EQ(theirs, OH_OK) << name << " went well here only";
    if (!sends) {
      EXPECT_TRUE(has_bytes(buffer, seed)) << name;
    }
  }
}

void Subject::serve_region() {
  uint64_t seed = ++seed_;
  ++seed_;
  put_bytes(small_, seed);
  oh_region* made = nullptr;
  bool registered = step("register", [&] {
    return oh_region_register(endpoint_.get(), small_.data(), kSmall, &made);
  });
  if (!registered) return;
  std::unique_ptr<oh_region, void (*)(oh_region*)> region(made, oh_region_release);
  uint8_t descriptor[4096];
  size_t size = sizeof(descriptor);
  EXPECT_EQ(oh_region_descriptor(region.get(), descriptor, &size), OH_OK);
  side_.tell_number(kUseRegion);
  side_.tell(onehop::Bytes(descriptor, descriptor + size));
  side_.tell_number(static_cast<int64_t>(seed));
  while (!side_.was_told()) oh_endpoint_progress(endpoint_.get());
  bool served = side_.hear_number() == OH_OK;
  if (served) {
    EXPECT_TRUE(has_bytes(small_, seed + 1)) << "after the partner's put";
  }
  step("deregister", [&] { return oh_region_deregister(region.get(), kPatience); });
}

void Subject::use_region() {
  uint64_t seed = ++seed_;
  side_.tell_number(kShowRegion);
  side_.tell_number(static_cast<int64_t>(seed));
  onehop::Bytes descriptor = side_.hear();
  oh_remote_region* made = nullptr;
  bool attached = step("attach", [&] {
    return oh_peer_attach(peer_.get(), descriptor.data(), descriptor.size(), kPatience, &made);
  });
  if (attached) {
    oh_put_options options = onehop::detail::with(onehop::Timeout(kPatience), nullptr, {});
    options.on_device = 1;
    options.after = OH_AFTER_STREAM;
    options.after_handle = stream_;
    uint64_t mine = ++seed_;
    put_bytes(small_, mine);
    bool put = step("put", [&] {
      return oh_peer_put(peer_.get(), small_.data(), made, 0, kSmall, &options, nullptr);
    });
    put_bytes(small_, 0);
    bool got = step("get", [&] {
      return oh_peer_get(peer_.get(), small_.data(), made, 0, kSmall, &options, nullptr);
    });
    if (got) {
      // A put that failed may have moved its bytes.
      EXPECT_TRUE(has_bytes(small_, mine) || (!put && has_bytes(small_, seed))) << "after a get";
    }
    // The same in blocks that swap their places, there and back.
    constexpr uint64_t kHalf = kSmall / 2;
    const uint64_t here[] = {0, kHalf + 1, kHalf};
    const uint64_t there[] = {kHalf, 1, 0};
    const uint64_t lengths[] = {kHalf, kHalf - 1, 1};
    oh_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.local = small_.data();
    batch.local_size = kSmall;
    batch.count = std::size(lengths);
    batch.local_offsets = here;
    batch.remote_offsets = there;
    batch.lengths = lengths;
    uint64_t blocks = ++seed_;
    put_bytes(small_, blocks);
    bool moved = step("put_batch", [&] {
      return oh_peer_put_batch(peer_.get(), made, &batch, &options, nullptr);
    });
    put_bytes(small_, 0);
    bool back = step("get_batch", [&] {
      return oh_peer_get_batch(peer_.get(), made, &batch, &options, nullptr);
    });
    if (moved && back) {
      EXPECT_TRUE(has_bytes(small_, blocks)) << "after batches";
    }
    if (oh_remote_region_is_mapped(made) != 0) use_region_in_stream(made);
    oh_remote_region_detach(made);
  }
  side_.tell_number(kHideRegion);
}

// More blocks than one kernel takes, there and back.
void Subject::use_region_in_stream(oh_remote_region* remote) {
  constexpr size_t kCount = 1600;
  constexpr uint64_t kLength = kSmall / kCount;
  Blocks blocks;
  // In descending order: adjacent blocks in ascending order are merged.
  for (uint64_t i = kCount; i-- > 0;) blocks.add(i * kLength, kLength);
  const oh_batch batch = blocks.batch(small_);
  const uint64_t seed = ++seed_;
  put_bytes(small_, seed);
  const bool put = step("put_batch in a stream", [&] {
    return oh_peer_stream_put_batch(peer_.get(), stream_, remote, &batch);
  });
  synchronize_stream(stream_);
  put_bytes(small_, 0);
  const bool got = step("get_batch in a stream", [&] {
    return oh_peer_stream_get_batch(peer_.get(), stream_, remote, &batch);
  });
  synchronize_stream(stream_);
  if (put && got) {
    EXPECT_TRUE(has_bytes(small_, seed)) << "after batches in a stream";
  }
}

void Subject::exchange() {
  auto alive = [&] {
    // After a failure that lost the link, a new link is created on the same endpoint.
    bool lost = !failures_.empty() && oh_status_scope(failures_.back().status) == OH_SCOPE_LINK;
    return !lost || link();
  };
  message("send", true, small_, {});
  if (alive()) message("recv", false, small_, {});
  if (alive()) message("isend", true, large_, {});
  if (alive()) message("irecv", false, large_, {});
  if (alive()) message("isend after a stream", true, large_, onehop::After::stream(stream_));
  if (alive()) message("irecv after a stream", false, large_, onehop::After::stream(stream_));
  if (alive()) serve_region();
  if (alive()) use_region();
  alive();
}

void Subject::close() {
  peer_.reset();
  endpoint_.reset();
}

}  // namespace conformance
