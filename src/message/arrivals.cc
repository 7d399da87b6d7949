// SPDX-License-Identifier: Apache-2.0
#include "message/arrivals.h"

#include <utility>

#include "path/path.h"
#include "path/staging/bounce_copies.h"

namespace oh {

Arrival* Arrivals::begin(uint64_t op, uint64_t tag, uint64_t length, uint64_t charge) {
  auto index = static_cast<uint32_t>(op);
  if (index >= named_.size()) named_.resize(index + 1, nullptr);
  Arrival* arrival = pool_.acquire();
  *arrival = Arrival{};
  arrival->op = op;
  arrival->tag = tag;
  arrival->length = length;
  arrival->charge = charge;
  named_[index] = arrival;
  return arrival;
}

void Arrivals::end(Arrival* arrival) {
  Arrival*& named = named_[static_cast<uint32_t>(arrival->op)];
  if (named == arrival) named = nullptr;
  pool_.release(arrival);
}

void Arrivals::bind(Arrival* arrival, Request* request) {
  arrival->request = request;
  request->phase = Phase::kStream;
  request->message_tag = arrival->tag;
  request->theirs = arrival->op;
  request->expected = arrival->length;
}

Arrival* Arrivals::find(uint64_t op) const {
  auto index = static_cast<uint32_t>(op);
  if (index >= named_.size() || !named_[index]) return nullptr;
  return named_[index]->op == op ? named_[index] : nullptr;
}

Arrival* Arrivals::of(const Request* request) const {
  Arrival* named = find(request->theirs);
  if (named && named->request == request) return named;
  // An arrival that is being fetched may have lost its ID to a later message.
  for (Arrival* arrival : fetching_) {
    if (arrival->request == request) return arrival;
  }
  return nullptr;
}

bool Arrivals::is_name_in_use(uint64_t op) const {
  auto index = static_cast<uint32_t>(op);
  if (index >= named_.size() || !named_[index]) return false;
  // The sender may have finished a message that is still being fetched here, and reused its ID.
  return !named_[index]->in_flight || named_[index]->op == op;
}

Result<bool> Arrivals::take(Arrival* arrival, const Frame& frame) {
  if (frame.address != arrival->received ||
      frame.payload_size > arrival->length - arrival->received) {
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes at %llu of a message of %llu, %llu are here",
                 link_.name.c_str(), frame.payload_size,
                 static_cast<unsigned long long>(frame.address),
                 static_cast<unsigned long long>(arrival->length),
                 static_cast<unsigned long long>(arrival->received));
  }
  // A correct sender waits for the end of a fetch.
  if (arrival->in_flight || (frame.remote && !arrival->request && arrival->unexpected)) {
    return error(OH_ERR_PROTOCOL, "%s sent a part beside another one", link_.name.c_str());
  }
  OH_ASSIGN_OR_RETURN(uint8_t* sink, place_of(*arrival, frame));
  if (frame.remote && sink) {
    arrival->in_flight = link_.ucx->fetch(frame, sink);
    arrival->fetched = frame.payload_size;
    fetching_.push_back(arrival);
    return false;
  }
  if (sink && !frame.placed) frame.copy_payload(sink, arrival->length);
  return true;
}

// Destination of the frame's bytes; null: they are dropped.
Result<uint8_t*> Arrivals::place_of(Arrival& arrival, const Frame& frame) {
  Request* request = arrival.request;
  if (request && request->staged) {
    uint8_t* place = StagingPipeline::place(*request->staged, frame.address, frame.payload_size);
    if (place) return place;
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes at %llu, which it was not told to",
                 link_.name.c_str(), frame.payload_size,
                 static_cast<unsigned long long>(frame.address));
  }
  if (request && request->is_run()) {
    std::span<uint8_t> place = request->run.at(frame.address);
    if (frame.payload_size <= place.size()) return place.data();
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes at %llu, where a block has %zu left",
                 link_.name.c_str(), frame.payload_size,
                 static_cast<unsigned long long>(frame.address), place.size());
  }
  if (request) return BounceCopies::place(*request, arrival.length) + frame.address;
  return arrival.unexpected ? arrival.unexpected->bytes() + frame.address : nullptr;
}

Arrival* Arrivals::next_fetched() {
  for (size_t i = 0; i < fetching_.size(); ++i) {
    Arrival* arrival = fetching_[i];
    if (!arrival->in_flight->is_over()) continue;
    fetching_.erase(fetching_.begin() + static_cast<ptrdiff_t>(i));
    const std::shared_ptr<InFlight> in_flight = std::move(arrival->in_flight);
    Status broken;
    if (in_flight->code != ucx::kOk) broken = link_.ucx->broken_by(*in_flight);
    if (!broken.ok() && arrival->request) {
      Request* request = std::exchange(arrival->request, nullptr);
      const Status lost =
          error(OH_ERR_PEER_LOST, "UCX gave up fetching a message of %llu bytes from %s: %s",
                static_cast<unsigned long long>(arrival->length), link_.name.c_str(),
                broken.text().c_str());
      request->staged ? pipeline_.stop(*request->staged, lost) : link_.finish(*request, lost);
    }
    return arrival;
  }
  return nullptr;
}

bool Arrivals::advance(Arrival* arrival, uint64_t size) {
  arrival->received += size;
  if (arrival->unexpected) arrival->unexpected->received = arrival->received;
  StagedCopy* staged = arrival->request ? arrival->request->staged.get() : nullptr;
  if (staged) staged->there = arrival->received;
  return arrival->received >= arrival->length;
}

void Arrivals::reject(Request* request, const Status& why) {
  Arrival* arrival = of(request);
  if (!arrival) return;
  revoke(*arrival);
  // A fetch in flight outlives the receive.
  if (arrival->in_flight) request->in_flight = arrival->in_flight;
  arrival->request = nullptr;
  reject_message(link_, arrival->op, why.code(), request->size);
  // Without a CTS no bytes arrive.
  if (request->staged && request->staged->begun == 0) end(arrival);
}

void Arrivals::fail_all(const Status& status) {
  for (Arrival* arrival : fetching_) {
    // A later message has taken its ID.
    if (named_[static_cast<uint32_t>(arrival->op)] != arrival) named_.push_back(arrival);
  }
  for (Arrival*& named : named_) {
    Arrival* arrival = std::exchange(named, nullptr);
    if (!arrival) continue;
    revoke(*arrival);
    if (Request* request = arrival->request) {
      request->in_flight = arrival->in_flight;
      const bool in_use = request->staged || (arrival->in_flight && !arrival->in_flight->is_over());
      in_use ? link_.leave_in_doubt(*request, status) : link_.finish(*request, status);
    }
    if (arrival->unexpected) arrival->unexpected->announced = true;  // rest at the sender
    pool_.release(arrival);
  }
  fetching_.clear();
}

}  // namespace oh
