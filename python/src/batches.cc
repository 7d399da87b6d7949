// SPDX-License-Identifier: Apache-2.0
//
// Peer.put_batch and related calls, and prepared batches.
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "numbers.h"
#include "prepared.h"
#include "stream.h"

namespace onehop::python {
namespace {

// The Python arguments of a batch.
struct BatchArguments {
  nb::handle local_offsets;  // null: packed
  nb::handle remote_offsets;
  nb::handle lengths;
};

// The oh_batch of the arguments, and the storage that it points to.
class Batch {
 public:
  Batch(const Local& local, const BatchArguments& arguments) {
    value_.local = local.data();
    value_.local_size = local.size();
    value_.packed = !arguments.local_offsets.is_valid();
    if (!take_ranges(arguments)) take_lists(arguments);
  }
  const oh_batch& operator*() const { return value_; }

 private:
  // Fills the strided form, which needs no lists; false if the arguments do not fit it.
  bool take_ranges(const BatchArguments& arguments) {
    std::optional<Range> theirs = as_range(arguments.remote_offsets);
    std::optional<Range> ours =
        value_.packed ? theirs : as_range(arguments.local_offsets);  // ignored when packed
    bool scalar = is_whole(arguments.lengths);
    if (!scalar || !ours || !theirs || ours->count != theirs->count) return false;
    value_.count = theirs->count;
    if (!value_.packed) {
      value_.local_base = ours->start;
      value_.local_stride = ours->step;
    }
    value_.remote_base = theirs->start;
    value_.remote_stride = theirs->step;
    value_.length = Numbers::number(arguments.lengths, "lengths");
    return true;
  }

  void take_lists(const BatchArguments& arguments) {
    check_counts(arguments);
    remote_.emplace(arguments.remote_offsets, "remote_offsets");
    if (!value_.packed) local_.emplace(arguments.local_offsets, "local_offsets");
    if (is_whole(arguments.lengths)) {
      lengths_.emplace(Numbers::number(arguments.lengths, "lengths"), remote_->size());
    } else {
      lengths_.emplace(arguments.lengths, "lengths");
    }
    size_t count = remote_->size();
    // Check again: an object may report no length, or a wrong one.
    check_counts(local_ ? local_->size() : count, count, lengths_->size());
    value_.count = count;
    if (local_) value_.local_offsets = local_->data();
    value_.remote_offsets = remote_->data();
    value_.lengths = lengths_->data();
  }

  // Checks the lengths before any iteration.
  void check_counts(const BatchArguments& arguments) const {
    std::optional<size_t> theirs = length_of(arguments.remote_offsets, "remote_offsets");
    if (!theirs) return;
    std::optional<size_t> ours = theirs;
    std::optional<size_t> lengths = theirs;
    if (!value_.packed) ours = length_of(arguments.local_offsets, "local_offsets");
    if (!PyLong_Check(arguments.lengths.ptr())) lengths = length_of(arguments.lengths, "lengths");
    if (ours && lengths) check_counts(*ours, *theirs, *lengths);
  }

  void check_counts(size_t ours, size_t theirs, size_t lengths) const {
    if (ours == theirs && lengths == theirs) return;
    raise_invalid("a batch has one entry per block: here are " +
                  (value_.packed ? "" : std::to_string(ours) + " local offsets, ") +
                  std::to_string(theirs) + " remote offsets and " + std::to_string(lengths) +
                  " lengths");
  }

