/* SPDX-License-Identifier: Apache-2.0
 *
 * Small messages between kernels: the ring of lines of include/onehop/detail/line.h, and the credit
 * of lane.h.
 *
 *   sender    waits for room (a cached `through`, then the credit); stores the lines of a message
 *   receiver  reads the head, which says how many lines there are, and the rest; then is through
 *
 * Many threads share a message and none waits for its stores: so a line that is stored becomes
 * visible some time later, in any order, also among messages; and the lines behind the head are
 * read in any order, each in one access (a poll that fails does nothing, so only those that succeed
 * are here). Credit lies behind the reads. A receive gives it before it waits or when it ends, and
 * may keep it back for SPARE lines at most: so many are free beside the longest message. Laps wrap
 * after two, the fewest that tell a lap from the one before, and flags are never 0.
 *
 * Checked: messages come whole, in order, with their lengths; no line is overwritten before it was
 * read; nobody waits for ever, also not the largest message while credit is kept back.
 *
 * Each MUTANT_ takes away one thing that the protocol needs, and must be found wrong.
 */
#define LINES 8
#define STEP (LINES / 4)
#define LARGEST (LINES - STEP)
#define MESSAGES 9

/* Several sizes; a line is kept back before the first of the largest; almost four laps. */
#define SIZE(n) ((n) % 3 == 1 -> LARGEST : 1 + (n) / 3)

#ifdef MUTANT_FLAG_WITHOUT_LAP
#define FLAG(position) 1
#else
#define FLAG(position) (1 + ((position) / LINES) % 2)
#endif

#ifdef MUTANT_CREDIT_KEPT_TOO_LONG
#define SPARE (LINES - LARGEST + 1)
#else
#define SPARE (LINES - LARGEST)
#endif

/* Its position + 1 stands for its bytes. */
typedef Line {
  byte flag;
  byte bytes;
  byte length /* of the message; 0: it is not a head */
};

Line lines[LINES];
Line later[LINES]; /* stored, not yet visible; flag 0: nothing is */
bool unread[LINES];
byte credit;
bool over; /* the receiver has all */

/* What is yet to be done, as bits, in any order. */
#define HAS(set, i) (((set) >> (i)) & 1)
#define WITHOUT(set, i) ((set) & ~(1 << (i)))
#define ALL(count) ((1 << (count)) - 1)

active proctype sender() {
  byte n, i, position, through;
  for (n : 0 .. MESSAGES - 1) {
#ifndef MUTANT_NO_LOOK_FOR_ROOM
    do
    :: position + SIZE(n) - through <= LINES -> break
    :: atomic {
         position + SIZE(n) - through > LINES && credit > through ->
         assert(credit <= position);
         through = credit
       }
    od;
#endif
    atomic {
      for (i : 0 .. SIZE(n) - 1) {
        assert(!later[position % LINES].flag);
        later[position % LINES].flag = FLAG(position);
        later[position % LINES].bytes = position + 1;
        later[position % LINES].length = (i == 0 -> SIZE(n) : 0);
        position++
      }
      i = 0
    }
  }
}

#ifdef MUTANT_FLAG_BEFORE_DATA
#define DATA_WITH_FLAG(i) skip
#define DATA_BEHIND_FLAG(i)                                             \
  :: atomic {                                                          \
    later[i].flag && lines[i].flag == later[i].flag && unread[i] ->    \
    lines[i].bytes = later[i].bytes;                                   \
    lines[i].length = later[i].length;                                 \
    later[i].flag = 0                                                  \
  }
#define FLAG_DUE(i) (later[i].flag && lines[i].flag != later[i].flag)
#define STORED(i) skip
#else
#define DATA_WITH_FLAG(i) lines[i].bytes = later[i].bytes; lines[i].length = later[i].length
#define DATA_BEHIND_FLAG(i)
#define FLAG_DUE(i) later[i].flag
#define STORED(i) later[i].flag = 0
#endif

#define SHOW(i)                     \
  :: atomic {                       \
    FLAG_DUE(i) ->                  \
    assert(!unread[i]);             \
    lines[i].flag = later[i].flag;  \
    DATA_WITH_FLAG(i);              \
    unread[i] = true;               \
    STORED(i)                       \
  }                                 \
  DATA_BEHIND_FLAG(i)

active proctype link() {
  do
  SHOW(0)
  SHOW(1)
  SHOW(2)
  SHOW(3)
  SHOW(4)
  SHOW(5)
  SHOW(6)
  SHOW(7)
  :: over -> break
  od
}

#define LINE(i) lines[(position + (i)) % LINES]
#define READ(i)                                        \
  :: atomic {                                          \
    HAS(left, i) && LINE(i).flag == FLAG(position + i) -> \
    assert(LINE(i).bytes == position + (i) + 1);       \
    assert(LINE(i).length == ((i) == 0 -> SIZE(n) : 0)); \
    unread[(position + (i)) % LINES] = false;          \
    left = WITHOUT(left, i)                            \
  }

active proctype receiver() {
  byte n, left, length, position, said;
  for (n : 0 .. MESSAGES - 1) {
    if
    :: position > said -> said = position; credit = position
    :: true -> skip
    fi;
    left = 1;
    atomic {
      if
      READ(0)
      fi;
      length = LINE(0).length;
      left = WITHOUT(ALL(length), 0)
    }
#ifdef MUTANT_CREDIT_BEFORE_READS
    credit = position + length;
#endif
    do
    READ(1)
    READ(2)
    READ(3)
    READ(4)
    READ(5)
    :: !left -> break
    od;
    position = position + length;
    if
    :: position > said -> said = position; credit = position
    :: position - said <= SPARE -> skip
    fi
  }
  over = true
}
