/* SPDX-License-Identifier: Apache-2.0
 *
 * How memory of the peer is unmapped that kernels may put into: the import table
 * (onehop/detail/posting.h), ImportTable::remove() and ImportTable::settle().
 *
 *   sender  takes its half (an atomic operation, an acquire); looks into the table; if the region is
 *           there, puts and fences; gives the half back (an atomic operation)
 *   host    overwrites the entry; looks at the half until it has seen it free, or further than at
 *           the first look; then unmaps the region
 *
 * The look is an atomic operation, a release and an acquire, behind the overwritten entry in the
 * order of a stream. The sender, of another stream, sees the entry overwritten some time later: at
 * the latest when it takes its half behind a look. What it puts arrives some time later, unless a
 * fence waits for that.
 *
 * Checked: no byte arrives in a region that is unmapped; the host is not kept waiting by a sender
 * that goes on.
 *
 * Each MUTANT_ takes away one thing that the order needs, and must be found wrong.
 */
#define MESSAGES 3

bool busy;       /* of the state: somebody has the half */
byte lines;      /* and how far it is */
bool released;   /* a look behind the overwritten entry is among the operations on the state */
bool forgotten;  /* the entry is overwritten */
bool on_its_way; /* bytes of a put */
bool unmapped;
bool over; /* the sender has sent all */

/* A put arrives whenever it likes. */
proctype bus() {
end:
  do
  :: atomic { on_its_way -> assert(!unmapped); on_its_way = false }
  :: over && !on_its_way -> break
  od
}

proctype sender() {
  byte message;
  bool knows; /* that the entry is overwritten, whatever it loads */
  bool found;
  do
  :: message == MESSAGES -> break
  :: else ->
     found = false;
#ifdef MUTANT_LOOKS_BEFORE_IT_TAKES
     found = !forgotten;
#endif
     atomic {
       assert(!busy);
       busy = true;
#ifndef MUTANT_NO_ACQUIRE
       knows = knows || released
#endif
     };
#ifndef MUTANT_LOOKS_BEFORE_IT_TAKES
     if
     :: !knows -> found = true /* the entry as it was */
     :: forgotten -> found = false
     fi;
#endif
     if
     :: found ->
        atomic { !on_its_way -> on_its_way = true };
#ifndef MUTANT_NO_FENCE
        !on_its_way
#endif
     :: else
     fi;
     atomic { busy = false; lines++ };
     message++
  od;
  over = true
}

#ifdef MUTANT_RELAXED_LOOK
#define LOOK skip
#else
#define LOOK released = true
#endif

proctype host() {
  byte first;
  forgotten = true;
#ifndef MUTANT_NO_LOOK
  atomic { LOOK; if :: busy -> first = lines :: else -> first = 255 fi };
#ifndef MUTANT_ONE_LOOK
  if
  :: first == 255
  :: else -> atomic { !busy || lines != first -> LOOK }
  fi;
#endif
#endif
  unmapped = true
}

init {
  atomic { run bus(); run sender(); run host() }
}
