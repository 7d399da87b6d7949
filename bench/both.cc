// SPDX-License-Identifier: Apache-2.0
//
// Bandwidth in both directions at once: each side keeps a window of receives and a window of sends
// in flight. Figures are those of one way.
#include "slots.h"

namespace bench {
namespace {

struct Ways {
  Slots& out;
  Slots& in;
};

void pass(Side& side, const Spec& spec, Ways ways, uint64_t count, Outcome* outcome) {
  struct Pair {
    onehop::Request receive;
    onehop::Request send;
  };
  onehop::Peer& peer = side.peer();
  ways.out.fill_all();
  ways.in.poison_all();
  side.sync();
  Pace pace(spec.window);
  std::vector<std::optional<Pair>> window(spec.window);
  auto start = [&](uint64_t i) {
    ways.out.mark(i, i + 1 == count && side.first());
    onehop::Request receive = peer.irecv(ways.in.place(i), spec.size, kDataTag);
    window[i % spec.window].emplace(
        Pair{std::move(receive), peer.isend(ways.out.place(i), spec.size, kDataTag)});
  };
  auto end = [&](uint64_t i) {
    Pair& pair = *window[i % spec.window];
    outcome->path = pair.receive.wait().path;
    pair.send.wait();
    if (spec.stamped) outcome->wrong += check_stamps(ways.in.at(i), spec.size, i);
  };
  uint64_t oldest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i - oldest == spec.window) end(oldest++);
    start(i);
    if (spec.window == 1) end(oldest++);
    pace.begun(i);
  }
  while (oldest < count) end(oldest++);
  // Our own receives have ended, and the other side's as well: it confirms that.
  side.sync();
  if (side.first()) pace.ended(spec, count, outcome);
  outcome->wrong += ways.in.check_all(count);
  side.sync();
}

}  // namespace

Outcome bandwidth_both(Side& side, const Spec& spec) {
  Outcome outcome;
  Slots out(side, spec, side.number());
  Slots in(side, spec, 1 - side.number());
  for (uint64_t count : {spec.warmup, spec.iterations}) {
    if (count > 0) pass(side, spec, {out, in}, count, &outcome);
  }
  return outcome;
}

}  // namespace bench
