// SPDX-License-Identifier: Apache-2.0
#include "message_batches.h"

#include <memory>
#include <utility>

#include "endpoint.h"
#include "numbers.h"
#include "one_sided.h"

namespace onehop::python {
namespace {

// The oh_blocks of the arguments, and the storage that they point to.
class Blocks {
 public:
  Blocks(const Local& local, const BatchTransfer& transfer) {
    value_.memory = local.data();
    value_.memory_size = local.size();
    bool scalar = is_whole(transfer.lengths);
    std::optional<Range> range = as_range(transfer.offsets);
    if (scalar && range) {
      value_.count = range->count;
      value_.base = range->start;
      value_.stride = range->step;
      value_.length = Numbers::number(transfer.lengths, "lengths");
      return;
    }
    // Check the lengths before any iteration.
    std::optional<size_t> offsets = length_of(transfer.offsets, "offsets");
    std::optional<size_t> lengths = scalar ? offsets : length_of(transfer.lengths, "lengths");
    if (offsets && lengths) check_counts(*offsets, *lengths);
    offsets_.emplace(transfer.offsets, "offsets");
    if (scalar) {
      lengths_.emplace(Numbers::number(transfer.lengths, "lengths"), offsets_->size());
    } else {
      lengths_.emplace(transfer.lengths, "lengths");
    }
    // Check again: an object may report no length, or a wrong one.
    check_counts(offsets_->size(), lengths_->size());
    value_.count = offsets_->size();
    value_.offsets = offsets_->data();
    value_.lengths = lengths_->data();
  }
  const oh_blocks& operator*() const { return value_; }

 private:
  static void check_counts(size_t offsets, size_t lengths) {
    if (offsets == lengths) return;
    raise_invalid("a batch has one entry per block: here are " + std::to_string(offsets) +
                  " offsets and " + std::to_string(lengths) + " lengths");
  }

  oh_blocks value_ = detail::sized<oh_blocks>();
  std::optional<Numbers> offsets_;
  std::optional<Numbers> lengths_;
};

std::unique_ptr<Operation> post(Link& link, const BatchTransfer& transfer) {
  auto operation = begin(link, transfer.local, Access::kWrite);
  const Local& local = operation->local;
  Blocks blocks(local, transfer);
  uint64_t tag = tag_of(transfer.tag);
  auto options = detail::with(kDefaultTimeout, local.after(transfer.after));
  oh_request* request = nullptr;
  oh_status status;
  {
    WithoutGil release;
    status = oh_peer_irecv_batch(link.get(), &*blocks, tag, &options, &request);
  }
  check(status);
  operation->request = Owned<Request>(Request(request));
  return operation;
}

}  // namespace

void send_batch(Link& link, const BatchTransfer& transfer, nb::handle timeout) {
  orphans().sweep();
  auto local = std::make_unique<Local>(*link.context, transfer.local, Access::kRead);
  Blocks blocks(*local, transfer);
  uint64_t tag = send_tag_of(transfer.tag);
  After after = local->after(transfer.after);
  try {
    // A slice that ends before the receive is posted has no effect.
    wait_in_slices(timeout_ns(timeout, link.context->default_timeout_ns()), [&](int64_t slice) {
      auto options = detail::with(Timeout(slice), after);
      return oh_peer_send_batch(link.get(), &*blocks, tag, &options);
    });
  } catch (const Error& error) {
    // The peer may still read the memory, and no event reports the end: keep it forever.
    if (error.status() == OH_ERR_IN_DOUBT) (void)local.release();
    throw;
  }
}

PyMessage recv_batch(Link& link, const BatchTransfer& transfer, nb::handle timeout) {
  Patience patience(timeout_ns(timeout, link.context->default_timeout_ns()));
  return finish(post(link, transfer), patience);
}

PyRequest irecv_batch(Link& link, const BatchTransfer& transfer) {
  return PyRequest(post(link, transfer));
}

#define OH_PYTHON_ABOUT_BLOCKS                                                        \
  "Block i is lengths[i] bytes at offsets[i] of local. Offsets and lengths are in\n"  \
  "bytes: arrays of int64 or uint64, which are not copied, or sequences of\n"         \
  "integers. lengths may be one integer for all blocks; with a range of offsets it\n" \
  "needs no list at all.\n"

void bind_message_batches(nb::class_<PyPeer>& type) {
  type.def(
          "send_batch",
          [](PyPeer& self, nb::handle local, nb::handle offsets, nb::handle lengths, nb::handle tag,
             nb::handle timeout, nb::handle after) {
            send_batch(*self.link, {local, offsets, lengths, tag, after}, timeout);
          },
          nb::arg("local").none(), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("tag").none() = 0, nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def send_batch(" OH_PYTHON_BLOCKS ", tag: typing.SupportsIndex = 0, timeout: "
                  "float | None = ..." OH_PYTHON_AFTER_ARGUMENT ") -> None"),
          "Sends many blocks as one message. Returns when their memory may be reused.\n\n"
          "The message matches the peer's next recv_batch or irecv_batch with this tag,\n"
          "never a recv. Only the total lengths have to match: the two sides may divide\n"
          "them into different blocks. The bytes go straight into the peer's blocks if this\n"
          "process can access its memory.\n\n" OH_PYTHON_ABOUT_BLOCKS
          "tag: 0 to 2**62 - 1.\n"
          "timeout: seconds until the receive is posted; None: no limit; omitted:\n"
          "ONEHOP_TIMEOUT.\n"
          "after: as for send.\n\n"
          "TimeoutError: no receive was posted; nothing was sent. OutOfRange: a block is\n"
          "out of bounds; the text names it. PeerLost. OperationError with\n"
          "Status.TRUNCATED: the receive is shorter.")
      .def(
          "recv_batch",
          [](PyPeer& self, nb::handle local, nb::handle offsets, nb::handle lengths, nb::handle tag,
             nb::handle timeout, nb::handle after) {
            return recv_batch(*self.link, {local, offsets, lengths, tag, after}, timeout);
          },
          nb::arg("local").none(), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("tag").none() = 0, nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def recv_batch(" OH_PYTHON_BLOCKS ", tag: typing.SupportsIndex = 0, timeout: "
                  "float | None = ..." OH_PYTHON_AFTER_ARGUMENT ") -> Message"),
          "Receives a message of send_batch into many blocks. A shorter message fills their\n"
          "first bytes, in order; Message.nbytes is its length.\n\n" OH_PYTHON_ABOUT_BLOCKS
          "tag: 0 to 2**62 - 1.\n" OH_PYTHON_TIMEOUT
          "\n"
          "after: earlier work on the memory; the call waits for it.\n\n"
          "TimeoutError. OutOfRange. PeerLost. OperationError with Status.TRUNCATED: the\n"
          "message is longer; with Status.IN_DOUBT: the peer may still write, and the\n"
          "memory is kept until it cannot.")
      .def(
          "irecv_batch",
          [](PyPeer& self, nb::handle local, nb::handle offsets, nb::handle lengths, nb::handle tag,
             nb::handle after) {
            return irecv_batch(*self.link, {local, offsets, lengths, tag, after});
          },
          nb::arg("local").none(), nb::arg("offsets").none(), nb::arg("lengths").none(),
          nb::arg("tag").none() = 0, nb::arg("after").none() = current_stream_object(),
          nb::sig("def irecv_batch(" OH_PYTHON_BLOCKS
                  ", tag: typing.SupportsIndex = 0" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "As recv_batch, but does not wait for the message. So both sides of an exchange\n"
          "can post their receives, then send.");
}

}  // namespace onehop::python
