/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of one team that sends a large message: Sender::send_large() in
 * include/onehop/detail/sender.h. large_message.pml has the teams, the chunks and the lines of a
 * posting; here a posting is one word, and a staged message is through when its end line arrives.
 *
 *   part      waits for the posting, looks for the address in the table, and if it finds one, puts
 *             its bytes; then all parts vote
 *   all put   the leader fences and says PUT
 *   else      a part that has put fences; all go by the leader's route: the others put, or the
 *             leader says STAGED or REFUSED
 *
 * The table changes at any time: one part may find an address that another one misses. What is put
 * becomes visible some time later, in any order.
 *
 * Checked: a receive that is through has the bytes of its message, from all parts if it was put; no
 * byte arrives after that, or where there is no room; nobody waits for ever.
 *
 * Each MUTANT_ takes away one thing that the protocol needs, and must be found wrong.
 */
#define MESSAGES 3
#define PARTS 2

#define PUT 1
#define STAGED 2
#define REFUSED 3
/* A route is STAGED, REFUSED, or a receive's target. */
#define INTO(receive) (REFUSED + 1 + (receive))
#define HALF(route, part) (2 * ((route) - REFUSED - 1) + (part))

/* *_later: stored, not yet visible. 0: nothing is there. */
byte end[MESSAGES];
byte end_later[MESSAGES];
byte target[2 * MESSAGES]; /* of each receive both parts' bytes; number + 1 of the message */
byte target_later[2 * MESSAGES];
byte posted; /* number + 1 of the receive */
byte posted_later;
bool room[MESSAGES];
bool through[MESSAGES]; /* the receive may use its memory for other things */
bool over;

/* Of each message, in the parts' shared memory. */
bool doubt[MESSAGES]; /* a part has not put */
byte voted[MESSAGES];
byte route[MESSAGES]; /* the leader's */
byte agreed[MESSAGES];
byte finished[MESSAGES];

#define SHOW_END(i) \
  :: atomic { end_later[i] -> end[i] = end_later[i]; end_later[i] = 0 }
#define SHOW_TARGET(i)                                \
  :: atomic {                                         \
    target_later[i] ->                                \
    assert(!through[(i) / 2]);                        \
    target[i] = target_later[i];                      \
    target_later[i] = 0                               \
  }

active proctype links() {
  do
  SHOW_END(0)
  SHOW_END(1)
  SHOW_END(2)
  SHOW_TARGET(0)
  SHOW_TARGET(1)
  SHOW_TARGET(2)
  SHOW_TARGET(3)
  SHOW_TARGET(4)
  SHOW_TARGET(5)
  :: atomic { posted_later -> posted = posted_later; posted_later = 0 }
  :: over -> break
  od
}

#define NOTHING_IN_FLIGHT(n) (!target_later[2 * (n)] && !target_later[2 * (n) + 1])
#ifdef MUTANT_NO_FENCE_BEHIND_PUT
#define FENCE skip
#else
#define FENCE NOTHING_IN_FLIGHT(n)
#endif
#ifdef MUTANT_NO_FENCE_BEFORE_STAGED
#define FENCE_OWN skip
#else
#define FENCE_OWN (!target_later[HALF(to, part)])
#endif
#ifdef MUTANT_NO_VOTE
#define ALL_HAVE_VOTED true
#else
#define ALL_HAVE_VOTED (voted[n] == PARTS)
#endif
#ifdef MUTANT_CAPACITY_NOT_LOOKED_AT
#define HAS_ROOM true
#else
#define HAS_ROOM room[posted - 1]
#endif

proctype sender(byte part) {
  byte n, to;
  for (n : 0 .. MESSAGES - 1) {
    atomic {
      posted == n + 1 ->
      if
      :: !HAS_ROOM -> to = REFUSED
      :: HAS_ROOM -> to = INTO(posted - 1)
      :: HAS_ROOM -> to = STAGED /* the table has it not */
      fi;
      if
      :: to > REFUSED -> target_later[HALF(to, part)] = n + 1
      :: else -> doubt[n] = true
      fi;
      voted[n]++
    }
    ALL_HAVE_VOTED;
    if
    :: !doubt[n] ->
       if
       :: part == 0 -> FENCE; end_later[n] = PUT
       :: else
       fi
    :: else ->
       if
       :: to > REFUSED -> FENCE_OWN
       :: else
       fi;
       atomic {
         if
         :: part == 0 -> route[n] = to
         :: else
         fi;
         agreed[n]++
       }
       agreed[n] == PARTS;
#ifdef MUTANT_OWN_ROUTE
       if
       :: to <= REFUSED && route[n] > REFUSED
       :: else
       fi;
#else
       if
       :: atomic {
            to <= REFUSED && route[n] > REFUSED ->
            target_later[HALF(route[n], part)] = n + 1
          }
       :: else
       fi;
#endif
       finished[n]++;
       finished[n] == PARTS;
       if
       :: part == 0 && route[n] > REFUSED -> FENCE; end_later[n] = PUT
       :: part == 0 && route[n] <= REFUSED -> end_later[n] = route[n]
       :: else
       fi
    fi;
    to = 0
  }
}

active proctype receiver() {
  byte n;
  for (n : 0 .. MESSAGES - 1) {
    atomic {
      if :: room[n] = true :: room[n] = false fi;
      posted_later = n + 1
    }
    atomic {
      end[n] ->
      assert((end[n] == REFUSED) == !room[n]);
      if
      :: end[n] == PUT ->
         assert(target[2 * n] == n + 1);
         assert(target[2 * n + 1] == n + 1)
      :: end[n] == REFUSED ->
         assert(!target[2 * n] && !target[2 * n + 1])
      :: else
      fi;
      assert(!target[2 * n] || target[2 * n] == n + 1);
      assert(!target[2 * n + 1] || target[2 * n + 1] == n + 1);
      through[n] = true
    }
  }
  over = true
}

init {
  atomic { run sender(0); run sender(1) }
}
