/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives from any source: src/message/any_source.h, receiver.cc, matcher.cc. All messages have one tag.
 *
 *   poster     posts two receives from any source, one after the other: puts each into the list,
 *              then offers what is unexpected at each peer
 *   user       posts a receive of peer 0, then one of peer 1
 *   arrivals   of each peer: matches a message with a receive, or keeps it
 *   canceller  instead of the user: takes the first receive back, unless a message was faster
 *   progress   offers again when a receive has come back
 *
 * Each peer has a lock. The list has its own, which is taken inside: what is atomic here. The messages
 * of peer 1 may be announced ones that are withdrawn: who has matched one gives the receive back.
 *
 * Checked: no message of a peer is overtaken by a later one; a message goes to the receive that was
 * posted first; no receive waits beside a message that it could have; a receive is taken back from
 * the list that it is in. A receive that came back may be late for what was matched meanwhile.
 *
 * Each MUTANT_ takes away one thing that the order needs, and must be found wrong.
 */
#define PEERS 2
#define MESSAGES 2 /* of peer 1; peer 0 has one */
#define RECEIVES 2
#define THREADS 4 /* those whose end is waited for */
#define NONE 255
#define KEPT 1
#define OVER 2 /* given to a receive, or withdrawn */

byte era;   /* rises when a receive comes into the list */
bool again; /* all peers are to be looked at again */
byte over;  /* threads */

/* Receives from any source. */
byte order[RECEIVES]; /* era of the post; 0: not yet */
byte since[RECEIVES]; /* era at which it came into the list, for the first time or again */
bool listed[RECEIVES];
byte owner[RECEIVES]; /* peer + 1 whose message it has */
byte got[RECEIVES];   /* message + 1 of that peer */
bool back[RECEIVES];  /* it came back once */

/* Peers. */
bool locked[PEERS];
byte message[PEERS * MESSAGES];
byte offered[PEERS]; /* era up to which receives were offered what is kept */
bool waits[PEERS];   /* a receive of this peer */
byte behind[PEERS];  /* which comes behind receives from any source of this era */

#define AT(p, m) message[(p) * MESSAGES + (m)]
#define FIRST(p) (AT(p, 0) == KEPT -> 0 : (AT(p, 1) == KEPT -> 1 : NONE))
#define LOCK(p) !locked[p] -> locked[p] = true
#define UNLOCK(p) locked[p] = false

#define NEW(r, p) (listed[r] && since[r] > offered[p])
#if defined(MUTANT_TAKES_WHAT_WAS_NOT_OFFERED) || defined(MUTANT_MATCH_WITHOUT_OFFER)
#define OFFERED(r, p) listed[r]
#else
#define OFFERED(r, p) (listed[r] && since[r] <= offered[p])
#endif
#define GOES_FIRST(r, p) (OFFERED(r, p) && (!waits[p] || order[r] <= behind[p]))
/* It has waited since before the receive of this peer was posted. */
#define WAS_FIRST(r, p) (listed[r] && !back[r] && order[r] <= behind[p])

/* Off the list, for message m. */
#define TAKE(r, p, m)                                 \
  assert(m == 0 || AT(p, 0) != KEPT);                 \
  assert(r == 0 || !listed[0] || back[0]);            \
  listed[r] = false;                                  \
  owner[r] = p + 1

/* What becomes of a receive that was taken. */
inline give(r, p, m) {
  if
  :: atomic { AT(p, m) = OVER; got[r] = m + 1 }
  :: atomic {
       p == 1 ->
       AT(p, m) = OVER;
       era++;
       since[r] = era;
       owner[r] = 0;
       listed[r] = true;
       back[r] = true
     }
#ifndef MUTANT_NO_LOOK_AGAIN
     again = true
#endif
  fi
}

#define OFFERED_ALL(p, keep)                          \
  offered[p] = seen;                                  \
  seen = 0;                                           \
  m = 0;                                              \
  r = 0;                                              \
  locked[p] = keep

/* Takes the lock of the peer; what is kept goes to receives that came into the list since, in their
 * order; then may let go of the lock. What only the holder of the lock looks at needs no steps of its own. */
