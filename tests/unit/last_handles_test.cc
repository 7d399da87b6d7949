// SPDX-License-Identifier: Apache-2.0
//
// The calls that close an endpoint or delete a handle wait for the watcher's callbacks: after the
// last handle of a process, nothing of its endpoints runs in another thread.
#include <dirent.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "capi/handles.h"
#include "control/handshake.h"
#include "onehop/batch.h"
#include "onehop/comm.h"
#include "onehop/endpoint.h"
#include "onehop/peer.h"
#include "unit/support.h"

namespace last_handles_test {
namespace {

using namespace oh;
using unit::is_ok;

constexpr int64_t kPatience = 20 * kSecond;

// Counts the threads of onehop.
size_t threads() {
  size_t count = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (dirent* entry = readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    count += std::getline(file, name) && name.starts_with("onehop");
  }
  closedir(tasks);
  return count;
}

// Calls `deletes` while a callback of the watcher holds the endpoint.
void expect_wait(const std::shared_ptr<Endpoint>& endpoint, const std::function<void()>& deletes) {
  std::promise<void> runs;
  auto held = std::make_shared<std::shared_ptr<Endpoint>>(endpoint);
  const std::weak_ptr<void> callback = held;
  endpoint->node()->watcher().post([held = std::move(held), &runs] {
    runs.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  runs.get_future().wait();
  deletes();
  EXPECT_TRUE(callback.expired());
}

std::shared_ptr<Endpoint> make_endpoint() {
  Result<std::shared_ptr<Endpoint>> made =
      Endpoint::create(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}), {});
  EXPECT_TRUE(is_ok(made));
  return *made;
}

// The kernel lists a thread for a moment after another one has joined it.
::testing::AssertionResult threads_come_back_to(size_t before) {
  if (unit::eventually([before] { return threads() <= before; })) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << threads() << " threads, " << before << " before";
}

TEST(LastHandles, OfAnEndpointWaitForCallbacks) {
  const size_t before = threads();
  auto* endpoint = new oh_endpoint{make_endpoint()};
  auto* other = new oh_endpoint{make_endpoint()};
  const Bytes address = other->endpoint->own_address().encode();
  oh_peer* peer = nullptr;
  ASSERT_EQ(oh_endpoint_connect(endpoint, address.data(), address.size(), kPatience, &peer), OH_OK);
  Bytes memory(64);
  oh_region* region = nullptr;
  ASSERT_EQ(oh_region_register(other, memory.data(), memory.size(), &region), OH_OK);
  Bytes descriptor(4096);
  size_t size = descriptor.size();
  ASSERT_EQ(oh_region_descriptor(region, descriptor.data(), &size), OH_OK);
  oh_remote_region* remote = nullptr;
  ASSERT_EQ(oh_peer_attach(peer, descriptor.data(), size, kPatience, &remote), OH_OK);
  oh_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.local = memory.data();
  batch.local_size = batch.length = memory.size();
  batch.count = 1;
  oh_prepared_batch* prepared = nullptr;
  ASSERT_EQ(oh_peer_prepare_put(peer, remote, &batch, &prepared), OH_OK) << oh_error_text();
  oh_prepared_batch* early = nullptr;
  ASSERT_EQ(oh_peer_prepare_put(peer, remote, &batch, &early), OH_OK) << oh_error_text();
  oh_request* request = nullptr;
  ASSERT_EQ(oh_peer_irecv(peer, memory.data(), memory.size(), 0, nullptr, &request), OH_OK);

  // While an endpoint is open, a callback delays no one.
  std::promise<void> runs;
  std::promise<void> ends;
  endpoint->endpoint->node()->watcher().post([&] {
    runs.set_value();
    ends.get_future().wait();
  });
  runs.get_future().wait();
  oh_prepared_batch_release(early);
  ends.set_value();

  expect_wait(other->endpoint, [&] { oh_endpoint_close(other); });
  expect_wait(endpoint->endpoint, [&] { oh_endpoint_close(endpoint); });
  expect_wait(endpoint->endpoint, [&] { oh_prepared_batch_release(prepared); });
  expect_wait(endpoint->endpoint, [&] { oh_remote_region_detach(remote); });
  expect_wait(endpoint->endpoint, [&] { oh_peer_release(peer); });
  expect_wait(other->endpoint, [&] { oh_region_release(region); });
  expect_wait(other->endpoint, [&] { oh_endpoint_destroy(other); });
  const std::weak_ptr<Endpoint> weak = endpoint->endpoint;
  expect_wait(endpoint->endpoint, [&] { oh_endpoint_destroy(endpoint); });
  EXPECT_FALSE(weak.expired());  // the request holds it
  expect_wait(weak.lock(), [&] { oh_request_release(request); });
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(threads_come_back_to(before));
}

TEST(LastHandles, OfACommunicatorWaitForCallbacks) {
  const size_t before = threads();
  const std::string rendezvous = strf("tcp://127.0.0.1:%u", unit::free_port(AF_INET));
  oh_comm_options options{};
  options.struct_size = sizeof(options);
  options.size = 1;
  options.rendezvous = rendezvous.c_str();
  oh_comm* comm = nullptr;
  ASSERT_EQ(oh_comm_create(&options, &comm), OH_OK) << oh_error_text();
  expect_wait(comm->endpoint.endpoint, [&] { oh_comm_close(comm); });
  expect_wait(comm->endpoint.endpoint, [&] { oh_comm_destroy(comm); });
  EXPECT_TRUE(threads_come_back_to(before));
}

TEST(LastHandles, OutliveNoHandshake) {
  auto* endpoint = new oh_endpoint{make_endpoint()};
  const std::weak_ptr<Endpoint> weak = endpoint->endpoint;
  Initiator initiator;
  ASSERT_TRUE(is_ok(initiator.start(endpoint->endpoint->own_address(), **Crypto::open(""), {},
                                    Deadline::after(kPatience))));
  oh_endpoint_destroy(endpoint);
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(unit::fails_with(initiator.exchange({}, {}, Deadline::after(kPatience)),
                               OH_ERR_REFUSED, "closed during the handshake"));
}

}  // namespace
}  // namespace last_handles_test
