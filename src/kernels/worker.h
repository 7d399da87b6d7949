// SPDX-License-Identifier: Apache-2.0
//
// The worker: a kernel of one block that stays on the GPU while messages come often, takes commands
// from host memory (onehop/detail/command.h), copies, and writes their done words. It leaves by
// itself, soon: others must not wait for it.
//
//   state   run 56 | phase 8      in host memory; run: the number of the launch
//
//   HERE ──▶ LEAVING ──▶ GONE     LEAVING: one more look at the ring. A command is executed if its
//                                 writer fences and still finds HERE; after GONE none is.
//
// The same lines run on a device and in the fake driver, where the team is one thread.
#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "onehop/detail/command.h"

namespace oh::kernels {

inline constexpr char kWorkerKernel[] = "onehop_worker";
inline constexpr unsigned kWorkerThreads = 512;
// Up to here one warp copies: to call the others costs more.
inline constexpr uint64_t kOneWarp = 4096;

enum WorkerPhase : uint64_t { kHere = 1, kLeaving = 2, kGone = 3 };
ONEHOP_PURE uint64_t worker_state(uint64_t run, WorkerPhase phase) { return run << 8 | phase; }

struct WorkerArgs {
  onehop::detail::CommandRing ring;
  uint64_t* state;
  uint64_t* stayed;  // nanoseconds, written before GONE
  uint64_t run;
  uint64_t idle;  // nanoseconds without a command, then it leaves
  uint64_t stay;  // nanoseconds in any case
  uint64_t most;  // commands in any case
};

// A team has, for all its threads at once:
//   read(position, command)      whether the command is there; then all have it
//   carry_out(command)           copies; behind it, one thread's fence orders what all wrote
//   finish(position, command)    done word and `through`, by one thread
//   say(word, value)             a release, by one thread
//   settle()                     orders what was said against the reads that follow
//   now()                        nanoseconds
//   begin()                      the position to begin at
template <typename Team>
ONEHOP_BOTH void serve(const WorkerArgs& args, Team&& team) {
  // Launches follow each other in a stream: what the one before was through with is known.
  uint64_t position = team.begin();
  const uint64_t start = team.now();
  uint64_t heard = start;
  uint64_t taken = 0;
  bool leaving = false;
  team.say(args.state, worker_state(args.run, kHere));
  while (true) {
    onehop::detail::Command command;
    const bool came = team.read(position, &command);
    bool go_on = !leaving;
    if (came) {
      if (command.kind == onehop::detail::kCommandCopy) team.carry_out(command);
      go_on = go_on && command.kind != onehop::detail::kCommandLeave;
      team.finish(position, command);
      ++position;
      ++taken;
    } else if (leaving) {
      break;
    }
    const uint64_t now = team.now();
    if (came) heard = now;
    go_on = go_on && taken < args.most && now - start < args.stay && now - heard < args.idle;
    if (go_on || leaving) continue;
    team.say(args.state, worker_state(args.run, kLeaving));
    team.settle();
    leaving = true;
  }
  team.say(args.stayed, team.now() - start);
  team.say(args.state, worker_state(args.run, kGone));
}

}  // namespace oh::kernels