inline offer(p, keep) {
  atomic { LOCK(p); seen = era }
  do
  :: atomic {
       FIRST(p) != NONE && (NEW(0, p) || NEW(1, p)) ->
       m = FIRST(p);
       r = (NEW(0, p) -> 0 : 1);
       TAKE(r, p, m)
     }
     give(r, p, m)
  :: atomic {
       FIRST(p) == NONE || !(NEW(0, p) || NEW(1, p)) ->
#ifndef MUTANT_ERA_READ_LATE
       OFFERED_ALL(p, keep);
#endif
       break
     }
  od
#ifdef MUTANT_ERA_READ_LATE
  ;
  atomic { seen = era; OFFERED_ALL(p, keep) }
#endif
}

active proctype poster() {
  byte i, p, r, m, seen;
  for (i : 0 .. RECEIVES - 1) {
    atomic { era++; order[i] = era; since[i] = era; listed[i] = true }
    for (p : 0 .. PEERS - 1) {
      offer(p, false)
    }
  }
  over++
}

proctype user() {
  byte p, r, m, seen;
  for (p : 0 .. PEERS - 1) {
#ifdef MUTANT_POST_WITHOUT_OFFER
    atomic { LOCK(p); behind[p] = era }
#else
    offer(p, true);
    behind[p] = offered[p];
#endif
    do
    :: atomic {
         FIRST(p) != NONE ->
         assert(!WAS_FIRST(0, p) && !WAS_FIRST(1, p));
         m = FIRST(p);
         AT(p, m) = OVER;
         m = 0;
         if
         :: UNLOCK(p); break
         :: p == 1 /* it was withdrawn */
         fi
       }
    :: atomic { FIRST(p) == NONE -> waits[p] = true; UNLOCK(p); break }
    od
  }
  assert(behind[0] <= behind[1]);
  over++
}

proctype arrivals(byte p) {
  byte i, r, m, seen;
  for (i : 0 .. p) {
#ifdef MUTANT_MATCH_WITHOUT_OFFER
    atomic { LOCK(p) }
#else
    offer(p, true);
#endif
    if
    :: atomic { GOES_FIRST(0, p) -> r = 0; TAKE(r, p, i) }
       give(r, p, i);
       atomic { r = 0; UNLOCK(p) }
    :: atomic { !GOES_FIRST(0, p) && GOES_FIRST(1, p) -> r = 1; TAKE(r, p, i) }
       give(r, p, i);
       atomic { r = 0; UNLOCK(p) }
    :: atomic {
         !GOES_FIRST(0, p) && !GOES_FIRST(1, p) && waits[p] ->
         assert(!WAS_FIRST(0, p) && !WAS_FIRST(1, p));
         assert(i == 0 || AT(p, 0) != KEPT);
         waits[p] = false;
         AT(p, i) = OVER;
         UNLOCK(p)
       }
    :: atomic { !GOES_FIRST(0, p) && !GOES_FIRST(1, p) && !waits[p] -> AT(p, i) = KEPT; UNLOCK(p) }
    fi
  }
  over++
}

proctype canceller() {
  byte p;
  order[0] ->
  do
  :: atomic { owner[0] == 0 && listed[0] -> listed[0] = false; break }
  :: atomic { owner[0] -> p = owner[0] - 1 }
     atomic {
       !locked[p] ->
#ifdef MUTANT_LATE_CANCEL
       assert(owner[0] == p + 1);
#endif
       /* Who has matched it has given it the message, or has given it back. */
       if
       :: owner[0] == p + 1 -> assert(got[0]); break
       :: else -> skip
       fi
     }
  od;
  over++
}

active proctype progress() {
  byte p, r, m, seen;
  do
  :: atomic { again -> again = false }
     for (p : 0 .. PEERS - 1) {
       offer(p, false)
     }
  :: atomic { over == THREADS && !again -> break }
  od;
  for (p : 0 .. PEERS - 1) {
    assert(FIRST(p) == NONE || !(listed[0] || listed[1] || waits[p]))
  }
  assert(owner[0] != owner[1] || back[0] || back[1] || !got[0] || got[0] < got[1] || !got[1])
}

init {
  atomic {
    run arrivals(0);
    run arrivals(1);
    if
    :: run user()
    :: run canceller()
    fi
  }
}
