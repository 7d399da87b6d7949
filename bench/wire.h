// SPDX-License-Identifier: Apache-2.0
//
// What the timed loops see of a transport: a Link, by which the two sides meet, and a Wire, which
// moves the messages of one row. A backend is one file with its wires: onehop's are in side.cc,
// ordered.cc, patterns.cc and, by functions of Python, module.cc; others in floors.cc, nccl.cc and
// pingpong_*.cc.
//
//   side 0                                   side 1
//   out() --isend(i) .. sent(i)------------> in()    irecv(i) .. received(i)
//   in()  <-----------------------------     out()   latency of messages, and both ways at once
//
// A row of messages one way has out() at side 0 and in() at side 1, as puts have; a get has out()
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
  // 0: this side measures.
  virtual int number() const = 0;
  // Gives the other side bytes and takes its own.
  virtual Bytes swap(const Bytes& bytes) = 0;
  // Returns when both sides have come here.
  virtual void sync() { swap({}); }
  bool first() const { return number() == 0; }
};

class Wire {
 public:
  explicit Wire(Link& link) : link_(link) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  virtual ~Wire() = default;

  // Message i of a pass is in slot i % window. Between isend and sent, or irecv and received, its
  // slot belongs to the transport. A wire defines what its rows use.
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
  // Called before message i, outside of what latency times.
  virtual void prepare(uint64_t) {}
  // The path of the last message, as oh_path_name names it.
  virtual std::string path() const { return "none"; }
  // Behind the messages of a pass: side 1 confirms that all are there, and side 0 awaits that.
  virtual void confirm() { link_.sync(); }
  // The same in the order of a stream.
  virtual void confirm_on_stream() {}

  Link& link() { return link_; }
  Payload* out() { return out_.get(); }
  Payload* in() { return in_.get(); }
  bool passive() const { return passive_; }
  // Both sides take part in each message, so the receiver has to confirm the last.
  bool two_sided() const { return two_sided_; }
  // The other side may write into in() as soon as it has our answer.
  bool overwritten() const { return overwritten_; }

 protected:
  // The payload of a batch, in memory of a size that `make` makes.
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

// Whether this side of a row of messages gives or takes.
inline bool gives(const Link& link, const Spec& spec) {
  return spec.op == Op::kLatency || spec.both || link.first();
}
inline bool takes(const Link& link, const Spec& spec) {
  return spec.op == Op::kLatency || spec.both || !link.first();
}

// A wire whose payloads are slots.
class SlotWire : public Wire {
 public:
  // As Wire has them.
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
  // The payloads that the row's mode asks for, in memory that `make` makes. Of puts and gets each
  // side has one, and side 0 acts.
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
  // The memory of the one that there is, or of what comes.
  Buffer& memory() { return (to_ ? to_ : from_)->memory(); }

  Slots* from_ = nullptr;
  Slots* to_ = nullptr;
};

}  // namespace bench
