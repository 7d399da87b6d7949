// SPDX-License-Identifier: Apache-2.0
//
// Invalid pointers, devices and drivers: the status says so, and the endpoint stays usable. And a
// context that is lost for good.
#include <chrono>

#include "conformance/fake_driver.h"

namespace conformance::gpu_bad_input {
namespace {

using namespace std::chrono_literals;

// Sizes that onehop never allocates, so that its memory does not reuse the freed addresses.
constexpr size_t kSize = 2'500'000;
constexpr size_t kBeyond = 8 << 20;
constexpr size_t kApart = 2 << 20;  // sizes that differ by it share no address

class GpuBadInput : public ::testing::TestWithParam<MemoryKind> {
 protected:
  LinkKind kind() const { return between_gpus(GetParam()); }
};

void expect_text(const char* part) {
  EXPECT_NE(std::string(oh_error_text()).find(part), std::string::npos) << oh_error_text();
}

void expect_exchange(Side& side) {
  Buffer mine = side.buffer(kSize);
  if (side.number() == 0) {
    mine.fill(1);
    side.peer().send(mine.data(), kSize, 40, 20s);
  } else {
    mine.poison();
    side.peer().recv(mine.data(), kSize, 40, 20s);
    EXPECT_TRUE(mine.holds(1, kSize));
  }
}

// Send, receive, put, get and register with the same invalid memory.
void expect_refusals(Side& side, const onehop::RemoteRegion& remote, uint8_t* data, size_t size,
                     bool said) {
  oh_transfer_options options = onehop::detail::with(2s);
  oh_put_options put = onehop::detail::with(2s, nullptr, {});
  options.on_device = put.on_device = said;
  oh_peer* peer = side.peer().get();
  oh_request* request = nullptr;
  EXPECT_EQ(oh_peer_send(peer, data, size, 1, &options), OH_ERR_FAULT);
  EXPECT_EQ(oh_peer_recv(peer, data, size, 1, &options, nullptr), OH_ERR_FAULT);
  EXPECT_EQ(oh_peer_isend(peer, data, size, 1, &options, &request), OH_ERR_FAULT);
  EXPECT_EQ(oh_peer_irecv(peer, data, size, 1, &options, &request), OH_ERR_FAULT);
  EXPECT_EQ(oh_endpoint_irecv(side.endpoint().get(), data, size, 1, &options, &request),
            OH_ERR_FAULT);
  EXPECT_EQ(oh_peer_put(peer, data, remote.get(), 0, size, &put, nullptr), OH_ERR_FAULT);
  EXPECT_EQ(oh_peer_get(peer, data, remote.get(), 0, size, &put, nullptr), OH_ERR_FAULT);
}

// Freed memory that was sent and received before: peers still have it mapped.
TEST_P(GpuBadInput, FreedPointer) {
  run_pair(
      kind(),
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        // Freed memory that was never used looks like host memory, unless the caller declares it.
        for (bool known : {true, false}) {
          SCOPED_TRACE(known ? "known" : "unknown");
          // A distinct size: addresses are reused by size, and memory that the peer frees and
          // publishes is mapped and unmapped here at any time.
          Buffer mine = side.buffer(kSize + (known ? 1 : 2) * kApart);
          mine.fill(1);
          side.tell_number(known);
          if (known) side.peer().send(mine.data(), kSize, 2, 20s);
          uint8_t* data = mine.data();
          {
            Buffer gone = std::move(mine);
          }
          expect_refusals(side, remote, data, kSize, true);
        }
        side.tell_number(2);
        expect_exchange(side);
      },
      [&](Side& side) {
        Buffer target = side.buffer(kSize);
        onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
        side.tell(region.descriptor());
        for (int64_t known; (known = side.hear_number()) != 2;) {
          if (!known) continue;
          Buffer mine = side.buffer(kSize);
          side.peer().recv(mine.data(), kSize, 2, 20s);
          EXPECT_TRUE(mine.holds(1, kSize));
        }
        expect_exchange(side);
      });
}

TEST_P(GpuBadInput, PastTheEnd) {
  run_pair(
      kind(),
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer mine = side.buffer(kSize);
        // VMM memory and pools round sizes up.
        size_t beyond = kSize + kBeyond;
        for (bool said : {true, false}) expect_refusals(side, remote, mine.data(), beyond, said);
        oh_region* region = nullptr;
        EXPECT_EQ(oh_region_register(side.endpoint().get(), mine.data(), beyond, &region),
                  OH_ERR_FAULT);
        mine.fill(3);
        EXPECT_EQ(status_of([&] {
                    side.peer().put(mine.data(), remote, remote.size() - kSize + 1, kSize).wait(5s);
                  }),
                  OH_ERR_RANGE);
        side.sync();
        expect_exchange(side);
      },
      [&](Side& side) {
        Buffer target = side.buffer(kSize + kBeyond);
        target.poison();
        onehop::Region region = side.endpoint().register_memory(target.data(), target.size());
        side.tell(region.descriptor());
        side.sync();
        EXPECT_EQ(target.at(0), 0xee);
        EXPECT_EQ(target.at(target.size() - 1), 0xee);
        expect_exchange(side);
      });
}

