// The word of holders: sessions take hold of a page and drop it, and may die; the daemon gives the
// page's extent to another page only if nobody holds it; a daemon that was killed at any point
// leaves it to the next one, which knows from this word and from the locks who may be reading.
//
// It models SetHolders and ReadHolders (src/block/arena_file.h); TakePage, DropPage (src/index/
// lease.cc) and the answer to Acquire, which comes after them; Arena::Free (src/ram/arena.cc);
// InitRecords; Clear, which voids records of held pages too; LockedSlots, Arena::AdoptRecord
// (src/ram/adopt.cc); Legacy (src/cache/start/legacy.cc), which keeps what they say is held.
//
// Two slots stand for 64. A worker reads whenever it likes between the answer and its word that it
// is done. A lock is a worker's that lives (slot.pml).
//
// Must hold: (nothing), and what the order does not need:
//            MARKS_RELAXED       the two words are stored without release: the answer's order is
//                                enough
//            COMPLEMENT_IGNORED  the word is read without its complement, which guards against
//                                damage and against memory that is new
// Must fail: MARK_LATE           the answer is sent before the bit is set
//            MARK_ONCE           the bit is set for the first holder alone
//            ANSWER_RELAXED      the answer may come before the bit
//            CLEAR_EARLY         the first holder that goes clears the word
//            FREE_HELD           the daemon gives up a page that somebody holds
//            HOLDERS_IGNORED     the next daemon does not look at the word
//            VOID_FREED          the next daemon frees a void record's extent, held or not

#define HOLDERS 0
#define OTHERS 1
#define STATE 2
#define PAYLOAD 3
#define ANSWER 4  // and 5: of each worker
#define WORDS 6
#include "memory.pml"

#define SLOTS 2
#define ALL 3
#define LEASES 2
#define PAYLOADS 2
#define KILLS 1

byte payload_of[LEASES + 1];  // what a lease is a lease of
byte leases = 0;              // so far
byte payloads = 0;            // so far
bool alive[SLOTS] = true;     // the worker lives, and its slot is locked
byte returned[SLOTS];         // the lease that the worker gave back last

#define BIT(slot) (1 << (slot))
#define LOCKED ((alive[0] -> 1 : 0) | (alive[1] -> 2 : 0))
// The worker has told that it is done with all that it was ever answered.
#define IS_DONE(slot) (!alive[slot] || returned[slot] == memory[ANSWER + slot])

#ifdef MARKS_RELAXED
#define IS_RELEASE false
#else
#define IS_RELEASE true
#endif
#ifdef ANSWER_RELAXED
#define ANSWERS_AFTER false
#else
#define ANSWERS_AFTER true
#endif

inline SetHolders(bits) {
  Store(HOLDERS, bits, IS_RELEASE);
  Store(OTHERS, ALL - (bits), IS_RELEASE)
}

inline Mark() {
#ifdef MARK_ONCE
  if
  :: held == BIT(slot) -> SetHolders(marked)
  :: else -> skip
  fi
#else
  SetHolders(marked)
#endif
}

// TakePage, and the answer that tells the worker.
inline Take() {
  d_step {
    held = held | BIT(slot);
    marked = marked | BIT(slot);
    leases++;
    payload_of[leases] = payload
  };
#ifdef MARK_LATE
  Store(ANSWER + slot, leases, ANSWERS_AFTER);
  Mark()
#else
  Mark();
  Store(ANSWER + slot, leases, ANSWERS_AFTER)
#endif
}

// DropPage: bits of those that went earlier stay until the last goes.
inline Drop() {
  held = held & (ALL - BIT(slot));
#ifdef CLEAR_EARLY
  marked = held;
  SetHolders(0)
#else
  if
  :: held == 0 -> marked = 0; SetHolders(0)
  :: else -> skip
  fi
#endif
}

// Free, and another page in the extent.
inline Replace() {
  Exchange(STATE, 0);
  SetHolders(0);
  payloads++;
  Store(PAYLOAD, payloads, false);
  Store(STATE, 1, true);
  d_step { payload = payloads; is_page = true; marked = 0 }
}

// Reads the locks, then the word. What a living worker may be reading is kept, page or not.
inline Adopt() {
  d_step {
    locks = LOCKED;
#ifdef COMPLEMENT_IGNORED
    read = memory[HOLDERS];
#else
    read = (memory[OTHERS] == ALL - memory[HOLDERS] -> memory[HOLDERS] : ALL);
#endif
    held = read & locks;
#ifdef HOLDERS_IGNORED
    held = 0;
#endif
    marked = held;
    is_page = (memory[STATE] == 1);
    payload = memory[PAYLOAD]
  };
  if
  :: held != read -> SetHolders(held)
  :: else -> skip
  fi;
  if
  :: is_page -> SetHolders(held)  // the index writes the marks of what it adopts
  :: !is_page ->
    Exchange(STATE, 0);
#ifdef VOID_FREED
    held = 0; marked = 0;
#endif
    if
    :: held == 0 -> SetHolders(0)
    :: else -> skip
    fi
  fi
}

proctype Daemon() provided (running == _pid) {
  byte held = 0, marked = 0;    // slots that hold the page; and the word as it is to be
  byte payload = 0, slot = 0, locks = 0, read = 0;
  bool is_page = false;
  if
  :: killed == 0 -> Exchange(STATE, 0); SetHolders(0)  // a slab is cut: InitRecords
  :: killed > 0 -> Adopt()
  fi;
  do
  :: is_page && leases < LEASES ->
    if
    :: slot = 0
    :: slot = 1
    fi;
    if
    :: alive[slot] && (held & BIT(slot)) == 0 -> Take()
    :: else -> skip
    fi
  :: atomic { (held & BIT(0)) != 0 && BARRIER && IS_DONE(0) -> slot = 0 }; Drop()
  :: atomic { (held & BIT(1)) != 0 && BARRIER && IS_DONE(1) -> slot = 1 }; Drop()
  :: is_page -> is_page = false; Exchange(STATE, 0)  // Clear
#ifdef FREE_HELD
  :: payloads < PAYLOADS -> Replace()
#else
  :: held == 0 && payloads < PAYLOADS -> Replace()
#endif
  od
}

init {
  run Worker(0);
  run Worker(1);
  running = run Daemon();
  do
  :: killed < KILLS -> atomic { Kill(); running = run Daemon() }
  :: true -> break
  od
}

proctype Worker(byte me) {
  byte lease = 0;
  do
  :: atomic {
      alive[me] && lease == 0 && memory[ANSWER + me] > returned[me] ->
      lease = memory[ANSWER + me]
    }
  :: lease > 0 ->
    // What a worker holds is what it was when it was leased.
    d_step { assert(memory[PAYLOAD] == payload_of[lease]) };
    if
    :: atomic { true -> returned[me] = lease; lease = 0 }
    :: skip
    fi
  :: atomic { alive[me] -> alive[me] = false; lease = 0 }; break
  od
}
