/* SPDX-License-Identifier: Apache-2.0
 *
 * Large messages between kernels: include/onehop/detail/message.h.
 *
 *   sender    says how long it is (the head); waits until the receive of this position is posted;
 *             puts the bytes, or refuses, and says so in the line behind; or says STAGED there, and
 *             brings chunk after chunk, each behind its word
 *   receiver  posts before the head is there, or behind it; waits for the second line; drains the
 *             chunks, and says which are emptied
 *
 * The sender consists of two teams of threads. The first looks for the posting, and for the memory
 * in the table of what is mapped; it says the route (where to put, staged, refused) to the other in
 * two words of the half, the second one a release. Each brings its part; PUT and REFUSED are said by
 * the last to leave, STAGED by the first team. One that has no chunk to bring may come so late that
 * the receiver is through, and its next receive posted; and the table changes at any time, so that
 * what one look finds another may miss.
 *
 * Each message may be small or large, of one chunk or more; each receive posted early or not, too
 * short or not; its memory in the table or not. What a side stores becomes visible some time later,
 * in any order: lines, the two of a posting, the halves of what is put, chunks, words; but the word
 * of a chunk behind the chunk (a release), and the line that says PUT behind fences that wait for
 * the bytes. A chunk is read before it is said to be emptied. Room in the ring is for
 * small_ring.pml: here each position has a line of its own.
 *
 * Checked: what is received is what was sent, there where the receive wanted it, and nothing where
 * there is no room; both sides know how it ended; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that the protocol needs, and must be found wrong.
 */
#define MESSAGES 3
#define POSITIONS (2 * MESSAGES)
#define TEAMS 2
#define CHUNKS 3 /* at most: more than there are places, and teams */
#define SLOTS 2

/* What a line says. An announcement has the length: so many chunks. */
#define PUT 1
#define STAGED 2
#define REFUSED 3
#define SMALL 4
#define LARGE(chunks) (SMALL + (chunks))
#define COUNT(kind) ((kind) - SMALL)
/* A route is STAGED, REFUSED, or a receive's target. */
#define INTO(receive) (REFUSED + (receive))
#define HALF(route, team) (2 * ((route) - REFUSED - 1) + (team))

/* What both sides see; *_later: stored, not yet visible. 0: nothing is there. */
byte line[POSITIONS];
byte line_later[POSITIONS];
byte chunk[SLOTS]; /* number + 1 of the chunk stands for its bytes */
byte chunk_later[SLOTS];
byte filled[SLOTS];
byte filled_later[SLOTS];
byte emptied[SLOTS];
byte emptied_later[SLOTS];
byte target[2 * MESSAGES]; /* of each receive both halves; number + 1 of the message is its bytes */
byte target_later[2 * MESSAGES];

typedef Posting { /* two lines */
  byte position; /* + 1 */
  byte place     /* of the first: its receive + 1, which says the target; of the second: is there room */
};
Posting posted[2];
Posting posted_later[2];
byte kind[MESSAGES]; /* as the line says it; known to both teams of the sender */
byte route;          /* in the sender's memory, by its first team: REFUSED, STAGED, or the target */
byte routed;         /* its message's position + 1 */
byte left;           /* teams that are through with the operation */
byte done;           /* operations of the sender */
bool over;