// An endpoint for host memory gets device memory, or an event to wait for.
TEST_P(GpuBadInput, DeviceMemoryAtAHostEndpoint) {
  LinkKind link = kind();
  link.device[1] = -1;
  run_pair(
      link, [&](Side& side) { expect_exchange(side); },
      [&](Side& side) {
        {
          // The driver exists, but the endpoint does not use it.
          use_device(side.kind().driver, 1);
          Buffer mine(kSize, GetParam());
          void* stream = make_stream();
          oh_transfer_options options = onehop::detail::with(2s);
          options.on_device = 1;
          // A small message takes a shorter path once its tag is known.
          const uint64_t known = 0;
          side.peer().send(&known, sizeof(known), 1);
          for (size_t size : {size_t{8}, kSize}) {
            oh_peer* peer = side.peer().get();
            oh_status status = oh_peer_send(peer, mine.data(), size, 1, &options);
            EXPECT_TRUE(status == OH_ERR_INVALID || status == OH_ERR_NOT_VIABLE) << status;
            expect_text("device");
            status = oh_peer_recv(peer, mine.data(), size, 1, &options, nullptr);
            EXPECT_TRUE(status == OH_ERR_INVALID || status == OH_ERR_NOT_VIABLE) << status;
          }
          EXPECT_EQ(status_of([&] {
                      side.peer().send(mine.data(), kSize, 1, 2s, onehop::After::stream(stream));
                    }),
                    OH_ERR_INVALID);
          expect_text("device");
          destroy_stream(stream);
        }
        std::vector<uint8_t> host(kSize);
        side.peer().recv(host.data(), kSize, 40, 20s);
        EXPECT_EQ(host, pattern(1, kSize));
      });
}

