/* SPDX-License-Identifier: Apache-2.0
 *
 * The state word of half a lane (include/onehop/detail/lane.h): who takes it, who is refused, and how
 * the host brings it to its next epoch (src/kernels/stream.h, run_lanes).
 *
 *   kernel   one access marks it busy and tells what it was: failed: takes the mark back, in another
 *            access, if it was not there before; busy: fails it; else has it, and gives it back
 *   host     STOPPING: marks it failed, waits until it is not busy; BEGINNING: the next epoch, still
 *            failed, and busy if it was; OPENING: takes failed back, in one access with a look that
 *            it is not busy
 *
 * Kernels come at any time, also several at once. One that is refused may be held up between its
 * two accesses for as long as a reset takes: all that time the mark is its own.
 *
 * Checked: one at a time has the half, with the mark and the epoch there until it gives it back;
 * nobody has it while its memory is zeroed; who finds it busy meets somebody who has it, and not one
 * who was refused; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that the protocol needs, and must be found wrong.
 */
#define KERNELS 3
#define TURNS 2
#define RESETS 2

bool busy;
bool failed;
byte epoch;

byte holders;
byte over; /* kernels that have had their turns */

#ifdef MUTANT_GIVEN_BACK_BY_A_STORE
#define KEEP_FAILED(seen) failed = (seen)
#else
#define KEEP_FAILED(seen) skip
#endif

#ifdef MUTANT_MARK_NOT_TAKEN_BACK
#define TAKE_BACK skip
#else
#define TAKE_BACK busy = false
#endif

proctype kernel() {
  byte n, mine;
  bool was_busy, was_failed, seen;
  for (n : 1 .. TURNS) {
    atomic {
      was_busy = busy;
      was_failed = failed;
      mine = epoch;
      assert(!was_busy || was_failed || holders > 0);
      busy = true;
      if
      :: !was_busy && !was_failed -> holders++; assert(holders == 1)
      :: else
      fi
    }
    if
    :: was_busy && was_failed
    :: was_busy && !was_failed -> failed = true
    :: !was_busy && was_failed ->
       TAKE_BACK
    :: !was_busy && !was_failed ->
       seen = failed;
       atomic {
         assert(busy && epoch == mine);
         KEEP_FAILED(seen);
         holders--;
         busy = false
       }
    fi;
    atomic { was_busy = false; was_failed = false; mine = 0; seen = false }
  }
  over++
}

#ifdef MUTANT_BEGINS_WITHOUT_THE_MARK
#define KEEP_BUSY busy = false
#else
#define KEEP_BUSY skip
#endif
#ifdef MUTANT_OPENS_WITHOUT_A_LOOK
#define MAY_OPEN true
#else
#define MAY_OPEN !busy
#endif
#ifdef MUTANT_NOT_STOPPED
#define STOP skip
#else
#define STOP failed = true
#endif

active proctype host() {
  byte reset;
  for (reset : 1 .. RESETS) {
    STOP;
    !busy;
    assert(!holders); /* the memory is zeroed from here on */
    atomic { assert(!holders); epoch = reset; failed = true; KEEP_BUSY }
    atomic { MAY_OPEN -> failed = false }
  }
  over == KERNELS;
  assert(!busy && !holders)
}

init {
  atomic { run kernel(); run kernel(); run kernel() }
}
