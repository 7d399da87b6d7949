// SPDX-License-Identifier: Apache-2.0
//
// Buffer: the memory of a Python object, and a reference that keeps it. Tries in order: the buffer
// protocol, DLPack's C exchange API, __cuda_array_interface__, __dlpack__. Never reads or writes
// the memory itself.
//
// Threading: needs the GIL. Not movable: exporters may keep the address of a Py_buffer.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dlpack.h"
#include "exporter.h"

namespace onehop::python {

namespace nb = nanobind;

enum class Access { kRead, kWrite };
// Managed memory is accessible to the CPU and GPUs, device memory to GPUs only.
enum class Memory { kHost, kManaged, kDevice };

// Requirements of a call on a buffer.
struct Wanted {
  Access access;
  // Null: device memory is accepted. Otherwise why not, and the fix, as the end of a sentence.
  const char* no_device;
  // The memory is used for as long as the buffer exists, so a copy is not acceptable.
  bool lasts = false;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(nb::handle object, Wanted wanted) { acquire(object, wanted); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  // Raises an error that says how to fix an object that is not contiguous, read-only, GPU memory,
  // holds Python objects, or has no memory.
  void acquire(nb::handle object, Wanted wanted);
  // Refers to the same memory as `other`, with a reference of its own.
  void share(const Buffer& other, Access access);
  void release();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  Memory memory() const { return memory_; }
  // Whether the object is a torch tensor; object() is the tensor and device() its device's ordinal.
  bool is_torch() const { return exporter_.library == Exporter::Library::kTorch; }
  nb::handle object() const { return object_; }
  int device() const { return device_; }

  // The CUstream on which the object's library currently works; null is the legacy default stream.
  // Only for managed and device memory.
  void* current_stream() const;
  // Discards the stream that the object reported: the stream is needed only much later.
  void forget_stream() { stream_told_ = false; }

 private:
  void acquire_slowly(nb::handle object, Wanted wanted);
  void acquire_plainly(nb::handle object, Access access, const std::string& text);
  // Each returns false if the object does not support the protocol.
  bool acquire_exchanged(nb::handle object, Wanted wanted);
  bool acquire_cuda_array(nb::handle object, Wanted wanted);
  bool acquire_dlpack(nb::handle object, Wanted wanted);
  void import_capsule(nb::handle object, nb::handle capsule, Wanted wanted);
  // Refuses non-empty buffers without an address: placeholders, wrapper tensors and freed memory.
  void check_address(nb::handle object) const;
  // Takes the memory from a DLPack tensor; does not keep its shape and strides.
  void describe(nb::handle object, const dlpack::Tensor& tensor, uint64_t flags, Wanted wanted);

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  Memory memory_ = Memory::kHost;
  bool stream_told_ = false;  // stream_ was reported by the object
  int device_ = 0;
  void* stream_ = nullptr;
  Exporter exporter_;
  Py_buffer view_{};               // obj is null if unused
  nb::object object_;              // the referenced object otherwise
  std::shared_ptr<void> managed_;  // and its managed DLPack tensor
};

// Errors that several protocols share.
[[noreturn]] void refuse_strides(nb::handle object);
[[noreturn]] void refuse_read_only(nb::handle object);
[[noreturn]] void refuse_objects(nb::handle object);
[[noreturn]] void refuse_copy(nb::handle object);
[[noreturn]] void refuse_device(nb::handle object, const char* why);

// Whether the object has __cuda_array_interface__.
bool shows_cuda_array(nb::handle object);

// Whether the elements are contiguous in C order. `unit`: size of an element in units of the
// strides. `strides` may be null.
bool is_contiguous(size_t ndim, const int64_t* shape, const int64_t* strides, int64_t unit);

}  // namespace onehop::python
