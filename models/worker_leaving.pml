/* SPDX-License-Identifier: Apache-2.0
 *
 * How the worker leaves (src/kernels/worker.h) and how the host finds out (Worker::give).
 *
 *   host    looks at the state; HERE: writes a command, fences, looks again; HERE still: it is given.
 *           Else it waits until the worker is GONE or through with it; not through: it takes the
 *           command back, and the copy engine copies. Calls the worker when it is away.
 *   worker  reads `through`, says HERE; takes commands; some time says LEAVING, fences, takes what
 *           is there, says GONE
 *
 * Launches follow each other in one stream. What a side stores it sees at once, and the other side
 * some time later, unless a fence waits for that. The ring has one slot; a command in it is done
 * before the next is written.
 *
 * Checked: each copy is done once, by the worker or by the engine; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that the handshake needs, and must be found wrong.
 */
#define COPIES 4
#define LAUNCHES 2

#define HERE 1
#define LEAVING 2
#define GONE 3

/* What both see. A later one is on its way: 255, nothing is. */
byte slot;       /* position of the command that is there, from 1; 0: none */
byte copy;       /* which copy it is about */
byte slot_later = 255;
byte copy_later;
byte state;      /* launch * 4 + phase */
byte state_later = 255;
byte through;    /* position of the last command that is done */
byte ended;      /* launches whose kernel has ended */
byte copied[COPIES + 1];
bool over; /* the host has all it wanted */

#define STATE(phase) (launch * 4 + (phase))

/* A store becomes visible whenever it likes. */
proctype buses() {
end:
  do
  :: atomic { slot_later != 255 -> slot = slot_later; copy = copy_later; slot_later = 255 }
  :: atomic { state_later != 255 -> state = state_later; state_later = 255 }
  :: over && slot_later == 255 && state_later == 255 -> break
  od
}

#define SAY(phase) atomic { state_later == 255 -> state_later = STATE(phase) }

proctype worker(byte launch) {
  byte position;
  bool leaving;
  atomic { ended == launch - 1 -> position = through + 1 }
  SAY(HERE);
  do
  :: atomic {
       slot == position ->
       copied[copy]++;
       through = position;
       position++
     }
  :: atomic { !leaving -> leaving = true };
     SAY(LEAVING);
#ifndef MUTANT_WORKER_WITHOUT_FENCE
     state_later == 255;
#endif
#ifdef MUTANT_NO_LAST_LOOK
     break
#endif
  :: atomic { leaving && slot != position -> break }
  od;
  SAY(GONE);
  atomic { state_later == 255 -> ended = launch }
}

/* Whether the command at `position` is the worker's. */
#define GIVE                                                          \
  atomic { slot_later == 255 -> slot_later = position; copy_later = n }; \
  FENCE;                                                              \
  if                                                                  \
  :: state == STATE(HERE) -> given = true                             \
  :: else ->                                                          \
     WAIT;                                                            \
     if                                                               \
     :: through >= position -> given = true                           \
     :: else -> WITHDRAW                                              \
     fi                                                               \
  fi

#ifdef MUTANT_HOST_WITHOUT_FENCE
#define FENCE skip
#else
#define FENCE slot_later == 255
#endif
#ifdef MUTANT_DOES_NOT_WAIT
#define WAIT skip
#else
#define WAIT (state == STATE(GONE) || through >= position)
#endif
#ifdef MUTANT_NOT_WITHDRAWN
#define WITHDRAW skip
#else
#define WITHDRAW slot = 0
#endif

proctype host() {
  byte n = 1;
  byte position = 1;
  byte launch;
  bool given;
  do
  :: n > COPIES -> break
  :: else ->
     given = false;
     if
     :: launch > 0 && state == STATE(HERE) -> GIVE
     :: true
     fi;
     if
     :: given ->
        through >= position; /* waits for it: nobody else may look after it */
        position++
     :: else -> copied[n]++
     fi;
     if
     :: launch < LAUNCHES && (launch == 0 || state == STATE(GONE)) ->
        launch++;
        run worker(launch)
     :: true
     fi;
     n++
  od;
  n = 1;
  do
  :: n > COPIES -> break
  :: else -> assert(copied[n] == 1); n++
  od;
  ended == launch; /* each leaves by itself */
  over = true
}

init {
  atomic { run buses(); run host() }
}
