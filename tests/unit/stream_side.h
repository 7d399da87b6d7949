// SPDX-License-Identifier: Apache-2.0
//
// One side of a link with its own lanes and the watcher thread that serves them, for tests of the
// parts of StreamLink.
//
// Threading: the test's thread; posted work runs on the watcher's thread.
#pragma once

#include <future>
#include <memory>
#include <utility>

#include "lane/lanes.h"
#include "lane/stream_domain.h"
#include "unit/fake_link.h"
#include "unit/gpu_memory.h"

namespace unit {

struct StreamSide {
  StreamSide(oh::StreamDomain& domain, const std::shared_ptr<oh::cuda::Gpu>& gpu) : owners(domain) {
    link.my_bell = &page.doorbell();
    owners.bind(peer, endpoint);
    oh::Result<std::unique_ptr<oh::Lanes>> made =
        oh::Lanes::create(gpu, oh::kernels::kLeastSlab, 1 << 18);
    EXPECT_TRUE(is_ok(made));
    lanes = std::move(*made);
  }
  void connect(StreamSide& other) {
    lanes->connect(other.lanes->slab()->address(), other.lanes->sizes(), other.lanes->slab());
  }

  FakeLink fakes;
  oh::Link& link = fakes.link;
  oh::ControlPage page = std::move(*oh::ControlPage::create());
  std::shared_ptr<void> peer = std::make_shared<int>();  // stands for the owning peer
  std::shared_ptr<void> endpoint = std::make_shared<int>();
  oh::StreamOwners owners;
  std::unique_ptr<oh::Lanes> lanes;
};

class StreamSideTest : public GpuMemoryTest {
 protected:
  // Waits until the watcher's thread has done all work posted before.
  void await_watcher() {
    std::promise<void> done;
    watcher->post([&done] { done.set_value(); });
    done.get_future().wait();
  }
  // Waits until the driver has been queried a few more times for completion.
  ::testing::AssertionResult asks_the_driver() {
    const uint64_t before = calls("cuEventQuery");
    return eventually([&] { return calls("cuEventQuery") > before + 3; })
               ? ::testing::AssertionSuccess()
               : ::testing::AssertionFailure() << "nobody asks";
  }

  oh::ControlPage page = std::move(*oh::ControlPage::create());
  std::unique_ptr<oh::Watcher> watcher = std::move(*oh::Watcher::start());
  oh::StreamDomain domain{{.watcher = *watcher,
                           .doorbell = page.doorbell(),
                           .slab_bytes = oh::kernels::kLeastSlab,
                           .small_max = 1 << 18,
                           .make_proxy = nullptr,
                           .endpoint = nullptr,
                           .start_progress = nullptr}};
};

}  // namespace unit
