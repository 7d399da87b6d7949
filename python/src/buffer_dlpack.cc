// SPDX-License-Identifier: Apache-2.0
//
// Buffers of tensors: DLPack's C exchange API, which costs next to nothing, and __dlpack__.
#include <string>

#include "buffer.h"
#include "errors.h"
#include "names.h"
#include "torch_tensor.h"

namespace onehop::python {
namespace {

// Stream numbers of __dlpack__.
constexpr int kNoSynchronisation = -1;
constexpr int kLegacyDefaultStream = 1;

// Size in bytes of a contiguous tensor.
size_t bytes_of(const dlpack::Tensor& tensor, uint64_t flags) {
  size_t count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) count *= static_cast<size_t>(tensor.shape[i]);
  size_t bits = size_t{tensor.dtype.bits} * tensor.dtype.lanes;
  if (flags & dlpack::kSubBytePadded) bits = (bits + 7) / 8 * 8;
  return (count * bits + 7) / 8;
}

Memory memory_of(nb::handle object, const dlpack::Device& device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      return Memory::kHost;
    case dlpack::kCuda:
      return Memory::kDevice;
    case dlpack::kCudaManaged:
      return Memory::kManaged;
    default:
      throw OperationError(OH_ERR_NOT_VIABLE, "the " + name_of_type(object) +
                                                  " is in memory of DLPack's device type " +
                                                  std::to_string(device.type) +
                                                  ", which is no host and no CUDA memory: copy it "
                                                  "to the host first");
  }
}

// Device that the object reports; the CPU if it reports none.
dlpack::Device device_of(nb::handle object) {
  static const Name kDevice("__dlpack_device__");
  nb::object method = find_attribute(object, kDevice);
  if (!method.is_valid()) return {dlpack::kCpu, 0};
  nb::object device = method();
  return {nb::cast<int32_t>(nb::object(device[0])), nb::cast<int32_t>(nb::object(device[1]))};
}

// Calls __dlpack__ with max_version and, if the exporter does not accept that, without it as before
// version 1.0.
nb::object capsule_of(nb::handle method, const nb::dict& arguments) {
  static const Name kMaxVersion("max_version");
  static PyObject* const kVersion =
      nb::make_tuple(int{dlpack::kMajor}, int{dlpack::kMinor}).release().ptr();
  if (PyDict_SetItem(arguments.ptr(), kMaxVersion.ptr(), kVersion) != 0) throw nb::python_error();
  nb::object nothing = nb::steal(PyTuple_New(0));
  nb::object capsule = nb::steal(PyObject_Call(method.ptr(), nothing.ptr(), arguments.ptr()));
  if (capsule.is_valid()) return capsule;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  if (PyDict_DelItem(arguments.ptr(), kMaxVersion.ptr()) != 0) throw nb::python_error();
  capsule = nb::steal(PyObject_Call(method.ptr(), nothing.ptr(), arguments.ptr()));
  if (!capsule.is_valid()) throw nb::python_error();
  return capsule;
}

// Owns a managed tensor. Its deleter is called with the GIL held, like all of Buffer.
template <typename Managed>
std::shared_ptr<void> own(Managed* managed) {
  return {managed, [](void* pointer) {
            auto* tensor = static_cast<Managed*>(pointer);
            if (tensor->deleter) tensor->deleter(tensor);
          }};
}

}  // namespace