  oh_batch value_ = detail::sized<oh_batch>();
  std::optional<Numbers> local_;
  std::optional<Numbers> remote_;
  std::optional<Numbers> lengths_;
};

// Both sides of a batch.
struct Sides {
  nb::handle local;
  PyRemoteRegion& remote;
};

struct Extras {
  nb::handle notify;
  nb::handle after;
};

PyRequest run_batch(PyPeer& self, bool put, Sides sides, const BatchArguments& arguments,
                    const Extras& extras) {
  Link& link = *self.link;
  auto operation = begin(link, sides.local, access_of(put));
  const Local& local = operation->local;
  check_whole(sides.remote);
  PutOptions options(extras.notify, local.after(extras.after));
  auto target = sides.remote.hold();
  Batch batch(local, arguments);
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    auto run = put ? oh_peer_put_batch : oh_peer_get_batch;
    status = run(link.get(), (*target)->get(), &*batch, &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

void run_in_stream(PyOnStream& self, bool put, Sides sides, const BatchArguments& arguments) {
  Link& link = *self.link;
  auto held = begin_on(link, self.stream, sides.local, access_of(put));
  check_whole(sides.remote);
  held->remotes.push_back(sides.remote.hold());
  oh_remote_region* target = (*held->remotes.back())->get();
  Batch batch(held->local, arguments);
  auto call = put ? oh_peer_stream_put_batch : oh_peer_stream_get_batch;
  enqueue(std::move(held),
          [&, stream = self.stream.handle] { return call(link.get(), stream, target, &*batch); });
}

// ---- Prepared ---------------------------------------------------------------------------------

PyPreparedBatch prepare(PyPeer& self, bool put, Sides sides, const BatchArguments& arguments) {
  Link& link = *self.link;
  orphans().sweep();
  auto locals = std::make_shared<Locals>();
  Local& local = locals->emplace_back(*link.context, sides.local, access_of(put));
  local.forget_stream();
  check_whole(sides.remote);
  auto target = sides.remote.hold();
  Batch batch(local, arguments);
  oh_prepared_batch* prepared = nullptr;
  oh_status status;
  {
    WithoutGil release;
    auto run = put ? oh_peer_prepare_put : oh_peer_prepare_get;
    status = run(link.get(), (*target)->get(), &*batch, &prepared);
  }
  check(status);
  auto owned = std::make_shared<Owned<PreparedBatch>>(PreparedBatch(prepared));
  return {self.link, put, std::move(locals), std::move(owned)};
}

PyRequest post(PyPreparedBatch& self, nb::handle notify, nb::handle after, nb::handle background) {
  if (!self.batch) raise_invalid("the prepared batch was closed");
  orphans().sweep();
  std::shared_ptr<Owned<PreparedBatch>> batch = self.batch;
  auto operation = std::make_unique<Operation>();
  operation->context = self.link->context;
  operation->locals = self.locals;
  PutOptions options(notify, after_all(*self.locals, after));
  options.value.background = flag(background, {"background", "True or False"});
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    status = oh_prepared_batch_post((*batch)->get(), &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

}  // namespace

void check_whole(const PyRemoteRegion& remote) {
  if (remote.offset == 0 && remote.size == (*remote.hold())->size()) return;
  raise_invalid(
      "a batch takes the whole remote region, not a slice: add the slice's start to the "
      "remote offsets");
}

#define OH_PYTHON_NUMBERS                                                        \
  "Offsets and lengths are in bytes: arrays of int64 or uint64, which are not\n" \
  "copied, or sequences of integers. lengths may be one integer for all blocks."
#define OH_PYTHON_OUT_OF_RANGE \
  "OutOfRange: a block is out of bounds; the text names it, and nothing has moved."
#define OH_PYTHON_PUT_BLOCKS                                                   \
  "Block i is lengths[i] bytes at local_offsets[i] of the local side and at\n" \
  "remote_offsets[i] of the remote region.\n" OH_PYTHON_NUMBERS                \
  " Two ranges and one length need no lists at all."
#define OH_PYTHON_BATCH                                               \
  OH_PYTHON_PUT_BLOCKS                                                \
  "\nnotify is a notification that follows the blocks. after as for " \
  "put.\n\n" OH_PYTHON_OUT_OF_RANGE
#define OH_PYTHON_PACKED                                                               \
  "Block i is lengths[i] bytes at remote_offsets[i] of the remote region. The local\n" \
  "blocks are contiguous.\n" OH_PYTHON_NUMBERS                                         \
  "\nnotify is a notification that follows the blocks. after as for "                  \
  "put.\n\n" OH_PYTHON_OUT_OF_RANGE
#define OH_PYTHON_STREAM_BATCH                                                                  \
  OH_PYTHON_PUT_BLOCKS                                                                          \
  "\n\nThe call reads the lists before it returns, also in a capture.\n" OH_PYTHON_OUT_OF_RANGE \
  " Other errors as for put."
#define OH_PYTHON_STREAM_PACKED                                                        \
  "Block i is lengths[i] bytes at remote_offsets[i] of the remote region. The local\n" \
  "blocks are contiguous.\n" OH_PYTHON_NUMBERS " Otherwise as put_batch and get_batch."
#define OH_PYTHON_PREPARE                                                                   \
  "Each PreparedBatch.post moves the bytes that the memory holds at that time. If a\n"      \
  "kernel of the GPU copies, the host time of a post does not depend on the number\n"       \
  "of blocks. The local memory is kept until the batch is closed.\n\n" OH_PYTHON_PUT_BLOCKS \
  "\n\n" OH_PYTHON_OUT_OF_RANGE

#define OH_PYTHON_LISTS                                                       \
  "self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: " \
  "onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: " \
  "onehop.buffers.Offsets | typing.SupportsIndex"
#define OH_PYTHON_PACKED_LISTS                                                 \
  "self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: " \
  "onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | typing.SupportsIndex"
#define OH_PYTHON_NOTIFY ", notify: onehop.buffers.Buffer | None = None"

namespace {

void bind_at_once(nb::class_<PyPeer>& type) {
  type.def(
          "put_batch",
          [](PyPeer& self, nb::handle local, nb::handle remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths, nb::handle notify, nb::handle after) {
            return run_batch(self, true, {local, remote_of(remote)},
                             {local_offsets, remote_offsets, lengths}, {notify, after});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::arg("notify") = nb::none(), nb::arg("after").none() = current_stream_object(),
          nb::sig("def put_batch(" OH_PYTHON_LISTS OH_PYTHON_NOTIFY OH_PYTHON_AFTER_ARGUMENT
                  ") -> Request"),
          "Puts many blocks.\n\n" OH_PYTHON_BATCH)
      .def(
          "get_batch",
          [](PyPeer& self, nb::handle local, nb::handle remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths, nb::handle after, nb::handle notify) {
            return run_batch(self, false, {local, remote_of(remote)},
                             {local_offsets, remote_offsets, lengths}, {notify, after});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::arg("after").none() = current_stream_object(), nb::arg("notify") = nb::none(),
          nb::sig("def get_batch(" OH_PYTHON_LISTS OH_PYTHON_AFTER_ARGUMENT OH_PYTHON_NOTIFY
                  ") -> Request"),
          "Gets many blocks.\n\n" OH_PYTHON_BATCH)
      .def(
          "scatter",
          [](PyPeer& self, nb::handle local, nb::handle remote, nb::handle remote_offsets,
             nb::handle lengths, nb::handle notify, nb::handle after) {
            return run_batch(self, true, {local, remote_of(remote)}, {{}, remote_offsets, lengths},
                             {notify, after});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("remote_offsets").none(),
          nb::arg("lengths").none(), nb::arg("notify") = nb::none(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def scatter(" OH_PYTHON_PACKED_LISTS OH_PYTHON_NOTIFY OH_PYTHON_AFTER_ARGUMENT
                  ") -> Request"),
          "Puts contiguous local bytes into many remote blocks.\n\n" OH_PYTHON_PACKED)
      .def(
          "gather",
          [](PyPeer& self, nb::handle local, nb::handle remote, nb::handle remote_offsets,
             nb::handle lengths, nb::handle after, nb::handle notify) {
            return run_batch(self, false, {local, remote_of(remote)}, {{}, remote_offsets, lengths},
                             {notify, after});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("remote_offsets").none(),
          nb::arg("lengths").none(), nb::arg("after").none() = current_stream_object(),
          nb::arg("notify") = nb::none(),
          nb::sig("def gather(" OH_PYTHON_PACKED_LISTS OH_PYTHON_AFTER_ARGUMENT OH_PYTHON_NOTIFY
                  ") -> Request"),
          "Gets many remote blocks into contiguous local memory.\n\n" OH_PYTHON_PACKED);
}

void bind_prepare(nb::class_<PyPeer>& type) {
  type.def(
          "prepare_put",
          [](PyPeer& self, nb::handle local, nb::handle remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths) {
            return prepare(self, true, {local, remote_of(remote)},
                           {local_offsets, remote_offsets, lengths});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::sig("def prepare_put(" OH_PYTHON_LISTS ") -> PreparedBatch"),
          "Prepares a put of many blocks for any number of posts.\n\n" OH_PYTHON_PREPARE)
      .def(
          "prepare_get",
          [](PyPeer& self, nb::handle local, nb::handle remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths) {
            return prepare(self, false, {local, remote_of(remote)},
                           {local_offsets, remote_offsets, lengths});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::sig("def prepare_get(" OH_PYTHON_LISTS ") -> PreparedBatch"),
          "Prepares a get of many blocks for any number of posts.\n\n" OH_PYTHON_PREPARE);
}

}  // namespace

void bind_stream_batches(nb::class_<PyOnStream>& type) {
  type.def(
          "put_batch",
          [](PyOnStream& self, nb::handle local, nb::handle remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths) {
            run_in_stream(self, true, {local, remote_of(remote)},
                          {local_offsets, remote_offsets, lengths});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::sig("def put_batch(" OH_PYTHON_LISTS ") -> None"),
          "Puts many blocks, as put does one; by kernels if the region is mapped "
          "here.\n\n" OH_PYTHON_STREAM_BATCH)
      .def(
          "get_batch",
          [](PyOnStream& self, nb::handle local, nb::handle remote, nb::handle local_offsets,
             nb::handle remote_offsets, nb::handle lengths) {
            run_in_stream(self, false, {local, remote_of(remote)},
                          {local_offsets, remote_offsets, lengths});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("local_offsets").none(),
          nb::arg("remote_offsets").none(), nb::arg("lengths").none(),
          nb::sig("def get_batch(" OH_PYTHON_LISTS ") -> None"),
          "Gets many blocks, as get does one; by kernels if the region is mapped "
          "here.\n\n" OH_PYTHON_STREAM_BATCH)
      .def(
          "scatter",
          [](PyOnStream& self, nb::handle local, nb::handle remote, nb::handle remote_offsets,
             nb::handle lengths) {
            run_in_stream(self, true, {local, remote_of(remote)}, {{}, remote_offsets, lengths});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("remote_offsets").none(),
          nb::arg("lengths").none(), nb::sig("def scatter(" OH_PYTHON_PACKED_LISTS ") -> None"),
          "Puts contiguous local bytes into many remote blocks.\n\n" OH_PYTHON_STREAM_PACKED)
      .def(
          "gather",
          [](PyOnStream& self, nb::handle local, nb::handle remote, nb::handle remote_offsets,
             nb::handle lengths) {
            run_in_stream(self, false, {local, remote_of(remote)}, {{}, remote_offsets, lengths});
          },
          nb::arg("local").none(), nb::arg("remote").none(), nb::arg("remote_offsets").none(),
          nb::arg("lengths").none(), nb::sig("def gather(" OH_PYTHON_PACKED_LISTS ") -> None"),
          "Gets many remote blocks into contiguous local memory.\n\n" OH_PYTHON_STREAM_PACKED);
}

void bind_batches(nb::module_& module, nb::class_<PyPeer>& type) {
  nb::class_<PyPreparedBatch>(
      module, "PreparedBatch",
      "Blocks that were checked and divided once. Any number of threads may post them,\n"
      "any number of times.\n\n"
      "Create it with Peer.prepare_put or prepare_get. It holds the peer, the remote\n"
      "region and the local memory until it is closed or dropped.")
      .def("post", post, nb::arg("notify") = nb::none(),
           nb::arg("after").none() = current_stream_object(), nb::arg("background").none() = false,
           nb::sig("def post(self, notify: onehop.buffers.Buffer | None = "
                   "None" OH_PYTHON_AFTER_ARGUMENT ", background: bool = False) -> Request"),
           "Moves the blocks once, as put_batch and get_batch do. notify, at most 64 MiB, is\n"
           "a notification that follows them. With background=True the call does not copy\n"
           "host memory itself: threads that wait or test a request copy in slices, and\n"
           "later puts and gets queue behind it.\n\n" OH_PYTHON_AFTER
           "\n"
           "OperationError with Status.RETIRED: the peer has deregistered the region.\n"
           "PeerLost. InvalidArgument: the batch is closed.")
      .def("close", &PyPreparedBatch::close,
           "Releases everything that it holds. Posts in flight complete.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> PreparedBatch"))
      .def(
          "__exit__", [](PyPreparedBatch& self, nb::args) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const PyPreparedBatch& self) {
        return std::string("<onehop.PreparedBatch of ") + (self.put ? "puts" : "gets") +
               (self.batch ? ">" : ", closed>");
      });
  bind_at_once(type);
  bind_prepare(type);
}

}  // namespace onehop::python
