// SPDX-License-Identifier: Apache-2.0
//
// Peer.put_regions and related calls: batches over many pieces of local memory and many regions.
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "numbers.h"
#include "prepared.h"
#include "stream.h"

namespace onehop::python {
namespace {

// The Python arguments of a batch. None: NULL in the C API.
struct RegionArguments {
  nb::handle locals;
  nb::handle remotes;
  nb::handle local_index;
  nb::handle local_offsets;
  nb::handle remote_index;
  nb::handle remote_offsets;
  nb::handle lengths;
  nb::handle counts;
  nb::handle local_strides;
  nb::handle remote_strides;
};

// The items of an iterable.
std::vector<nb::object> items_of(nb::handle object, const char* name) {
  nb::object iterator = nb::steal(PyObject_GetIter(object.ptr()));
  if (!iterator.is_valid()) {
    PyErr_Clear();
    throw TypeMismatch(std::string(name) + " is a " + name_of_type(object) + ": give a sequence");
  }
  std::vector<nb::object> items;
  while (nb::object item = nb::steal(PyIter_Next(iterator.ptr()))) items.push_back(std::move(item));
  if (PyErr_Occurred()) throw nb::python_error();
  return items;
}

// The oh_region_batch of the arguments, and the storage that it points to.
class RegionBatch {
 public:
  RegionBatch(const Context& context, const RegionArguments& given, bool put)
      : locals_(std::make_shared<Locals>()) {
    for (const nb::object& item : items_of(given.locals, "locals")) {
      Local& local = locals_->emplace_back(context, item, access_of(put));
      local.forget_stream();
      pieces_.push_back({local.data(), local.size()});
    }
    for (const nb::object& item : items_of(given.remotes, "remotes")) {
      PyRemoteRegion& remote = remote_of(item);
      check_whole(remote);
      holds_.push_back(remote.hold());
      handles_.push_back((*holds_.back())->get());
    }
    value_.locals = pieces_.data();
    value_.local_count = pieces_.size();
    value_.remotes = handles_.data();
    value_.remote_count = handles_.size();
    value_.count = take_all(lengths_, given.lengths, "lengths", &value_.lengths);
    const std::pair<const char*, size_t> sizes[] = {
        {"local_index", take(local_index_, given.local_index, "local_index", &value_.local_index)},
        {"local_offsets",
         take_all(local_offsets_, given.local_offsets, "local_offsets", &value_.local_offsets)},
        {"remote_index",
         take(remote_index_, given.remote_index, "remote_index", &value_.remote_index)},
        {"remote_offsets",
         take_all(remote_offsets_, given.remote_offsets, "remote_offsets", &value_.remote_offsets)},
        {"counts", take(counts_, given.counts, "counts", &value_.counts)},
        {"local_strides",
         take(local_strides_, given.local_strides, "local_strides", &value_.local_strides)},
        {"remote_strides",
         take(remote_strides_, given.remote_strides, "remote_strides", &value_.remote_strides)}};
    for (const auto& [name, size] : sizes) {
      if (size == kLeftOut || size == value_.count) continue;
      raise_invalid("a batch has one entry per block: here are " + std::to_string(value_.count) +
                    " lengths and " + std::to_string(size) + " " + name);
    }
  }
  const oh_region_batch& operator*() const { return value_; }
  const std::shared_ptr<Locals>& locals() const { return locals_; }
  const std::vector<std::shared_ptr<Owned<RemoteRegion>>>& holds() const { return holds_; }

 private:
  static constexpr size_t kLeftOut = SIZE_MAX;

  // Converts an optional list; returns its length.
  template <typename T>
  static size_t take(std::optional<Integers<T>>& numbers, nb::handle given, const char* name,
                     const T** data) {
    if (given.is_none()) return kLeftOut;
    return take_all(numbers, given, name, data);
  }
  // Converts a required list; returns its length.
  template <typename T>
  static size_t take_all(std::optional<Integers<T>>& numbers, nb::handle given, const char* name,
                         const T** data) {
    numbers.emplace(given, name);
    *data = numbers->data();
    return numbers->size();
  }

