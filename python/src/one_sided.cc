// SPDX-License-Identifier: Apache-2.0
//
// Peer.put, get and their batches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bytes.h"
#include "endpoint.h"
#include "errors.h"

namespace onehop::python {
namespace {

std::unique_ptr<Operation> begin(Link& link, nb::handle object, Access access) {
  sweep_orphans();
  auto operation = std::make_unique<Operation>();
  operation->context = link.context;
  operation->local.acquire(*link.context, object, access);
  return operation;
}

struct PutOptions {
  PutOptions(nb::handle notify, After after) {
    if (!notify.is_none()) bytes = from_bytes(notify);
    value = detail::with(kDefaultTimeout, bytes ? &*bytes : nullptr, after);
  }
  PutOptions(const PutOptions&) = delete;
  std::optional<Bytes> bytes;
  oh_put_options value;
};

PyRequest started(std::unique_ptr<Operation> operation, oh_status status, oh_request* request) {
  check(status);
  operation->request = Owned<Request>(Request(request));
  operation->try_release();
  return PyRequest(std::move(operation));
}

void check_sizes(const Local& local, const PyRemoteRegion& remote) {
  if (local.size() == remote.size) return;
  raise_range("the local side has " + std::to_string(local.size()) + " bytes, the remote region " +
              std::to_string(remote.size) + ": slice them to the same length");
}

PyRequest put(PyPeer& self, nb::handle object, PyRemoteRegion& remote, nb::handle notify,
              nb::handle after) {
  Link& link = *self.link;
  auto operation = begin(link, object, Access::kRead);
  const Local& local = operation->local;
  check_sizes(local, remote);
  PutOptions options(notify, local.after(after));
  auto target = remote.hold();
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    status = oh_peer_put(link.get(), local.data(), (*target)->get(), remote.offset, local.size(),
                         &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

PyRequest get(PyPeer& self, nb::handle object, PyRemoteRegion& remote, nb::handle after) {
  Link& link = *self.link;
  auto operation = begin(link, object, Access::kWrite);
  const Local& local = operation->local;
  check_sizes(local, remote);
  PutOptions options(nb::none(), local.after(after));
  auto target = remote.hold();
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    status = oh_peer_get(link.get(), local.data(), (*target)->get(), remote.offset, local.size(),
                         &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

// ---- Batches ----------------------------------------------------------------------------------

// Offsets or lengths: an array of 64-bit integers as it is, anything else one by one.
class Numbers {
 public:
  Numbers(nb::handle object, const char* name) {
    if (PyObject_CheckBuffer(object.ptr()) && view(object)) return;
    nb::object iterator = nb::steal(PyObject_GetIter(object.ptr()));
    if (!iterator.is_valid()) {
      PyErr_Clear();
      throw TypeMismatch(std::string(name) + " is a " + name_of_type(object) +
                         ": give an array of int64 or uint64, or a sequence of integers");
    }
    for (nb::handle item : object) copy_.push_back(number(item, name));
    data_ = copy_.data();
    size_ = copy_.size();
  }
  // One number, `count` times.
  Numbers(uint64_t value, size_t count) : copy_(count, value), data_(copy_.data()), size_(count) {}
  ~Numbers() {
    if (view_.obj) PyBuffer_Release(&view_);
  }
  Numbers(const Numbers&) = delete;
  const uint64_t* data() const { return data_; }
  size_t size() const { return size_; }

  static uint64_t number(nb::handle item, const char* name) {
    nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    uint64_t value = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    if (!PyErr_Occurred()) return value;
    PyErr_Clear();
    raise_invalid(std::string(name) + " has " + nb::cast<std::string>(nb::repr(item)) +
                  ": offsets and lengths are whole numbers of bytes from 0");
  }

 private:
  // Whether the object is an array of 64-bit integers. Negative ones are out of any region's range.
  bool view(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND) != 0) {
      PyErr_Clear();
      view_ = {};
      return false;
    }
    std::string_view format = view_.format ? view_.format : "B";
    if (format.size() == 2 && (format[0] == '@' || format[0] == '=' || format[0] == '<')) {
      format.remove_prefix(1);
    }
    bool fits = view_.itemsize == 8 && view_.ndim == 1 && format.size() == 1 &&
                std::string_view("qQlL").find(format[0]) != std::string_view::npos &&
                reinterpret_cast<uintptr_t>(view_.buf) % alignof(uint64_t) == 0;
    if (fits) {
      data_ = static_cast<const uint64_t*>(view_.buf);
      size_ = static_cast<size_t>(view_.len) / sizeof(uint64_t);
    } else {
      PyBuffer_Release(&view_);
      view_ = {};
    }
    return fits;
  }

  Py_buffer view_{};
  std::vector<uint64_t> copy_;
  const uint64_t* data_ = nullptr;
  size_t size_ = 0;
};

struct Range {
  uint64_t start;
  uint64_t step;
  size_t count;
};
// A range that counts upwards.
std::optional<Range> as_range(nb::handle object) {
  if (!PyRange_Check(object.ptr())) return std::nullopt;
  auto start = nb::cast<int64_t>(object.attr("start"));
  auto step = nb::cast<int64_t>(object.attr("step"));
  if (start < 0 || step < 0) return std::nullopt;
  return Range{static_cast<uint64_t>(start), static_cast<uint64_t>(step), nb::len(object)};
}

struct BatchArguments {
  nb::handle local_offsets;
  nb::handle remote_offsets;
  nb::handle lengths;
  nb::handle notify;
  nb::handle after;
};

// Makes the batch and hands it to `post`; what it points to lives until that has returned.
template <typename Post>
oh_status with_batch(const Local& local, const BatchArguments& arguments, Post post) {
  auto batch = detail::sized<oh_batch>();
  batch.local = local.data();
  batch.local_size = local.size();
  std::optional<Range> ours = as_range(arguments.local_offsets);
  std::optional<Range> theirs = as_range(arguments.remote_offsets);
  bool scalar = PyLong_Check(arguments.lengths.ptr());
  if (scalar && ours && theirs && ours->count == theirs->count) {
    batch.count = ours->count;
    batch.local_base = ours->start;
    batch.local_stride = ours->step;
    batch.remote_base = theirs->start;
    batch.remote_stride = theirs->step;
    batch.length = Numbers::number(arguments.lengths, "lengths");
    return post(batch);
  }
  Numbers local_offsets(arguments.local_offsets, "local_offsets");
  Numbers remote_offsets(arguments.remote_offsets, "remote_offsets");
  std::optional<Numbers> lengths;
  if (scalar) {
    lengths.emplace(Numbers::number(arguments.lengths, "lengths"), local_offsets.size());
  } else {
    lengths.emplace(arguments.lengths, "lengths");
  }
  if (local_offsets.size() != remote_offsets.size() || local_offsets.size() != lengths->size()) {
    raise_invalid("a batch has one entry per block: here are " +
                  std::to_string(local_offsets.size()) + " local offsets, " +
                  std::to_string(remote_offsets.size()) + " remote offsets and " +
                  std::to_string(lengths->size()) + " lengths");
  }
  batch.count = local_offsets.size();
  batch.local_offsets = local_offsets.data();
  batch.remote_offsets = remote_offsets.data();
  batch.lengths = lengths->data();
  return post(batch);
}

// Slices of remote regions begin somewhere inside: the library is given the whole and the offset.
void check_whole(const PyRemoteRegion& remote) {
  if (remote.offset == 0 && remote.size == (*remote.hold())->size()) return;
  raise_invalid(
      "a batch takes the whole remote region, not a slice: add the slice's start to the "
      "remote offsets");
}

PyRequest run_batch(PyPeer& self, bool put, nb::handle object, PyRemoteRegion& remote,
                    const BatchArguments& arguments) {
  Link& link = *self.link;
  auto operation = begin(link, object, put ? Access::kRead : Access::kWrite);
  const Local& local = operation->local;
  check_whole(remote);
  PutOptions options(arguments.notify, local.after(arguments.after));
  auto target = remote.hold();
  oh_request* request = nullptr;
  oh_status status = with_batch(local, arguments, [&](const oh_batch& batch) {
    WithoutGil release;
    return put ? oh_peer_put_batch(link.get(), (*target)->get(), &batch, &options.value, &request)
               : oh_peer_get_batch(link.get(), (*target)->get(), &batch, &options.value, &request);
  });
  return started(std::move(operation), status, request);
}

}  // namespace

#define OH_PYTHON_BATCH                                                                          \
  "Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of "  \
  "the "                                                                                         \
  "remote region.\nOffsets and lengths are arrays of int64 or uint64, which are not copied, or " \
  "sequences of integers; lengths may be\none integer for all blocks. With two ranges and one "  \
  "length "                                                                                      \
  "no list is built at all. after as for put.\n\nOutOfRange names the block that is outside; "   \
  "nothing has moved "                                                                           \
  "then."

void bind_one_sided(nb::class_<PyPeer>& type) {
  type.def("put", put, nb::arg("local").none(), nb::arg("remote"), nb::arg("notify") = nb::none(),
           nb::arg("after").none() = current_stream_object(),
           nb::sig("def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, notify: "
                   "onehop.buffers.Buffer | None = None" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
           "Writes the local bytes into the remote region, of the same length. It has ended when "
           "they "
           "are visible there;\nnotify, at most 2,048 bytes, comes after them. The local side need "
           "not "
           "be registered.\n\n" OH_PYTHON_AFTER
           "\nOutOfRange; OperationError with Status.RETIRED: the peer has "
           "deregistered "
           "the region.")
      .def("get", get, nb::arg("local").none(), nb::arg("remote"),
           nb::arg("after").none() = current_stream_object(),
           nb::sig("def get(self, local: onehop.buffers.Buffer, remote: "
                   "RemoteRegion" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
           "Reads the remote region into the local bytes, of the same length. after and errors as "
           "for put.")
      .def(
          "put_batch",
          [](PyPeer& self, nb::handle local, PyRemoteRegion& remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths, nb::handle notify, nb::handle after) {
            return run_batch(self, true, local, remote,
                             {local_offsets, remote_offsets, lengths, notify, after});
          },
          nb::arg("local").none(), nb::arg("remote"), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::arg("notify") = nb::none(), nb::arg("after").none() = current_stream_object(),
          nb::sig("def put_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, "
                  "local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, "
                  "lengths: onehop.buffers.Offsets | int, notify: onehop.buffers.Buffer | None = "
                  "None" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Puts many blocks at once.\n\n" OH_PYTHON_BATCH)
      .def(
          "get_batch",
          [](PyPeer& self, nb::handle local, PyRemoteRegion& remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths, nb::handle after) {
            return run_batch(self, false, local, remote,
                             {local_offsets, remote_offsets, lengths, nb::none(), after});
          },
          nb::arg("local").none(), nb::arg("remote"), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def get_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, "
                  "local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, "
                  "lengths: onehop.buffers.Offsets | int" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Gets many blocks at once.\n\n" OH_PYTHON_BATCH);
}

}  // namespace onehop::python
