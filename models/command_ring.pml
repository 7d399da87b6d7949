/* SPDX-License-Identifier: Apache-2.0
 *
 * The command ring and the done words of include/onehop/detail/command.h.
 *
 *   producer  fills a source buffer, writes a command into a free slot, goes on to the next
 *   consumer  reads the lanes of its slot until all flags agree, copies, fence, done word, through
 *   peer      waits for the done word of each command, looks at the bytes
 *
 * What the accesses may do, the model does: lanes are written in any order, of each the payload
 * before the flag (release); lanes are read in any order, each in one access (a poll that fails does
 * nothing, so only those that succeed are here); the halves of a copy become visible in any order;
 * so do the done word and through, which are both behind the fence. Laps wrap after two, the fewest
 * that tell a lap from the one before, and flags are never 0.
 *
 * Checked: a command that is taken is whole, and is the one that is due; the bytes are there when
 * their done word is; a source buffer is not filled again under a copy; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that the protocol needs, and must be found wrong.
 */
#define SLOTS 2
#define COMMANDS 5 /* so that the first slot's laps have wrapped */
#define LANES 4

#ifdef MUTANT_FLAG_WITHOUT_LAP
#define FLAG(n) 1
#else
#define FLAG(n) (1 + ((n) / SLOTS) % 2)
#endif

#ifdef MUTANT_SLOT_OVERWRITTEN
#define SOURCE(n) (n) /* one each, so that it is the slot that is spoilt */
#else
#define SOURCE(n) ((n) % SLOTS)
#endif

typedef Slot {
  byte payload[LANES];
  byte flag[LANES]
};

/* A command's number + 1 stands for its bytes. */
typedef Buffer {
  byte half[2]
};

Slot slots[SLOTS];
byte through;
Buffer source[COMMANDS];
Buffer target[COMMANDS];
bool done[COMMANDS];

/* What is yet to be done, as bits, in any order. */
#define HAS(set, i) (((set) >> (i)) & 1)
#define WITHOUT(set, i) ((set) & ~(1 << (i)))
#define ALL(count) ((1 << (count)) - 1)

#ifdef MUTANT_FLAG_BEFORE_PAYLOAD
#define PAYLOAD_DUE(i) (HAS(payloads, i) && !HAS(flags, i))
#define FLAG_DUE(i) HAS(flags, i)
#else
#define PAYLOAD_DUE(i) HAS(payloads, i)
#define FLAG_DUE(i) (HAS(flags, i) && !HAS(payloads, i))
#endif

#define WRITE(i)                              \
  :: atomic {                                 \
    PAYLOAD_DUE(i) ->                         \
    slots[n % SLOTS].payload[i] = n + 1;      \
    payloads = WITHOUT(payloads, i)           \
  }                                           \
  :: atomic {                                 \
    FLAG_DUE(i) ->                            \
    slots[n % SLOTS].flag[i] = FLAG(n);       \
    flags = WITHOUT(flags, i)                 \
  }

active proctype producer() {
  byte n, payloads, flags;
  for (n : 0 .. COMMANDS - 1) {
#ifndef MUTANT_SLOT_OVERWRITTEN
    (n - through < SLOTS);
#endif
    source[SOURCE(n)].half[0] = n + 1;
    source[SOURCE(n)].half[1] = n + 1;
    payloads = ALL(LANES);
    flags = ALL(LANES);
    do
    WRITE(0)
    WRITE(1)
    WRITE(2)
    WRITE(3)
    :: !payloads && !flags -> break
    od
  }
}

#ifdef MUTANT_LANE_UNCHECKED
#define FLAG_IS_RIGHT(i) ((i) == LANES - 1 || slots[n % SLOTS].flag[i] == FLAG(n))
#else
#define FLAG_IS_RIGHT(i) (slots[n % SLOTS].flag[i] == FLAG(n))
#endif

#define READ(i)                                       \
  :: atomic {                                         \
    HAS(left, i) && FLAG_IS_RIGHT(i) ->               \
    assert(slots[n % SLOTS].payload[i] == n + 1);     \
    left = WITHOUT(left, i)                           \
  }
#define COPY(i)                                       \
  :: atomic {                                         \
    HAS(left, i) ->                                   \
    target[n].half[i] = source[SOURCE(n)].half[i];    \
    left = WITHOUT(left, i)                           \
  }

active proctype consumer() {
  byte n, left;
  for (n : 0 .. COMMANDS - 1) {
    left = ALL(LANES);
    do
    READ(0)
    READ(1)
    READ(2)
    READ(3)
    :: !left -> break
    od;
#ifdef MUTANT_DONE_BEFORE_COPY
    done[n] = true;
#endif
#ifdef MUTANT_THROUGH_BEFORE_COPY
    through = n + 1;
#endif
    left = ALL(2);
    do
    COPY(0)
    COPY(1)
    :: !left -> break
    od;
    /* The fence is here. */
    if
    :: done[n] = true; through = n + 1
    :: through = n + 1; done[n] = true
    fi
  }
}

active proctype peer() {
  byte n;
  for (n : 0 .. COMMANDS - 1) {
    done[n];
    assert(target[n].half[0] == n + 1);
    assert(target[n].half[1] == n + 1)
  }
}
