// SPDX-License-Identifier: Apache-2.0
#include "stream_mark.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>

namespace onehop::python {
namespace {

// X(name, exported symbol, parameters)
#define OH_PYTHON_CUDA(X)                                             \
  X(primary_retain, cuDevicePrimaryCtxRetain, (void**, int))          \
  X(context_push, cuCtxPushCurrent_v2, (void*))                       \
  X(context_pop, cuCtxPopCurrent_v2, (void**))                        \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*)) \
  X(stream_is_capturing, cuStreamIsCapturing, (void*, int*))          \
  X(event_create, cuEventCreate, (void**, unsigned))                  \
  X(event_record, cuEventRecord, (void*, void*))                      \
  X(event_query, cuEventQuery, (void*))                               \
  X(event_destroy, cuEventDestroy_v2, (void*))

constexpr unsigned kDisableTiming = 2;
constexpr int kRelaxed = 2;

struct Driver {
#define OH_PYTHON_CUDA_MEMBER(name, symbol, parameters) int(*name) parameters = nullptr;
  OH_PYTHON_CUDA(OH_PYTHON_CUDA_MEMBER)
#undef OH_PYTHON_CUDA_MEMBER
  bool complete = false;

  Driver() {
    const char* named = std::getenv("ONEHOP_CUDA_LIBRARY");
    void* library = dlopen(named && *named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    complete = true;
#define OH_PYTHON_CUDA_LOAD(name, symbol, parameters)               \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #symbol)); \
  complete = complete && name;
    OH_PYTHON_CUDA(OH_PYTHON_CUDA_LOAD)
#undef OH_PYTHON_CUDA_LOAD
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

// The primary context of a device; null if there is none.
void* context_of(int ordinal) {
  static std::array<void*, 64> contexts;
  if (!driver().complete || ordinal < 0 || static_cast<size_t>(ordinal) >= contexts.size()) {
    return nullptr;
  }
  void*& context = contexts[static_cast<size_t>(ordinal)];
  if (!context && driver().primary_retain(&context, ordinal) != 0) context = nullptr;
  return context;
}

// Makes the context current, and allows driver calls while other streams are being captured.
class Within {
 public:
  explicit Within(void* context) {
    entered_ = context && driver().context_push(context) == 0;
    if (entered_) driver().exchange_capture_mode(&mode_);
  }
  ~Within() {
    if (!entered_) return;
    driver().exchange_capture_mode(&mode_);
    void* popped = nullptr;
    driver().context_pop(&popped);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
  int mode_ = kRelaxed;
};

}  // namespace

StreamMark::StreamMark(void* stream, int ordinal) : context_(context_of(ordinal)) {
  Within within(context_);
  if (!within || driver().event_create(&event_, kDisableTiming) != 0) {
    event_ = nullptr;
  } else if (driver().event_record(event_, stream) != 0) {
    driver().event_destroy(event_);
    event_ = nullptr;
  }
}

StreamMark::~StreamMark() {
  if (!event_) return;
  if (Within within(context_); within) driver().event_destroy(event_);
}

bool StreamMark::passed() const {
  if (!event_) return false;
  Within within(context_);
  return within && driver().event_query(event_) == 0;
}

bool StreamMark::is_captured(void* stream, int ordinal) {
  int status = 0;
  Within within(context_of(ordinal));
  return within && driver().stream_is_capturing(stream, &status) == 0 && status != 0;
}

}  // namespace onehop::python
