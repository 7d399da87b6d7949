/* SPDX-License-Identifier: Apache-2.0
 *
 * How both sides of a lane are reset in step: src/lane/lane_resets.cc.
 *
 *   host      STOPPING: says abort, marks its half failed; waits until no kernel is busy with it.
 *             BEGINNING: zeroes its memory, sets the next epoch; then it is READY, and tells the other
 *             for which epoch; OPENING, when the other is READY for that one, too: takes failed back
 *   sender    takes its half (busy), ends with an error if it has failed; waits for room; stores a
 *             line, or a chunk and the line behind it; gives the half back
 *   receiver  takes its half likewise; waits for the line; reads; gives credit; gives the half back
 *
 * Both hosts begin each reset when they like; so one may be READY for the epoch after the one that
 * the other opens. The abort word goes with failed here: in between no kernel waits, for none has the
 * half. What a refused kernel does to the state meanwhile is for lane_state.pml.
 * The ring has one line and one chunk. Epochs wrap after three; generations, which do not wrap, are for
 * the checks.
 *
 * What a kernel stores becomes visible some time later, in any order but a line behind its chunk;
 * also when it has given the half back, unless it stored a chunk: that has no flag, so there is a
 * fence. A line or a credit that comes when its epoch is over reads as nothing. It may hide what is
 * there by then; that wait ends at its deadline: here, with the next reset. Nothing is late by all
 * epochs: what is under way when the last reset begins comes before it ends.
 *
 * Nobody waits before zeroing until the other side has drained, too: what that still stores is of
 * the old epoch, and it is READY only behind it.
 *
 * Checked: lines and chunks that are read are of the reader's generation; no line is overwritten
 * before it was read; behind the last reset all messages come; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that the protocol needs, and must be found wrong.
 */
#define RESETS 3
#define EPOCHS 3
#define MESSAGES 2 /* in an epoch, at most */
#define LATE 2     /* stores under way */

#define SENDER 0
#define RECEIVER 1

/* An epoch and a count, from 1; all 0: nothing. */
#define EPOCH(generation) (1 + (generation) % EPOCHS)
#define WORD(epoch, count) (4 * (epoch) + (count))
#define EPOCH_OF(word) ((word) / 4)
#define COUNT_OF(word) ((word) % 4)
#ifdef MUTANT_LINE_WITHOUT_EPOCH
#define IS_LINE(word, epoch, count) (COUNT_OF(word) == (count))
#else
#define IS_LINE(word, epoch, count) ((word) == WORD(epoch, count))
#endif
#ifdef MUTANT_CREDIT_WITHOUT_EPOCH
#define CREDIT_OF(word, epoch) COUNT_OF(word)
#else
#define CREDIT_OF(word, epoch) (EPOCH_OF(word) == (epoch) -> COUNT_OF(word) : 0)
#endif
#ifdef MUTANT_THROUGH_WITHOUT_EPOCH
#define THROUGH_OF(word, epoch) COUNT_OF(word)
#else
#define THROUGH_OF(word, epoch) (EPOCH_OF(word) == (epoch) -> COUNT_OF(word) : 0)
#endif

/* Of each side, in its own memory. */
bool failed[2];
bool busy[2];
byte cursor[2];
byte generation[2]; /* the epoch, in the state */
bool abort[2];
byte through; /* of the sender: a word */
/* In the sender's memory, by the receiver. */
byte credit;
/* In the receiver's memory, by the sender. */
byte line;        /* a word; its lap is the count */
bool line_staged;
byte line_from;   /* generation of the sender */
byte chunk;       /* generation + 1 of the sender */
bool unread;

byte ready[2]; /* told over the hosts' connection: for which epoch, as its reset */

/* Stored, not yet visible; word 0: nothing is. */
typedef Stored {
  byte word;
  bool staged; /* it is behind a chunk */
  bool chunk;  /* which is not visible yet */
  byte from
};
Stored lines_later[LATE];
byte credit_later[LATE];
bool over[2];
bool looked; /* the sender's kernel has read `through`, and not yet taken its half */

/* Of those under way the first are taken. */
#define SHOW(i)                                                     \
  :: atomic {                                                       \
    lines_later[i].word && lines_later[i].chunk ->                  \
    chunk = lines_later[i].from + 1;                                \
    lines_later[i].chunk = false                                    \
  }                                                                 \
  :: atomic {                                                       \
    lines_later[i].word && !lines_later[i].chunk ->                 \
    assert(!unread || EPOCH_OF(lines_later[i].word) !=              \
           EPOCH(generation[RECEIVER]));                            \
    line = lines_later[i].word;                                     \
    line_staged = lines_later[i].staged;                            \
    line_from = lines_later[i].from;                                \
    unread = EPOCH_OF(line) == EPOCH(generation[RECEIVER]);         \
    MOVE(i, LATE - 1);                                              \
    lines_later[LATE - 1].word = 0;                                 \
    lines_later[LATE - 1].staged = false;                           \
    lines_later[LATE - 1].chunk = false;                            \
    lines_later[LATE - 1].from = 0                                  \
  }                                                                 \
  :: atomic {                                                       \
    credit_later[i] ->                                              \
    credit = credit_later[i];                                       \
    credit_later[i] = credit_later[LATE - 1];                       \
    credit_later[LATE - 1] = 0                                      \
  }
#define MOVE(i, j)                                                  \
  lines_later[i].word = lines_later[j].word;                        \
  lines_later[i].staged = lines_later[j].staged;                    \
  lines_later[i].chunk = lines_later[j].chunk;                      \
  lines_later[i].from = lines_later[j].from

