// A page's record: the daemon publishes it, withdraws it and writes it anew; a worker reads it under
// a lease; a daemon that was killed at any point leaves it to the next one.
//
// It models Arena::Publish, RetireRecord and WriteContent (src/ram/records.cc); Arena::Free and
// Allocate (src/ram/arena.cc); PublishPages, before which no answer names the page
// (src/cache/verbs/publish.cc); PageNames::Of (client/cpp/page_names.cc); Published and
// Arena::AdoptRecord (src/ram/adopt.cc).
//
// Two words of content stand for all. The record's check and the payload's are left out: they would
// hide an order that is wrong.
//
// Must hold: (nothing)        the worker reads what the answer to Acquire names
//            BY_STATE         the worker has no answer but the state, as tests/ram/
//                             litmus_records_test.cc reads, which tells it that it saw a withdrawal
//            LL_SC            other processors may see later stores before that of the exchange, as
//                             on arm64 without LSE. Nobody is killed here: a kill comes between two
//                             instructions and finds all that were before it
// Must fail: PUBLISH_RELAXED  the state is stored without release
//            RETIRE_RELEASE   the record is withdrawn by a release store instead of an exchange
//            RETIRE_SKIPPED   the record is written anew without being withdrawn
//            FREE_PUBLISHED   the extent is given out again while its record is published
//            REWRITE_LEASED   the daemon does not wait for the end of the lease
//            ANSWER_RELAXED   the answer may come before what it names
//            RECEIVE_RELAXED  the worker may read the record before it has the answer

#define STATE 0
#define CONTENT_A 1
#define CONTENT_B 2
#define PAYLOAD 3
#define ANSWER 4
#define WORDS 5
#include "memory.pml"

#define RECORDS 3  // that are published, in all lives
#define KILLS 2

byte payload_of[RECORDS + 1];  // by number of the record: the payload that it is to name
byte published = 0;            // records so far
byte payloads = 0;             // payloads so far
byte leased = 0;               // the record that was leased last
byte returned = 0;             // the worker's word: the lease that it gave back last
bool saw_withdrawal = false;   // the worker's word, with BY_STATE

#ifdef LL_SC
#define RETIRE Store(STATE, 0, true)
#else
#ifdef RETIRE_RELEASE
#define RETIRE Store(STATE, 0, true)
#else
#define RETIRE Exchange(STATE, 0)
#endif
#endif

#ifdef PUBLISH_RELAXED
#define IS_RELEASE false
#else
#define IS_RELEASE true
#endif
#ifdef ANSWER_RELAXED
#define ANSWERS_AFTER false
#else
#define ANSWERS_AFTER true
#endif

// Free, Allocate, and a new page's bytes.
inline NewPayload() {
#ifndef FREE_PUBLISHED
  RETIRE;
#endif
#ifdef BY_STATE
  atomic { published == 0 || saw_withdrawal -> saw_withdrawal = false };
#endif
  payloads++;
  Store(PAYLOAD, payloads, false);
  payload = payloads
}

inline Publish() {
  d_step { published++; payload_of[published] = payload };
#ifndef RETIRE_SKIPPED
  RETIRE;
#endif
  Store(CONTENT_A, published, false);
  Store(CONTENT_B, published, false);
  Store(STATE, 1, IS_RELEASE)
}

// The daemon of one life. It writes nothing where somebody reads: in the life that leased the page
// because it counts holders; in the next, because adoption keeps what a living worker holds
// (holder.pml).
proctype Daemon() provided (running == _pid) {
  byte payload = (memory[STATE] == 1 -> memory[PAYLOAD] : 0);  // as the page found has it
  do
  :: published < RECORDS ->
#ifndef REWRITE_LEASED
    returned >= leased;
#endif
    if
    :: NewPayload()
#ifndef BY_STATE
    :: payload > 0  // the same page under another name
#endif
    fi;
    Publish();
    if
#ifndef BY_STATE
    :: skip  // nobody asks for it
    :: d_step { leased = published }; Store(ANSWER, published, ANSWERS_AFTER)
#else
    :: d_step { leased = published }
#endif
    fi
  :: else -> break
  od
}

// A published record is whole, and its page's bytes are there: whatever instant the daemon is killed
// at, and whatever the next one is.
inline Adopt() {
  assert(memory[STATE] == 0 || memory[CONTENT_A] == memory[CONTENT_B]);
  assert(memory[STATE] == 0 || memory[PAYLOAD] == payload_of[memory[CONTENT_A]])
}

init {
  running = run Daemon();
#ifndef LL_SC
#ifndef BY_STATE
  do
  :: killed < KILLS ->
    atomic {
      Kill();
      Adopt();
      leased = (memory[ANSWER] > returned -> memory[ANSWER] : returned);  // an answer lost is none
      running = run Daemon()
    }
  :: true -> break
  od
#endif
#endif
}

#ifdef BY_STATE
// Reads when it sees the state. The record stays until it says so.
active proctype Worker() {
  byte a, b, p;
  do
  :: memory[STATE] == 1 && returned < leased;  // acquire: the loads below come after it
    if
    :: a = memory[CONTENT_A]; b = memory[CONTENT_B]; p = memory[PAYLOAD]
    :: p = memory[PAYLOAD]; b = memory[CONTENT_B]; a = memory[CONTENT_A]
    fi;
    assert(a == leased && b == leased);  // whole, and not an earlier one
    assert(p == payload_of[leased]);
    returned = leased;
    memory[STATE] == 0;
    saw_withdrawal = true
  od
}
#else
#ifdef RECEIVE_RELAXED
#define MAY_LOAD true
#else
#define MAY_LOAD (lease > 0)
#endif
// Reads what it leased. Its loads after the answer may be made in any order.
active proctype Worker() {
  byte lease = 0, a = 0, b = 0, p = 0, s = 0;
  bool has_a = false, has_b = false, has_p = false, has_s = false;
  do
  :: lease == 0 && memory[ANSWER] > returned -> lease = memory[ANSWER]
  :: MAY_LOAD && !has_s -> d_step { s = memory[STATE]; has_s = true }
  :: MAY_LOAD && !has_a -> d_step { a = memory[CONTENT_A]; has_a = true }
  :: MAY_LOAD && !has_b -> d_step { b = memory[CONTENT_B]; has_b = true }
  :: MAY_LOAD && !has_p -> d_step { p = memory[PAYLOAD]; has_p = true }
  :: lease > 0 && has_s && has_a && has_b && has_p ->
    d_step {
      assert(s == 1);                      // what is leased is published
      assert(a == lease && b == lease);    // and whole, and the page that the answer named
      assert(p == payload_of[lease]);      // and so are its bytes
      returned = lease;                    // the end of the lease comes after the loads
      lease = 0; a = 0; b = 0; p = 0; s = 0;
      has_s = false; has_a = false; has_b = false; has_p = false
    }
  od
}
#endif
