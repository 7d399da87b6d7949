// SPDX-License-Identifier: Apache-2.0
//
// The parts of the DLPack 1.x ABI (https://github.com/dmlc/dlpack) that are used. They do not
// change within major version 1.
//
// Threading: plain data; calling the function pointers needs the GIL.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onehop::python::dlpack {

inline constexpr uint32_t kMajor = 1;
inline constexpr uint32_t kMinor = 3;  // the newest supported

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t type;  // a DeviceType or an unknown value
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

enum TypeCode : uint8_t { kOpaque = 3, kComplex = 5 };  // only those used here

inline constexpr uint64_t kReadOnly = 1;       // flags
inline constexpr uint64_t kCopied = 2;         // the memory is a copy that belongs to the capsule
inline constexpr uint64_t kSubBytePadded = 4;  // each sub-byte element occupies a whole byte

struct ManagedTensorVersioned {  // in capsules named "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// The C exchange API of a type. Functions return 0, or -1 with a Python error set; none
// synchronizes.
struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;  // of an older major version, or null
};
struct Exchange {
  ExchangeHeader header;
  void* allocate;
  int (*managed_from_object)(void* object, ManagedTensorVersioned** tensor);
  void* managed_to_object;
  // The result is valid while the object exists and is not changed. May be null.
  int (*tensor_from_object)(void* object, Tensor* tensor);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, byte_offset) == 40);
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensorVersioned, tensor) == 32);
static_assert(sizeof(Exchange) == 56 && offsetof(Exchange, current_stream) == 48);

}  // namespace onehop::python::dlpack