#define NO_LINE_LATE (!lines_later[0].word && !lines_later[1].word)
#define NO_CREDIT_LATE (!credit_later[0] && !credit_later[1])
#define NOTHING_LATE (NO_LINE_LATE && NO_CREDIT_LATE && !looked)

active proctype links() {
  do
  SHOW(0)
  SHOW(1)
  :: over[0] && over[1] && NOTHING_LATE -> break
  od
}

#ifdef MUTANT_BUSY_NOT_WAITED_FOR
#define NOT_BUSY true
#else
#define NOT_BUSY !busy[side]
#endif
#ifdef MUTANT_READY_NOT_WAITED_FOR
#define ALL_READY true
#else
#define ALL_READY ready[1 - side] >= reset
#endif
#ifdef MUTANT_LINES_NOT_ZEROED
#define ZERO_LINES skip
#else
#define ZERO_LINES line = 0; line_staged = false; line_from = 0
#endif

proctype host(byte side) {
  byte reset;
  for (reset : 1 .. RESETS) {
    atomic { abort[side] = true; failed[side] = true }
    atomic {
      NOT_BUSY && (reset < RESETS || NOTHING_LATE) ->
      if
      :: side == SENDER -> credit = 0; through = 0
      :: side == RECEIVER -> ZERO_LINES; unread = false
      fi;
      cursor[side] = 0;
      generation[side] = reset;
      ready[side] = reset
    }
    atomic { ALL_READY -> abort[side] = false; failed[side] = false }
  }
}

/* Kernels follow each other in a stream. */
#define DONE(side) (generation[side] == RESETS && !failed[side] && cursor[side] == MESSAGES)
#define LAUNCHED(side) (cursor[side] < MESSAGES || failed[side])

#define TAKE(side)                 \
  busy[side] = true;               \
  refused = failed[side];          \
  mine = generation[side];         \
  position = cursor[side]
#define GIVE(side)                               \
  if                                             \
  :: broken -> failed[side] = true               \
  :: else -> cursor[side] = position             \
  fi;                                            \
  busy[side] = false;                            \
  broken = false;                                \
  mine = 0;                                      \
  position = 0

#ifdef MUTANT_FAILED_NOT_LOOKED_AT
#define REFUSED false
#else
#define REFUSED refused
#endif
#ifdef MUTANT_NO_FENCE_BEHIND_CHUNKS
#define FENCE true
#else
#define FENCE (!staged || NO_LINE_LATE)
#endif

#define STORE_LINE(i)                                      \
  lines_later[i].word = WORD(EPOCH(mine), position + 1);   \
  lines_later[i].staged = staged;                          \
  lines_later[i].chunk = staged;                           \
  lines_later[i].from = mine

/* As lane.h has it: position + 1 - seen, without a sign, is at most a line. */
#define ROOM (seen == position || seen == position + 1)
#define HAS_CREDIT                              \
  (CREDIT_OF(credit, EPOCH(mine)) > seen &&     \
   CREDIT_OF(credit, EPOCH(mine)) <= position + 1)

active proctype sender() {
  byte mine, position, seen;
  bool refused, broken, staged;
  do
  :: DONE(SENDER) -> break
  :: atomic { LAUNCHED(SENDER) -> seen = through; looked = true }
     atomic { TAKE(SENDER); seen = THROUGH_OF(seen, EPOCH(mine)); looked = false }
     if
     :: atomic { REFUSED -> busy[SENDER] = false; refused = false }
        !failed[SENDER]
     :: else ->
        atomic {
          if
          :: ROOM
          :: !ROOM && HAS_CREDIT -> seen = CREDIT_OF(credit, EPOCH(mine)); assert(ROOM)
          :: !ROOM && abort[SENDER] -> broken = true
          fi
        }
        if
        :: broken
        :: atomic {
             !broken && !lines_later[LATE - 1].word ->
             if
             :: staged = true
             :: staged = false
             fi;
             if
             :: !lines_later[0].word -> STORE_LINE(0)
             :: else -> STORE_LINE(1)
             fi;
             position++
           }
           if
           :: abort[SENDER] -> broken = true /* among its lines */
           :: true
           fi
        fi;
        atomic {
          FENCE ->
          if
          :: !broken -> through = WORD(EPOCH(mine), seen)
          :: else
          fi;
          GIVE(SENDER);
          staged = false
        }
     fi;
     seen = 0
  od;
  over[SENDER] = true
}

active proctype receiver() {
  byte mine, position;
  bool refused, broken, staged;
  do
  :: DONE(RECEIVER) -> break
  :: atomic { LAUNCHED(RECEIVER) -> TAKE(RECEIVER) }
     if
     :: atomic { REFUSED -> busy[RECEIVER] = false; refused = false }
        !failed[RECEIVER]
     :: else ->
        if
        :: atomic {
             IS_LINE(line, EPOCH(mine), position + 1) ->
             assert(line_from == mine);
             staged = line_staged;
             unread = staged
           }
           if
           :: atomic { staged -> assert(chunk == mine + 1); unread = false; staged = false }
           :: else
           fi;
           atomic {
             !credit_later[LATE - 1] ->
             position++;
             if
             :: !credit_later[0] -> credit_later[0] = WORD(EPOCH(mine), position)
             :: else -> credit_later[1] = WORD(EPOCH(mine), position)
             fi
           }
        :: abort[RECEIVER] -> broken = true
        fi;
        atomic { GIVE(RECEIVER) }
     fi
  od;
  over[RECEIVER] = true
}

init {
  atomic { run host(SENDER); run host(RECEIVER) }
}
