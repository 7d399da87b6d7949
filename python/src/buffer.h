// SPDX-License-Identifier: Apache-2.0
//
// Buffer: the bytes of a Python object, and a hold on it. Asked in turn: the buffer protocol, the C
// exchange API of DLPack, __cuda_array_interface__, __dlpack__. Memory of a GPU is described only:
// nothing here reads or writes a byte.
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
// Managed memory is for the CPU and GPUs, device memory for GPUs only.
enum class Memory { kHost, kManaged, kDevice };

// What a call wants of a buffer.
struct Wanted {
  Access access;
  // Null: device memory is welcome. Else why it is not, and what to do, as the end of a sentence.
  const char* no_device;
  // It is used for as long as it is held, so it has to be the object's own memory: no copy.
  bool lasts = false;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(nb::handle object, Wanted wanted) { acquire(object, wanted); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  // Raises what says how to make the object fit: it is not contiguous, read-only, memory of a GPU,
  // holds Python objects, or has no bytes at all.
  void acquire(nb::handle object, Wanted wanted);
  // The same bytes as the other's: one more hold.
  void share(const Buffer& other, Access access);
  void release();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  Memory memory() const { return memory_; }
  // Whether it is a tensor of torch; then the tensor, and its device's number.
  bool is_torch() const { return exporter_.library == Exporter::Library::kTorch; }
  nb::handle object() const { return object_; }
  int device() const { return device_; }

  // The CUstream that the object's library works on now; null is the legacy default stream. For
  // managed and device memory.
  void* current_stream() const;
  // It will be asked for long after the object has told it.
  void forget_stream() { stream_told_ = false; }

 private:
  void acquire_slowly(nb::handle object, Wanted wanted);
  void acquire_plainly(nb::handle object, Access access, const std::string& text);
  // These return whether the object is of their kind.
  bool acquire_exchanged(nb::handle object, Wanted wanted);
  bool acquire_cuda_array(nb::handle object, Wanted wanted);
  bool acquire_dlpack(nb::handle object, Wanted wanted);
  void import_capsule(nb::handle object, nb::handle capsule, Wanted wanted);
  // Refuses elements without an address: of placeholders, of wrappers, and of memory that was
  // freed.
  void check_address(nb::handle object) const;
  // What DLPack says of the object's memory; its strides need not live on.
  void describe(nb::handle object, const dlpack::Tensor& tensor, uint64_t flags, Wanted wanted);

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  Memory memory_ = Memory::kHost;
  bool stream_told_ = false;  // stream_ is what the object has told
  int device_ = 0;
  void* stream_ = nullptr;
  Exporter exporter_;
  Py_buffer view_{};               // obj is null when it holds nothing
  nb::object object_;              // otherwise held
  std::shared_ptr<void> managed_;  // and what it gave for this hold
};

// Refusals that several ways share.
[[noreturn]] void refuse_strides(nb::handle object);
[[noreturn]] void refuse_read_only(nb::handle object);
[[noreturn]] void refuse_objects(nb::handle object);
[[noreturn]] void refuse_copy(nb::handle object);
[[noreturn]] void refuse_device(nb::handle object, const char* why);

// Whether it has __cuda_array_interface__.
bool shows_cuda_array(nb::handle object);

// Whether elements of `unit` (1, or bytes) lie behind each other in C order. `strides` may be null.
bool is_contiguous(size_t ndim, const int64_t* shape, const int64_t* strides, int64_t unit);

}  // namespace onehop::python