  oh_region_batch value_ = detail::sized<oh_region_batch>();
  std::shared_ptr<Locals> locals_;
  std::vector<oh_memory> pieces_;
  std::vector<std::shared_ptr<Owned<RemoteRegion>>> holds_;
  std::vector<oh_remote_region*> handles_;
  std::optional<Indices> local_index_, remote_index_;
  std::optional<Numbers> local_offsets_, remote_offsets_, lengths_;
  std::optional<Numbers> counts_, local_strides_, remote_strides_;
};

PyRequest run(PyPeer& self, bool put, const RegionArguments& arguments, nb::handle notify,
              nb::handle after) {
  Link& link = *self.link;
  orphans().sweep();
  RegionBatch batch(*link.context, arguments, put);
  auto operation = std::make_unique<Operation>();
  operation->context = link.context;
  operation->locals = batch.locals();
  PutOptions options(notify, after_all(*batch.locals(), after));
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    auto call = put ? oh_peer_put_regions : oh_peer_get_regions;
    status = call(link.get(), &*batch, &options.value, &request);
  }
  return started(std::move(operation), status, request);
}

void run_in_stream(PyOnStream& self, bool put, const RegionArguments& arguments) {
  Link& link = *self.link;
  sweep_held();
  RegionBatch batch(*link.context, arguments, put);
  auto held = std::make_unique<Held>();
  held->link = self.link;
  held->stream = self.stream;
  held->locals = batch.locals();
  held->remotes = batch.holds();
  auto call = put ? oh_peer_stream_put_regions : oh_peer_stream_get_regions;
  enqueue(std::move(held),
          [&, stream = self.stream.handle] { return call(link.get(), stream, &*batch); });
}

PyPreparedBatch prepare(PyPeer& self, bool put, const RegionArguments& arguments) {
  Link& link = *self.link;
  orphans().sweep();
  RegionBatch batch(*link.context, arguments, put);
  oh_prepared_batch* prepared = nullptr;
  oh_status status;
  {
    WithoutGil release;
    auto call = put ? oh_peer_prepare_put_regions : oh_peer_prepare_get_regions;
    status = call(link.get(), &*batch, &prepared);
  }
  check(status);
  auto owned = std::make_shared<Owned<PreparedBatch>>(PreparedBatch(prepared));
  return {self.link, put, batch.locals(), std::move(owned)};
}

#define OH_PYTHON_REGIONS                                                                       \
  "self, locals: collections.abc.Iterable[onehop.buffers.Buffer], remotes: "                    \
  "collections.abc.Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, "        \
  "local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, "        \
  "remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: "           \
  "onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, " \
  "remote_strides: onehop.buffers.Offsets | None = None"
#define OH_PYTHON_REGION_BLOCKS                                                        \
  "Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at\n" \
  "remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.\n" \
  "With counts, entry i is a run of counts[i] blocks, local_strides[i] and\n"          \
  "remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or\n"      \
  "uint32) are not copied; other sequences of integers are.\n\n"                       \
  "OutOfRange: a block is out of bounds; the text names it, and nothing has moved."

// The Python-callable functions: one argument for each member of RegionArguments.
template <size_t>
using Given = nb::handle;
template <bool put, typename Members>
struct Calls;
template <bool put, size_t... member>
struct Calls<put, std::index_sequence<member...>> {
  static PyRequest run(PyPeer& self, Given<member>... batch, nb::handle notify, nb::handle after) {
    return python::run(self, put, {batch...}, notify, after);
  }
  static void run_in_stream(PyOnStream& self, Given<member>... batch) {
    python::run_in_stream(self, put, {batch...});
  }
  static PyPreparedBatch prepare(PyPeer& self, Given<member>... batch) {
    return python::prepare(self, put, {batch...});
  }
};
using Members = std::make_index_sequence<sizeof(RegionArguments) / sizeof(nb::handle)>;
using Puts = Calls<true, Members>;
using Gets = Calls<false, Members>;

// `more`: arguments after those of the batch.
template <typename Type, typename Verb, typename... More>
void bind(nb::class_<Type>& type, const char* name, Verb verb, const char* signature,
          const char* text, const More&... more) {
  type.def(name, verb, nb::arg("locals").none(), nb::arg("remotes").none(),
           nb::arg("local_index").none(), nb::arg("local_offsets").none(),
           nb::arg("remote_index").none(), nb::arg("remote_offsets").none(),
           nb::arg("lengths").none(), nb::arg("counts") = nb::none(),
           nb::arg("local_strides") = nb::none(), nb::arg("remote_strides") = nb::none(), more...,
           nb::sig(signature), text);
}

}  // namespace

void bind_stream_region_batches(nb::class_<PyOnStream>& type) {
  bind(type, "put_regions", Puts::run_in_stream, "def put_regions(" OH_PYTHON_REGIONS ") -> None",
       "Puts blocks of many local buffers into many regions, as put_batch "
       "does.\n\n" OH_PYTHON_REGION_BLOCKS);
  bind(type, "get_regions", Gets::run_in_stream, "def get_regions(" OH_PYTHON_REGIONS ") -> None",
       "Gets blocks of many regions into many local buffers, as get_batch "
       "does.\n\n" OH_PYTHON_REGION_BLOCKS);
}

void bind_region_batches(nb::class_<PyPeer>& type) {
  const auto notify = nb::arg("notify") = nb::none();
  const auto after = nb::arg("after").none() = current_stream_object();
  bind(type, "put_regions", Puts::run,
       "def put_regions(" OH_PYTHON_REGIONS
       ", notify: onehop.buffers.Buffer | None = None" OH_PYTHON_AFTER_ARGUMENT ") -> Request",
       "Puts blocks of many local buffers into many regions. notify is a notification\n"
       "that follows all of them. after as for put.\n\n" OH_PYTHON_REGION_BLOCKS,
       notify, after);
  bind(type, "get_regions", Gets::run,
       "def get_regions(" OH_PYTHON_REGIONS
       ", notify: onehop.buffers.Buffer | None = None" OH_PYTHON_AFTER_ARGUMENT ") -> Request",
       "Gets blocks of many regions into many local buffers. notify is a notification\n"
       "that tells the peer that all of them were read. after as for "
       "put.\n\n" OH_PYTHON_REGION_BLOCKS,
       notify, after);
  bind(type, "prepare_put_regions", Puts::prepare,
       "def prepare_put_regions(" OH_PYTHON_REGIONS ") -> PreparedBatch",
       "Prepares such a batch to be put any number of times: see prepare_put.\n\n"  //
       OH_PYTHON_REGION_BLOCKS);
  bind(type, "prepare_get_regions", Gets::prepare,
       "def prepare_get_regions(" OH_PYTHON_REGIONS ") -> PreparedBatch",
       "Prepares such a batch to be got any number of times: see prepare_get.\n\n"  //
       OH_PYTHON_REGION_BLOCKS);
}

}  // namespace onehop::python
