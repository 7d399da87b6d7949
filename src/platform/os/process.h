// SPDX-License-Identifier: Apache-2.0
//
// Identity of this process, and its threads. The identity is random: no other process has it, not
// even a forked child or a later process with the same PID.
//
// Threading: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace oh {

using Id = std::array<uint8_t, 16>;

std::string id_text(const Id& id);  // hexadecimal
Result<Id> random_id();

// This process's identity. Created on first use, and again after fork().
Result<Id> process_identity();

// Runs `body` in a new thread with all signals blocked, so that the program's handlers run on the
// program's threads.
using ThreadBody = void (*)(void* context);
Status start_thread(const char* name, ThreadBody body, void* context, unsigned long* thread);
void join_thread(unsigned long thread);
// The thread is never joined.
void detach_thread(unsigned long thread);

}  // namespace oh