bool Buffer::acquire_exchanged(nb::handle object, Wanted wanted) {
  const dlpack::Exchange* exchange = exporter_.exchange;
  if (!exchange) return false;
  // tensor_from_object does not report whether the memory is read-only or a copy; torch's is
  // neither.
  bool flags_matter = (wanted.access == Access::kWrite || wanted.lasts) &&
                      exporter_.library != Exporter::Library::kTorch;
  if (exchange->tensor_from_object && !flags_matter) {
    dlpack::Tensor tensor{};
    if (exchange->tensor_from_object(object.ptr(), &tensor) == 0) {
      describe(object, tensor, 0, wanted);
      return true;
    }
  } else {
    dlpack::ManagedTensorVersioned* managed = nullptr;
    if (exchange->managed_from_object(object.ptr(), &managed) == 0 && managed) {
      std::shared_ptr<void> owned = own(managed);
      if (managed->version.major == dlpack::kMajor) {
        describe(object, managed->tensor, managed->flags, wanted);
        managed_ = std::move(owned);
        return true;
      }
    }
  }
  // Fall back to __dlpack__, whose error gives the reason.
  PyErr_Clear();
  return false;
}

bool Buffer::acquire_dlpack(nb::handle object, Wanted wanted) {
  static const Name kDlpack("__dlpack__");
  static const Name kStream("stream");
  try {
    nb::object source = is_torch() ? without_gradient(object) : nb::borrow(object);
    nb::object method = find_attribute(source, kDlpack);
    if (!method.is_valid()) return false;
    nb::dict arguments;
    dlpack::Device device = device_of(object);
    Memory memory = memory_of(object, device);
    if (memory == Memory::kDevice && wanted.no_device) refuse_device(object, wanted.no_device);
    if (memory != Memory::kHost) {
      // torch reports its current stream. Other exporters must make the data ready for the legacy
      // default stream, which is then waited for by default.
      int stream = exporter_.knows_stream() ? kNoSynchronisation : kLegacyDefaultStream;
      if (PyDict_SetItem(arguments.ptr(), kStream.ptr(), nb::int_(stream).ptr()) != 0) {
        throw nb::python_error();
      }
    }
    import_capsule(object, capsule_of(method, arguments), wanted);
  } catch (nb::python_error& failure) {
    if (is_torch()) {
      refuse_lazy_views(object, /*complex=*/true);
      refuse_export(object, text_of(failure));
    }
    raise_invalid("the " + name_of_type(object) + " gives no DLPack tensor: " + text_of(failure));
  }
  return true;
}

void Buffer::import_capsule(nb::handle object, nb::handle capsule, Wanted wanted) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    std::shared_ptr<void> owned = own(managed);
    if (managed->version.major != dlpack::kMajor) {
      raise_invalid("the " + name_of_type(object) + " gives a tensor of DLPack " +
                    std::to_string(managed->version.major) + ", here 1 is understood");
    }
    describe(object, managed->tensor, managed->flags, wanted);
    managed_ = std::move(owned);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    auto* managed =
        static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    std::shared_ptr<void> owned = own(managed);
    describe(object, managed->tensor, 0, wanted);
    managed_ = std::move(owned);
  } else {
    raise_invalid("the __dlpack__ of the " + name_of_type(object) + " gives no tensor but a " +
                  name_of_type(capsule));
  }
}

void Buffer::describe(nb::handle object, const dlpack::Tensor& tensor, uint64_t flags,
                      Wanted wanted) {
  Memory memory = memory_of(object, tensor.device);
  if (memory == Memory::kDevice && wanted.no_device) refuse_device(object, wanted.no_device);
  const bool writes = wanted.access == Access::kWrite;
  if (writes && flags & dlpack::kReadOnly) refuse_read_only(object);
  if ((writes || wanted.lasts) && flags & dlpack::kCopied) refuse_copy(object);
  if (tensor.dtype.code == dlpack::kOpaque) refuse_objects(object);
  if (!is_contiguous(static_cast<size_t>(tensor.ndim), tensor.shape, tensor.strides, 1)) {
    refuse_strides(object);
  }
  memory_ = memory;
  device_ = tensor.device.id;
  data_ = static_cast<uint8_t*>(tensor.data) + tensor.byte_offset;
  size_ = bytes_of(tensor, flags);
  object_ = nb::borrow(object);
  check_address(object);
  if (is_torch()) refuse_lazy_views(object, tensor.dtype.code == dlpack::kComplex);
}

}  // namespace onehop::python