#define SHOW(of, i) \
  :: atomic { of##_later[i] -> of[i] = of##_later[i]; of##_later[i] = 0 }
#define SHOW_POSTED(i)                                \
  :: atomic {                                         \
    posted_later[i].position ->                       \
    posted[i].position = posted_later[i].position;    \
    posted[i].place = posted_later[i].place;          \
    posted_later[i].position = 0;                     \
    posted_later[i].place = 0                         \
  }
#ifdef MUTANT_WORD_BEFORE_CHUNK
#define SHOW_FILLED(i) SHOW(filled, i)
#else
#define SHOW_FILLED(i)                                \
  :: atomic {                                         \
    filled_later[i] && !chunk_later[i] ->             \
    filled[i] = filled_later[i];                      \
    filled_later[i] = 0                               \
  }
#endif

active proctype links() {
  do
  SHOW(line, 0)
  SHOW(line, 1)
  SHOW(line, 2)
  SHOW(line, 3)
  SHOW(line, 4)
  SHOW(line, 5)
  SHOW(target, 0)
  SHOW(target, 1)
  SHOW(target, 2)
  SHOW(target, 3)
  SHOW(target, 4)
  SHOW(target, 5)
  SHOW(chunk, 0)
  SHOW(chunk, 1)
  SHOW_FILLED(0)
  SHOW_FILLED(1)
  SHOW(emptied, 0)
  SHOW(emptied, 1)
  SHOW_POSTED(0)
  SHOW_POSTED(1)
  :: over -> break
  od
}

#ifdef MUTANT_POSITION_NOT_LOOKED_AT
#define IS_POSTED(i) posted[i].position
#else
#define IS_POSTED(i) (posted[i].position == position + 1)
#endif
#ifdef MUTANT_HALF_A_POSTING
#define ALL_POSTED IS_POSTED(0)
#else
#define ALL_POSTED (IS_POSTED(0) && IS_POSTED(1))
#endif
#ifdef MUTANT_CAPACITY_NOT_LOOKED_AT
#define HAS_ROOM true
#else
#define HAS_ROOM posted[1].place
#endif
#ifdef MUTANT_EACH_TEAM_LOOKS
#define ASKS true
#else
#define ASKS (team == 0)
#endif
#ifdef MUTANT_ROUTE_OF_ANY_MESSAGE
#define ROUTED routed
#else
#define ROUTED (routed == position + 1)
#endif
#ifdef MUTANT_NO_FENCE_BEHIND_PUT
#define FENCE skip
#else
#define FENCE (!target_later[to])
#endif

proctype sender(byte team) {
  byte n, i, position, to, how, next;
  for (n : 0 .. MESSAGES - 1) {
    if
    :: atomic {
         team == 0 && done == n -> /* the operation before */
         if
         :: kind[n] = SMALL
         :: kind[n] = LARGE(1)
         :: kind[n] = LARGE(CHUNKS)
         fi;
         line_later[position] = kind[n]
       }
    :: team > 0 && kind[n]
    fi;
    if
    :: kind[n] == SMALL -> position++
    :: else ->
       if
       :: atomic {
            ASKS && ALL_POSTED ->
            if
            :: !HAS_ROOM -> how = REFUSED
            :: HAS_ROOM -> how = INTO(posted[0].place)
            :: HAS_ROOM -> how = STAGED /* the table has it not */
            fi;
#ifndef MUTANT_ROUTED_BEFORE_ROUTE
            route = how;
#endif
            routed = position + 1
          }
#ifdef MUTANT_ROUTED_BEFORE_ROUTE
          route = how
#endif
       :: atomic { !ASKS && ROUTED -> how = route }
       fi;
       if
       :: atomic { how > REFUSED -> to = HALF(how, team); how = PUT; target_later[to] = n + 1 }
          FENCE
       :: how == STAGED ->
          if
          :: team == 0 -> line_later[position + 1] = STAGED
          :: else
          fi;
          i = team;
          do
          :: atomic {
               i < COUNT(kind[n]) && emptied[(next + i) % SLOTS] + SLOTS > next + i ->
               chunk_later[(next + i) % SLOTS] = next + i + 1;
               filled_later[(next + i) % SLOTS] = next + i + 1;
               i = i + TEAMS
             }
          :: i >= COUNT(kind[n]) -> break
          od;
          next = next + COUNT(kind[n])
       :: how == REFUSED
       fi;
       position = position + 2
    fi;
    /* The last says what all have done. */
    atomic {
      left++;
      if
      :: left == TEAMS && (how == PUT || how == REFUSED) -> line_later[position - 1] = how
      :: else
      fi;
      if
      :: left == TEAMS -> kind[n] = 0; left = 0; done++
      :: else
      fi;
      i = 0;
      to = 0;
      how = 0
    }
  }
}

#define POST                                          \
  atomic {                                            \
    posted_later[0].position = position + 1;          \
    posted_later[0].place = n + 1;                    \
    posted_later[1].position = position + 1;          \
    posted_later[1].place = room                      \
  }
#ifdef MUTANT_EMPTIED_BEFORE_DRAINED
#define DRAIN emptied_later[next % SLOTS] = next + 1; assert(chunk[next % SLOTS] == next + 1)
#else
#define DRAIN assert(chunk[next % SLOTS] == next + 1); emptied_later[next % SLOTS] = next + 1
#endif

active proctype receiver() {
  byte n, i, count, position, next;
  bool early, room;
  for (n : 0 .. MESSAGES - 1) {
    atomic {
      if :: early = true :: early = false fi;
      if :: room = true :: room = false fi;
      if
      :: early -> POST
      :: else
      fi
    }
    if
    :: atomic { line[position] == SMALL -> line[position] = 0; position++ }
    :: atomic {
         line[position] > SMALL ->
         count = COUNT(line[position]);
         line[position] = 0;
         if
         :: !early -> POST
         :: else
         fi
       }
       if
       :: line[position + 1] == PUT ->
          assert(room);
          assert(target[2 * n] == n + 1);
          assert(target[2 * n + 1] == n + 1);
          atomic { target[2 * n] = 0; target[2 * n + 1] = 0 }
       :: line[position + 1] == STAGED ->
          assert(room);
#ifndef MUTANT_NOT_DRAINED
          for (i : 1 .. count) {
            filled[next % SLOTS] > next;
            DRAIN;
            next++
          }
#endif
       :: line[position + 1] == REFUSED -> assert(!room)
       fi;
       atomic { line[position + 1] = 0; position = position + 2 }
    fi;
    atomic { count = 0; early = false; room = false }
  }
  /* What was put elsewhere is still there. */
  for (i : 0 .. 2 * MESSAGES - 1) {
    assert(!target[i] && !target_later[i])
  }
  over = true
}

init {
  atomic { run sender(0); run sender(1) }
}
