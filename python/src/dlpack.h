// SPDX-License-Identifier: Apache-2.0
//
// The binary interface of DLPack 1.x (https://github.com/dmlc/dlpack), as far as it is used. What
// is here does not change within major version 1.
//
// Threading: plain data; what the function pointers lead to needs the GIL.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onehop::python::dlpack {

inline constexpr uint32_t kMajor = 1;
inline constexpr uint32_t kMinor = 3;  // the newest that is understood

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t type;  // a DeviceType, or what is not known here
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

// Strides are in elements; null, before version 1.2, means C-contiguous.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct ManagedTensor {  // in capsules named "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

enum TypeCode : uint8_t { kOpaque = 3, kComplex = 5 };  // those that are looked at

inline constexpr uint64_t kReadOnly = 1;       // flags
inline constexpr uint64_t kCopied = 2;         // the memory is the capsule's own, not the object's
inline constexpr uint64_t kSubBytePadded = 4;  // an element of less than a byte takes a whole one

struct ManagedTensorVersioned {  // in capsules named "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// The C exchange API of a type. Functions return 0, or -1 with a Python error; none synchronises.
struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;  // of an older major version, or null
};
struct Exchange {
  ExchangeHeader header;
  void* allocate;
  int (*managed_from_object)(void* object, ManagedTensorVersioned** tensor);
  void* managed_to_object;
  // Valid while the object lives and is left as it is. May be null.
  int (*tensor_from_object)(void* object, Tensor* tensor);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, byte_offset) == 40);
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensorVersioned, tensor) == 32);
static_assert(sizeof(Exchange) == 56 && offsetof(Exchange, current_stream) == 48);

}  // namespace onehop::python::dlpack
