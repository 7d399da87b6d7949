// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_rma.h"

#include <algorithm>
#include <utility>

namespace oh {
namespace {
// Limits of the requests in flight of one link.
constexpr uint32_t kMostRequests = 256;
constexpr uint64_t kMostBytes = 16 << 20;
constexpr unsigned kMostTransports = 64;
// Maximum bytes that UCX may read of a key: a length and as many bytes for each of 64 memory
// domains.
constexpr size_t kMostOfKey = 64 * (1 + 255) + 1024;
}  // namespace

Result<std::shared_ptr<UcxMapping>> UcxMapping::create(const UcxContext& context, uint8_t* base,
                                                       uint64_t length) {
  const ucx::Library& library = context.library();
  std::shared_ptr<UcxMapping> mapping(new UcxMapping(context));
  ucx::MapParams params;
  params.fields = ucx::MapParams::kAddress | ucx::MapParams::kLength | ucx::MapParams::kMemoryType;
  params.address = base;
  params.length = length;
  const std::string what =
      strf("%llu bytes at %p", static_cast<unsigned long long>(length), static_cast<void*>(base));
  ucx::Code code = library.mem_map(context.handle(), &params, &mapping->memory_);
  if (code != ucx::kOk) {
    mapping->memory_ = nullptr;
    return library.failure(code, ucx::symbol::mem_map, what);
  }
  void* packed = nullptr;
  size_t size = 0;
  code = library.rkey_pack(context.handle(), mapping->memory_, &packed, &size);
  if (code != ucx::kOk) return library.failure(code, ucx::symbol::rkey_pack, what);
  const auto* bytes = static_cast<const uint8_t*>(packed);
  mapping->key_.assign(bytes, bytes + size);
  library.rkey_buffer_release(packed);
  return mapping;
}

UcxMapping::~UcxMapping() {
  if (memory_) (void)context_.library().mem_unmap(context_.handle(), memory_);
}

UcxRma::UcxRma(UcxEndpoint& endpoint)
    : endpoint_(endpoint),
      worker_(endpoint.shared_worker()),
      requests_(std::make_shared<Requests>()) {}

bool UcxRma::is_by_card() const {
  const ucx::Library& library = worker_->library();
  if (library.minor < 14) return false;  // it does not report transports
  ucx::EndpointAttributes::Transport transports[kMostTransports];
  ucx::EndpointAttributes attributes;
  attributes.fields = ucx::EndpointAttributes::kTransports;
  attributes.transports = transports;
  attributes.count = kMostTransports;
  SpinGuard guard(worker_->lock);
  if (!endpoint_.handle() || library.ep_query(endpoint_.handle(), &attributes) != ucx::kOk) {
    return false;
  }
  return std::any_of(transports, transports + std::min(attributes.count, kMostTransports),
                     [](const auto& one) { return ucx::is_rdma_transport(one.name); });
}

bool UcxRma::is_quiet() const {
  SpinGuard guard(worker_->lock);
  return requests_->count == 0;
}

Result<ucx::RemoteKey> UcxRma::unpack(ByteView key) {
  ucx::RemoteKey unpacked = nullptr;
  // UCX is not given the key's length: pad it with zeros, which it reads behind a truncated key.
  Bytes padded(key.size() + kMostOfKey);
  std::copy(key.begin(), key.end(), padded.begin());
  SpinGuard guard(worker_->lock);
  if (!endpoint_.handle()) return error(OH_ERR_PEER_LOST, "the link has ended");
  ucx::Code code = worker_->library().rkey_unpack(endpoint_.handle(), padded.data(), &unpacked);
  if (code == ucx::kOk) return unpacked;
  return worker_->library().failure(code, ucx::symbol::rkey_unpack,
                                    strf("a key of %zu bytes", key.size()));
}

void UcxRma::destroy(ucx::RemoteKey key) {
  SpinGuard guard(worker_->lock);
  worker_->library().rkey_destroy(key);
}

bool UcxRma::move(const std::shared_ptr<RmaInFlight>& in_flight, const Piece& piece, bool put) {
  SpinGuard guard(worker_->lock);
  if (!endpoint_.is_usable()) {
    in_flight->code = ucx::kCanceled;
    return true;
  }
  Requests& requests = *requests_;
  if (requests.count >= kMostRequests || requests.bytes >= kMostBytes) return false;
  if (requests.free.empty()) {
    requests.tickets.push_back(std::make_unique<Ticket>());
    requests.free.push_back(requests.tickets.back().get());
  }
  Ticket* ticket = requests.free.back();
  ucx::RequestParam param;
  param.attributes =
      ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kMemoryType;
  param.callback.send = on_moved;
  param.user_data = ticket;
  const ucx::Library& library = worker_->library();
  ucx::StatusPointer pointer = put ? library.put(endpoint_.handle(), piece.local, piece.size,
                                                 piece.remote, piece.key, &param)
                                   : library.get(endpoint_.handle(), piece.local, piece.size,
                                                 piece.remote, piece.key, &param);
  if (!pointer) return true;
  if (ucx::is_error(pointer)) {
    in_flight->code = ucx::code_of(pointer);
    endpoint_.break_off(library.failure(in_flight->code, in_flight->call, "").text());
    return true;
  }
  requests.free.pop_back();
  *ticket = {requests_, in_flight, piece.size};
  ++requests.count;
  requests.bytes += piece.size;
  if (in_flight->requests++ == 0) in_flight->over.store(false, std::memory_order_relaxed);
  worker_->note_held(1);
  return true;
}

void UcxRma::on_moved(void* request, ucx::Code code, void* context) {
  auto* ticket = static_cast<Ticket*>(context);
  std::shared_ptr<Requests> requests = std::move(ticket->owner);
  std::shared_ptr<RmaInFlight> in_flight = std::move(ticket->in_flight);
  UcxWorker& worker = in_flight->worker;
  worker.library().request_free(request);
  --requests->count;
  requests->bytes -= ticket->size;
  requests->free.push_back(ticket);
  if (code != ucx::kOk && in_flight->code == ucx::kOk) in_flight->code = code;
  // release: the bytes of the gets are visible; pairs with is_over().
  if (--in_flight->requests == 0) in_flight->over.store(true, std::memory_order_release);
  worker.note_held(-1);
  worker.note_arrival();
}

std::shared_ptr<InFlight> UcxRma::flush() {
  auto in_flight = std::make_shared<InFlight>(*worker_, ucx::symbol::ep_flush);
  SpinGuard guard(worker_->lock);
  if (!endpoint_.is_usable()) return InFlight::cancelled(std::move(in_flight));
  ucx::RequestParam param;
  param.attributes = ucx::RequestParam::kCallback | ucx::RequestParam::kUserData;
  param.callback.send = InFlight::on_over;
  param.user_data = in_flight.get();
  ucx::StatusPointer pointer = worker_->library().ep_flush(endpoint_.handle(), &param);
  return InFlight::begin(std::move(in_flight), pointer);
}

}  // namespace oh
