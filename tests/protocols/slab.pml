// The word of a slab's service: the daemon gives a slab memory and takes it away again; a worker
// registers the memory for its GPU and reads pages from there as long as the word says that it is
// the slab's memory still. What is registered is physical memory: after a hole is punched it is
// there for the GPU alone, and pages written since are elsewhere.
//
// It models BackSlab, LeaveService and TellService (src/ram/service.cc); PunchIdle, and what AdoptSlab
// takes for in service (src/ram/adopt.cc); Arena::Step, Pin and Unpin (client/cuda/
// arena.cc) and Slices::IsPinned (client/cuda/slices.cc).
//
// Which leases a killed daemon leaves is known to the next one: holder.pml. A page's bytes follow
// their record: record.pml. The word's count does not come round here (it has 32 bits).
//
// Must hold: (nothing), and what the order does not need:
//            TELL_RELAXED    the word is stored without release: the kernel's calls are enough
//            ANSWER_RELAXED  a lease's answer may come before the word that tells of the memory
//            IDLE_KEPT       the next daemon does not punch slabs that are not in service
// Must fail: TELL_LATE       the word tells of lost memory after the hole is punched
//            TELL_BIT        the word says whether there is memory, and does not count
//            WORD_LATE       the worker reads the word after it registered
//            LOOK_ONCE       whoever reads does not look at the word
//            LEAVE_LEASED    a slab with a leased page loses its memory

#define SERVICE 0
#define ANSWER 1
#define WORDS 2
#include "memory.pml"

#define LEASES 2
#define MOST_WORD 3  // two times of service
#define KILLS 1

byte in_file = 0;     // the slab's physical memory, 1 or 2; 0: a hole
byte returned = 0;    // the lease that the worker gave back last
byte registered = 0;  // the word under which the worker registered memory; 0: none
byte pinned = 0;      // that memory

#define IN_SERVICE(word) (word % 2 == 1)
#ifdef TELL_RELAXED
#define TELLS_AFTER false
#else
#define TELLS_AFTER true
#endif
#ifdef ANSWER_RELAXED
#define ANSWERS_AFTER false
#else
#define ANSWERS_AFTER true
#endif

// What a call of the kernel gives a hole: memory that is not what was registered.
inline Fill() {
  if
  :: in_file == 0 -> in_file = (pinned == 1 -> 2 : 1)
  :: else -> skip
  fi
}

inline Tell() {
#ifdef TELL_BIT
  word = 1 - word;
#else
  word = word + 1;
#endif
  Store(SERVICE, word, TELLS_AFTER)
}

inline Leave() {
#ifdef TELL_LATE
  atomic { BARRIER -> in_file = 0 };
  Tell()
#else
  Tell();
  atomic { BARRIER -> in_file = 0 }
#endif
}

#define LEASED (leases != returned)

proctype Daemon() provided (running == _pid) {
  byte word = memory[SERVICE];
  byte leases = memory[ANSWER];  // so far
  bool in_service = IN_SERVICE(memory[SERVICE]);
#ifndef IDLE_KEPT
  if
  :: !in_service -> atomic { BARRIER -> in_file = 0 }
  :: else -> skip
  fi;
#endif
  do
  :: !in_service && word < MOST_WORD ->
    atomic { BARRIER -> Fill() };
    Tell();
    in_service = true
#ifdef LEAVE_LEASED
  :: in_service && word < MOST_WORD ->
#else
  :: in_service && !LEASED && word < MOST_WORD ->
#endif
    in_service = false;
    Leave()
  :: in_service && !LEASED && leases < LEASES ->
    leases++;
    Store(ANSWER, leases, ANSWERS_AFTER)
  od
}

// Registers the memory, and follows what the word says of it.
active proctype Follower() {
  byte word = 0;
  do
  :: word = memory[SERVICE];
    if
    :: registered != 0 && registered != word -> registered = 0; pinned = 0
    :: else -> skip
    fi;
    if
    :: IN_SERVICE(word) && registered != word ->
      atomic { Fill(); pinned = in_file };
#ifdef WORD_LATE
      word = memory[SERVICE];
#endif
      registered = word
    :: else -> skip
    fi;
    word = 0
  od
}

// Reads leased pages by the GPU where their slab is pinned, else in another way.
active proctype Reader() {
  byte lease = 0, with = 0;
  do
  :: atomic { lease == 0 && memory[ANSWER] > returned -> lease = memory[ANSWER] };
    with = registered;
    if
#ifdef LOOK_ONCE
    :: with != 0 ->
#else
    :: with != 0 && with == memory[SERVICE] ->
#endif
      do
      :: d_step { assert(pinned == in_file && pinned != 0) }
      :: break
      od
    :: true -> skip
    fi;
    atomic { returned = lease; lease = 0; with = 0 }
  od
}

init {
  running = run Daemon();
  do
  :: killed < KILLS -> atomic { Kill(); running = run Daemon() }
  :: true -> break
  od
}