// A copy fails and destroys the context. From then on the side with the context reports that; the
// other side reports a loss or a failure. Nothing hangs, and everything can be closed.
TEST_P(GpuBadInput, AContextThatFails) {
  for (int failing : {0, 1}) {
    for (uint64_t nth : {1, 2}) {
      SCOPED_TRACE("side " + std::to_string(failing) + ", copy " + std::to_string(nth));
      auto role = [&, failing, nth](Side& side) {
        side.connect();
        Buffer mine = side.buffer(kSize);
        Buffer other = side.buffer(kSize);
        mine.fill(1);
        // Another link of the endpoint, whose copies do not fail.
        onehop::Peer self = side.endpoint().connect(side.endpoint().address(), 20s);
        uint64_t word = 0;
        onehop::Request beside = self.irecv(&word, sizeof(word), 9);
        side.sync();
        bool ours = side.number() == failing;
        if (ours) fake_driver().fail("copy", nth, 700);
        oh_status worst = OH_OK;
        for (int i = 0; i < 3; ++i) {
          for (bool sends : {side.number() == 0, side.number() == 1}) {
            oh_status status = status_of([&] {
              if (sends) {
                side.peer().send(mine.data(), kSize, 1, 20s);
              } else {
                side.peer().recv(other.data(), kSize, 1, 20s);
              }
            });
            EXPECT_NE(status, OH_ERR_TIMEOUT) << i << " hangs";
            if (status != OH_OK && worst == OH_OK) worst = status;
          }
        }
        // Either side's engine may copy; but if the local one failed, the local endpoint is
        // unusable.
        if (ours) {
          EXPECT_TRUE(worst == OH_ERR_DEVICE || worst == OH_OK) << worst;
          if (worst == OH_ERR_DEVICE) {
            EXPECT_EQ(status_of([&] { side.peer().send(mine.data(), kSize, 1, 20s); }),
                      OH_ERR_DEVICE);
            expect_text("700");
            // The loss may have ended it.
            const bool released = beside.buffer_released();
            auto message = onehop::detail::sized<oh_message>();
            EXPECT_EQ(released, oh_request_message(beside.get(), &message) != OH_IN_PROGRESS);
            oh_endpoint_close(side.endpoint().get());
            EXPECT_TRUE(beside.buffer_released());
          }
        } else {
          EXPECT_TRUE(worst == OH_OK || worst == OH_ERR_PEER_LOST || worst == OH_ERR_DEVICE ||
                      worst == OH_ERR_IN_DOUBT)
              << worst;
        }
        side.tell_number(worst);
        int64_t theirs = side.hear_number();
        EXPECT_EQ(worst == OH_OK, theirs == OH_OK);
        side.disconnect();
        fflush(nullptr);
        // Memory allocated in a lost context cannot be freed.
        _exit(::testing::Test::HasFailure() ? 1 : 0);
      };
      run_apart(kind(), role, role);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuBadInput, ::testing::ValuesIn(kDeviceKinds),
                         [](const auto& test) { return std::string(memory_name(test.param)); });

oh_status create_on(const char* device) {
  oh_endpoint_options options{};
  options.struct_size = sizeof(options);
  options.device = device;
  oh_endpoint* endpoint = nullptr;
  oh_status status = oh_endpoint_create(&options, &endpoint);
  if (status == OH_OK) oh_endpoint_destroy(endpoint);
  return status;
}

TEST(GpuDrivers, UnknownDevices) {
  Role role = [&](Side&) {
    for (const char* name :
         {"cuda:2", "cuda:-1", "cuda:", "cuda:99999999999", "GPU-0", "gpu", ""}) {
      oh_status status = create_on(name);
      bool refused = status == OH_ERR_INVALID || status == OH_ERR_NOT_VIABLE;
      EXPECT_TRUE(refused || (*name == 0 && status == OH_OK)) << name << " " << status;
      if (refused) expect_text("cuda:");
    }
    EXPECT_EQ(create_on("cuda:1"), OH_OK);
    EXPECT_EQ(create_on("cuda"), OH_OK);
  };
  run_apart(between_gpus(MemoryKind::kMalloc), role, role);
}

TEST(GpuDrivers, AnEndpointTellsItsDevice) {
  Role role = [&](Side&) {
    EXPECT_EQ(onehop::Endpoint().device(), -1);
    oh_endpoint_options options{};
    options.struct_size = sizeof(options);
    options.device = "cuda:1";
    onehop::Endpoint endpoint(&options);
    EXPECT_EQ(endpoint.device(), 1);
    int32_t ordinal = 0;
    EXPECT_EQ(oh_endpoint_device(nullptr, &ordinal), OH_ERR_INVALID);
    EXPECT_EQ(oh_endpoint_device(endpoint.get(), nullptr), OH_ERR_INVALID);
    oh_endpoint_close(endpoint.get());
    EXPECT_EQ(oh_endpoint_device(endpoint.get(), &ordinal), OH_ERR_CLOSED);
  };
  run_apart(between_gpus(MemoryKind::kMalloc), role, role);
}

TEST(GpuDrivers, NoDriver) {
  for (const char* library : {"/no/such", "off"}) {
    SCOPED_TRACE(library);
    LinkKind kind = between_gpus(MemoryKind::kMalloc);
    kind.env["ONEHOP_CUDA_LIBRARY"] = library;
    Role role = [&](Side&) {
      EXPECT_EQ(create_on("cuda"), OH_ERR_NOT_VIABLE);
      expect_text(library);
      expect_text("ONEHOP_CUDA_LIBRARY");
      // Host memory needs no driver.
      EXPECT_EQ(create_on("host"), OH_OK);
      EXPECT_EQ(create_on(nullptr), OH_OK);
    };
    run_apart(kind, role, role);
  }
}

TEST(GpuDrivers, NoDevice) {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["CUDA_VISIBLE_DEVICES"] = "";
  Role role = [&](Side&) {
    EXPECT_EQ(create_on("cuda"), OH_ERR_NOT_VIABLE);
    expect_text("CUDA_VISIBLE_DEVICES");
  };
  run_apart(kind, role, role);
}

// Errors of the driver's initialisation.
TEST(GpuDrivers, ADriverThatDoesNotStart) {
  for (const char* call : {"cuInit:1:100", "cuInit:1:3", "cuDriverGetVersion:1:1",
                           "cuDeviceGetCount:1:2", "cuDevicePrimaryCtxRetain:1:2"}) {
    SCOPED_TRACE(call);
    LinkKind kind = between_gpus(MemoryKind::kMalloc);
    kind.env["FAKE_CUDA"] = std::string("devices=2,fail=") + call;
    Role role = [&](Side&) {
      EXPECT_NE(create_on("cuda"), OH_OK);
      expect_text(std::string(call).substr(0, std::string(call).find(':')).c_str());
      EXPECT_EQ(create_on("cuda"), OH_OK) << "the second time";
      EXPECT_TRUE(eventually([] { return Open::now().driver.contexts == 0; }));
    };
    run_apart(kind, role, role);
  }
}

}  // namespace
}  // namespace conformance::gpu_bad_input
