// SPDX-License-Identifier: Apache-2.0
//
// The interface between the timed loops and a transport: a Link, through which the two sides
// synchronize, and a Wire, which transfers the messages of one row. A backend is one file with its
// wires: onehop's are in side.cc, ordered.cc, patterns.cc and, with Python functions, module.cc;
// others in floors.cc, nccl.cc and pingpong_*.cc.
//
//   side 0                                   side 1
//   out() --isend(i) .. sent(i)------------> in()    irecv(i) .. received(i)
//   in()  <-----------------------------     out()   latency of messages; both directions at once
//
// A row of one-way messages has out() at side 0 and in() at side 1, as have puts; a get has out()
// at side 1. The side that one-sided operations read or write is passive().
//
// Threading: each belongs to one thread.
#pragma once

#include <memory>

#include "payload.h"
#include "spec.h"

namespace bench {

using Bytes = std::vector<uint8_t>;

class Link {
 public:
  virtual ~Link() = default;
  // Number of this side; side 0 measures.
  virtual int number() const = 0;
  // Sends bytes to the other side and returns its bytes.
  virtual Bytes swap(const Bytes& bytes) = 0;
  // Returns when both sides have called it.
  virtual void sync() { swap({}); }
  bool first() const { return number() == 0; }
};

class Wire {
 public:
  explicit Wire(Link& link) : link_(link) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  virtual ~Wire() = default;

  // Message i of a pass uses slot i % window. The transport owns the slot between isend() and
  // sent(), or irecv() and received(). A wire overrides what its rows use.
  virtual void isend(uint64_t) {}
  virtual void sent(uint64_t) {}
  virtual void irecv(uint64_t) {}
  virtual void received(uint64_t) {}
  virtual void send(uint64_t i) {
    isend(i);
    sent(i);
  }
  virtual void recv(uint64_t i) {
    irecv(i);
    received(i);
  }
  // Called before message i, outside of the time that latency measures.
  virtual void prepare(uint64_t) {}
  // The path of the last message, as named by oh_path_name.
  virtual std::string path() const { return "none"; }
  // After the messages of a pass: side 1 confirms that all have arrived, and side 0 waits for it.
  virtual void confirm() { link_.sync(); }
  // As confirm(), stream-ordered.
  virtual void confirm_on_stream() {}

  Link& link() { return link_; }
  Payload* out() { return out_.get(); }
  Payload* in() { return in_.get(); }
  bool passive() const { return passive_; }
  // Both sides take part in each message, so the receiver must confirm the last one.
  bool two_sided() const { return two_sided_; }
  // The other side may write into in() as soon as it has received this side's answer.
  bool overwritten() const { return overwritten_; }

 protected:
  // Creates the payload of a batch, in memory from `make`.
  template <typename Make>
  Blocks* give_or_take_blocks(const Spec& spec, Make make) {
    const bool bulk = spec.mode == Mode::kBulk;
    passive_ = !link_.first() && !bulk;
    two_sided_ = bulk;
    std::unique_ptr<Payload>& mine = puts(spec) == link_.first() ? out_ : in_;
    auto blocks = std::make_unique<Blocks>(spec, link_.number(), make(Blocks::memory_size(spec)));
    Blocks* found = blocks.get();
    mine = std::move(blocks);
    return found;
  }

  Link& link_;
  std::unique_ptr<Payload> out_;
  std::unique_ptr<Payload> in_;
  bool passive_ = false;
  bool two_sided_ = true;
  bool overwritten_ = false;
};

// Whether this side of a message row sends or receives.
inline bool gives(const Link& link, const Spec& spec) {
  return spec.op == Op::kLatency || spec.both || link.first();
}
inline bool takes(const Link& link, const Spec& spec) {
  return spec.op == Op::kLatency || spec.both || !link.first();
}

// A wire whose payloads are slots.
class SlotWire : public Wire {
 public:
  // As in Wire, with the concrete type.
  Slots* out() { return from_; }
  Slots* in() { return to_; }

 protected:
  using Wire::Wire;
  void give(const Spec& spec, Slots::Role role, std::unique_ptr<Buffer> memory) {
    out_ = std::make_unique<Slots>(spec, role, std::move(memory));
    from_ = static_cast<Slots*>(out_.get());
  }
  void take(const Spec& spec, Slots::Role role, std::unique_ptr<Buffer> memory) {
    in_ = std::make_unique<Slots>(spec, role, std::move(memory));
    to_ = static_cast<Slots*>(in_.get());
  }
  // Creates the payloads of the row's mode, in memory from `make`. For puts and gets each side has
  // one, and side 0 is the initiator.
  template <typename Make>
  void give_and_take(const Spec& spec, Make make) {
    const int number = link_.number();
    if (is_one_sided(spec.mode)) {
      const bool put = spec.mode == Mode::kPut;
      const Slots::Role role{put ? 0 : 1, /*spoils=*/true, /*fixed=*/!put};
      passive_ = !link_.first();
      two_sided_ = false;
      put == link_.first() ? give(spec, role, make()) : take(spec, role, make());
      return;
    }
    overwritten_ = spec.mode == Mode::kPutSignal;
    if (gives(link_, spec)) give(spec, {number, link_.first()}, make());
    if (takes(link_, spec)) take(spec, {1 - number}, make());
  }
  // The memory of the only payload, or of in() if there are two.
  Buffer& memory() { return (to_ ? to_ : from_)->memory(); }

  Slots* from_ = nullptr;
  Slots* to_ = nullptr;
};

}  // namespace bench
