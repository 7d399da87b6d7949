// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

#include "operation.h"

namespace onehop::python {
namespace {

std::atomic<uint32_t> g_forks{0};

// Never destroyed: threads may still run during static destruction.
struct Contexts {
  std::mutex mutex;
  std::vector<std::weak_ptr<Context>> all;
};
Contexts& contexts() {
  static auto* const instance = new Contexts;
  return *instance;
}

void add(const std::shared_ptr<Context>& context) {
  Contexts& known = contexts();
  std::lock_guard lock(known.mutex);
  std::erase_if(known.all, [](const auto& weak) { return weak.expired(); });
  known.all.push_back(context);
}

// No validation: the library has just accepted the same variable, or applies the same default.
int64_t read_default_timeout() {
  const char* text = std::getenv("ONEHOP_TIMEOUT");
  if (text && !*text) text = nullptr;
  for (size_t i = 0; !text; ++i) {
    auto entry = detail::sized<oh_config_entry>();
    check(oh_config_get(i, &entry));
    if (std::string_view(entry.name) == "ONEHOP_TIMEOUT") text = entry.standard;
  }
  return static_cast<int64_t>(std::strtod(text, nullptr) * 1e9);
}

bool is_gpu(const char* device) { return device && std::string_view(device) != "host"; }

}  // namespace

uint32_t forks() { return g_forks.load(std::memory_order_relaxed); }

void watch_forks() {
  auto in_parent = [] { contexts().mutex.unlock(); };
  auto in_child = [] {
    g_forks.fetch_add(1, std::memory_order_relaxed);
    g_threads_without_gil.store(0);  // the child has no other threads
    contexts().all.clear();
    contexts().mutex.unlock();
  };
  pthread_atfork([] { contexts().mutex.lock(); }, in_parent, in_child);
}

Context::Context(const oh_endpoint_options& options)
    : default_timeout_ns_(read_default_timeout()),
      device_(options.device ? options.device : "host"),
      no_device_(
          is_gpu(options.device)
              ? nullptr
              : "which an endpoint for host memory cannot reach: create the Endpoint (or the "
                "Communicator) with device=..., say device=0, or copy it to the host first") {}

std::shared_ptr<Context> Context::create(const oh_endpoint_options& options) {
  Owned<Endpoint> endpoint{Endpoint(&options)};
  std::shared_ptr<Context> context(new Context(options));
  context->endpoint_ = std::move(endpoint);
  context->ordinal_ = context->endpoint().device();
  add(context);
  return context;
}

std::shared_ptr<Context> Context::create(oh_comm_options options, const int* cancelled) {
  Owned<Communicator> communicator{Communicator(options, cancelled)};
  std::shared_ptr<Context> context(new Context(options.endpoint));
  context->communicator_ = std::move(communicator);
  context->ordinal_ = context->endpoint().device();
  add(context);
  return context;
}

void Context::close() {
  if (born_ != forks()) return;
  closed_.store(true, std::memory_order_relaxed);
  if (communicator_) {
    oh_comm_close(communicator_->get());
  } else {
    oh_endpoint_close(endpoint_->get());
  }
}

void Context::check() const {
  if (born_ != forks()) {
    throw EndpointError(OH_ERR_FORKED,
                        "this object belongs to the process before fork(): create an endpoint in "
                        "this process");
  }
}

void close_all() {
  Contexts& known = contexts();
  std::vector<std::weak_ptr<Context>> all;
  {
    std::lock_guard lock(known.mutex);
    all.swap(known.all);
  }
  for (const auto& weak : all) {
    if (std::shared_ptr<Context> context = weak.lock()) context->close();
  }
}

}  // namespace onehop::python
