/* SPDX-License-Identifier: Apache-2.0
 *
 * How a kernel gives up the ticket that it has handed in, where the host does not come in time
 * (src/kernels/proxy.h), and how the host finds out (ProxyMemory::take()).
 *
 *   kernel  takes the place that is free again; hands in its ticket; waits for the answer. When its
 *           patience is over: says GIVEN UP, fences, looks whether the host has TAKEN it. Not taken:
 *           it goes on. Taken: it waits once more, and goes on in doubt when that is over, too
 *   host    finds the ticket: says TAKEN, fences, looks whether it is GIVEN UP: then it answers at
 *           once; else it carries it out and answers
 *
 * One place of one queue, whose kernels follow each other. What a side stores it sees at once, and the
 * other side some time later, unless a fence waits for that. A patience is over whenever it likes.
 *
 * Checked: no ticket is carried out that its kernel gave up untaken; a place is not filled again
 * while the host is at it; each ticket that was given up is found to be so; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that this needs, and must be found wrong.
 */
#define TICKETS 3
#define NOTHING 255

/* What both see. A later one is on its way. Of each word the last ticket that it was said of. */
byte handed_in;
byte handed_in_later = NOTHING;
byte given_up;
byte given_up_later = NOTHING;
byte taken;
byte taken_later = NOTHING;
byte answered;

byte at;                      /* ticket that the host carries out; 0: none */
bool carried_out[TICKETS + 1];
bool refused[TICKETS + 1];
bool gone[TICKETS + 1];       /* its kernel went on, the ticket untaken */
byte over;                    /* sides that are through */

/* A store becomes visible whenever it likes. */
active proctype buses() {
end:
  do
  :: atomic { handed_in_later != NOTHING -> handed_in = handed_in_later; handed_in_later = NOTHING }
  :: atomic { given_up_later != NOTHING -> given_up = given_up_later; given_up_later = NOTHING }
  :: atomic { taken_later != NOTHING -> taken = taken_later; taken_later = NOTHING }
  :: over == 2 && handed_in_later == NOTHING && given_up_later == NOTHING &&
     taken_later == NOTHING -> break
  od
}

#ifdef MUTANT_KERNEL_WITHOUT_FENCE
#define KERNEL_FENCE skip
#else
#define KERNEL_FENCE given_up_later == NOTHING
#endif
#ifdef MUTANT_HOST_WITHOUT_FENCE
#define HOST_FENCE skip
#else
#define HOST_FENCE taken_later == NOTHING
#endif
#ifdef MUTANT_KERNEL_DOES_NOT_LOOK
#define IS_TAKEN(n) false
#else
#define IS_TAKEN(n) (taken == (n))
#endif
#ifdef MUTANT_HOST_DOES_NOT_LOOK
#define IS_GIVEN_UP(n) false
#else
#define IS_GIVEN_UP(n) (given_up == (n))
#endif

active proctype kernels() {
  byte n;
  bool waits_again;
  for (n : 1 .. TICKETS) {
#ifndef MUTANT_PLACE_BEFORE_ITS_ANSWER
    answered >= n - 1;
#endif
    waits_again = false;
    atomic { handed_in_later == NOTHING -> assert(at == 0); handed_in_later = n };
    do
    :: answered >= n -> break
    :: !waits_again ->
       atomic { given_up_later == NOTHING -> given_up_later = n };
       KERNEL_FENCE;
       atomic {
         if
         :: IS_TAKEN(n) -> waits_again = true
         :: else ->
            assert(at != n && !carried_out[n]);
            gone[n] = true;
            break
         fi
       }
    :: waits_again -> break
    od
  };
  over++
}

active proctype host() {
  byte n;
  for (n : 1 .. TICKETS) {
    handed_in >= n;
    atomic { taken_later == NOTHING -> taken_later = n };
    HOST_FENCE;
    atomic {
      if
      :: IS_GIVEN_UP(n) -> refused[n] = true
      :: else -> assert(!gone[n]); at = n
      fi
    };
    atomic {
      if
      :: at == n -> assert(!gone[n]); carried_out[n] = true; at = 0
      :: else
      fi;
      answered = n
    }
  };
  over++;
  over == 2;
  for (n : 1 .. TICKETS) {
    assert(!gone[n] || refused[n]);
    assert(refused[n] != carried_out[n])
  }
}
