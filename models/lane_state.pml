/* SPDX-License-Identifier: Apache-2.0
 *
 * The state word of half a lane (include/onehop/detail/lane.h): who takes it, who is refused, and how
 * the host brings it to its next epoch (src/kernels/stream.h, run_lanes).
 *
 *   kernel   one access marks it busy and tells what it was: failed: takes the mark back, in another
 *            access, if it was not there before and the epoch is still the same; busy: fails it; else
 *            has it, and gives it back, or ends without that
 *   host     STOPPING: marks it failed, waits until it is not busy, or until each kernel is over that
 *            was there at one time since; BEGINNING: the next epoch, still failed, without the mark,
 *            whoever has left it; OPENING: takes failed back, in one access with a look that it is
 *            not busy
 *
 * Kernels come at any time, also several at once. One that is refused may be held up between its
 * two accesses for as long as a reset takes: its mark is its own until the next epoch begins.
 *
 * Checked: one at a time has the half, with the mark and the epoch there until it gives it back;
 * nobody has it while its memory is zeroed; who finds it busy and not failed meets somebody who has
 * it, or has left it, and not one who was refused; nobody waits for ever.
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
bool left; /* the mark, by a kernel that ended with the half */
byte over; /* kernels that have had their turns */
bool at_it[KERNELS];
byte turn[KERNELS]; /* how many each has had */

#ifdef MUTANT_GIVEN_BACK_BY_A_STORE
#define KEEP_FAILED(seen) failed = (seen)
#else
#define KEEP_FAILED(seen) skip
#endif

#ifdef MUTANT_MARK_NOT_TAKEN_BACK
#define TAKE_BACK skip
#else
#ifdef MUTANT_TAKES_BACK_WHAT_IS_ANOTHERS
#define TAKE_BACK busy = false
#else
#define TAKE_BACK atomic { if :: epoch == mine -> busy = false :: else fi }
#endif
#endif

/* A kernel is a new one in each of its turns. */
proctype kernel(byte me) {
  byte n, mine;
  bool was_busy, was_failed, seen;
  for (n : 1 .. TURNS) {
    atomic {
      was_busy = busy;
      was_failed = failed;
      mine = epoch;
      assert(!was_busy || was_failed || holders > 0 || left);
      at_it[me] = true;
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
       if
       :: !left -> /* one is enough */
          atomic { assert(busy && epoch == mine); holders--; left = true }
       :: seen = failed;
          atomic {
            assert(busy && epoch == mine);
            KEEP_FAILED(seen);
            holders--;
            busy = false
          }
       fi
    fi;
    atomic {
      at_it[me] = false;
      turn[me]++;
      was_busy = false; was_failed = false; mine = 0; seen = false
    }
  }
  over++
}

#ifdef MUTANT_KEEPS_THE_MARK
#define DROP skip
#else
#define DROP busy = false; left = false
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

/* Over is who has had a turn more since the host looked, or was at none. */
#ifdef MUTANT_DROPS_WITHOUT_WAITING
#define IS_OVER(k) true
#else
#define IS_OVER(k) (!was_at_it[k] || turn[k] != had[k])
#endif

active proctype host() {
  byte reset;
  bool was_at_it[KERNELS];
  byte had[KERNELS];
  for (reset : 1 .. RESETS) {
    STOP;
    if
    :: !busy
    :: busy ->
       atomic {
         was_at_it[0] = at_it[0]; was_at_it[1] = at_it[1]; was_at_it[2] = at_it[2];
         had[0] = turn[0]; had[1] = turn[1]; had[2] = turn[2]
       }
       atomic {
         IS_OVER(0) && IS_OVER(1) && IS_OVER(2);
         was_at_it[0] = false; was_at_it[1] = false; was_at_it[2] = false;
         had[0] = 0; had[1] = 0; had[2] = 0
       }
    fi;
    assert(!holders); /* the memory is zeroed from here on */
    atomic { assert(!holders); epoch = reset; failed = true; DROP }
    atomic { MAY_OPEN -> failed = false }
  }
  over == KERNELS;
  assert(busy == left && !holders)
}

init {
  atomic { run kernel(0); run kernel(1); run kernel(2) }
}
