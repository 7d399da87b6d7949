// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_pool.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "platform/os/handles.h"

namespace oh {
namespace {

constexpr size_t kPage = 4096;

// Memory registered with UCX, so that a network card can read it directly.
class RegisteredMemory final : public BufferMemory {
 public:
  static Result<std::unique_ptr<BufferMemory>> make(const UcxContext& context, size_t bytes) {
    std::unique_ptr<RegisteredMemory> made(new RegisteredMemory(context));
    OH_ASSIGN_OR_RETURN(made->memory_, Mapping::anonymous(bytes));
    made->data = made->memory_.data();
    made->map();
    return std::unique_ptr<BufferMemory>(std::move(made));
  }
  ~RegisteredMemory() override {
    if (!registration) return;
    (void)context_.library().mem_unmap(context_.handle(), static_cast<ucx::Memory>(registration));
  }

 private:
  explicit RegisteredMemory(const UcxContext& context) : context_(context) {}
  // Registers the memory. On failure UCX treats it like any unregistered memory.
  void map() {
    ucx::MapParams params;
    params.fields = ucx::MapParams::kAddress | ucx::MapParams::kLength;
    params.address = memory_.data();
    params.length = memory_.size();
    ucx::Memory mapped = nullptr;
    ucx::Code code = context_.library().mem_map(context_.handle(), &params, &mapped);
    if (code == ucx::kOk) {
      registration = mapped;
    } else {
      OH_LOG(kInfo, "buffers for UCX are not registered: %s",
             context_.library().failure(code, ucx::symbol::mem_map, "").text().c_str());
    }
  }

  const UcxContext& context_;
  Mapping memory_;
};

}  // namespace

UcxPool::UcxPool(const UcxContext& context, const UcxPoolLimits& limits, size_t largest_frame)
    : limits_(limits),
      window_(std::min<size_t>(limits.window, std::max<size_t>(1, limits.buffers / 2))),
      pool_([&context](size_t bytes) { return RegisteredMemory::make(context, bytes); },
            (std::max(limits.packed, largest_frame) + kPage - 1) & ~(kPage - 1), limits.buffers) {}

}  // namespace oh
