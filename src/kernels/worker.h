// SPDX-License-Identifier: Apache-2.0
//
// The worker: a kernel of one block that stays on the GPU while messages are frequent. It takes
// commands from host memory (onehop/detail/command.h), copies, and writes their done words. It soon
// exits by itself, since other work may wait for it.
//
//   state   run 56 | phase 8      in host memory; run: the number of the launch
//
//   HERE ──▶ LEAVING ──▶ GONE     LEAVING: empties the ring once more. A command is executed if its
//                                 writer still reads HERE after a full fence; after GONE none is.
//
// The same code runs on a device and in the fake driver, where the team is one thread.
#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "onehop/detail/command.h"

namespace oh::kernels {

inline constexpr char kWorkerKernel[] = "onehop_worker";
inline constexpr unsigned kWorkerThreads = 512;
// Up to this size one warp copies: waking the other warps costs more.
inline constexpr uint64_t kOneWarp = 4096;

enum WorkerPhase : uint64_t { kHere = 1, kLeaving = 2, kGone = 3 };
ONEHOP_PURE uint64_t worker_state(uint64_t run, WorkerPhase phase) { return run << 8 | phase; }

struct WorkerArgs {
  onehop::detail::CommandRing ring;
  uint64_t* state;
  uint64_t* stayed;  // nanoseconds that it ran; written before GONE
  uint64_t run;
  uint64_t idle;  // nanoseconds without a command until it exits
  uint64_t stay;  // most nanoseconds that it runs
  uint64_t most;  // most commands
};

// A team has these calls, which all its threads make together:
//   read(position, command)      whether the command has arrived; if so, all threads get it
//   carry_out(command)           copies; a later fence by one thread orders the writes of all
//   finish(position, command)    one thread writes the done word and `through`
//   say(word, value)             one thread stores with release
//   settle()                     orders earlier say() calls before the reads that follow
//   now()                        nanoseconds
//   begin()                      the position to begin at
template <typename Team>
ONEHOP_BOTH void serve(const WorkerArgs& args, Team&& team) {
  // Launches run in stream order, so the position that the previous one reached is known.
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
