// A slot's record and its lock: a session gets the slot, is named, comes back under another key and
// ends; another session gets it. A daemon that was killed at any point leaves it to the next one,
// which must know whose worker may still be reading.
//
// It models Write, Claim, SetOwner, Rename, OpenFor, Free and Release (src/ram/slots.cc); Renew,
// OpenLocked, Remove and Locked (src/ram/slot_locks.cc), which are system calls; WhyBadLocks
// (src/ram/make_file.cc); Slots::Slots, Held and Read (src/ram/slots.cc).
//
// Two words of the key stand for its 32 bytes. A lock is a worker's that lives; the kernel drops it
// when the worker dies.
//
// Must fail: IN_USE_RELAXED  in_use is stored without release
//            BEGIN_RELEASE   a record in use is opened by a release store instead of an exchange
//            BEGIN_SKIPPED   a record in use is written without being opened
//            RENEW_LATE      the record names a lock file that is not made yet
//            REMOVE_FIRST    the lock file goes before the record does
//            RELEASE_LOCKED  the slot is freed though a worker has its lock

#define IN_USE 0
#define KEY_A 1
#define KEY_B 2
#define OWNER 3
#define INODE 4
#define WORDS 5
#include "memory.pml"

#define SESSIONS 2
#define NAMES 2  // keys that a session has, one after the other
#define KILLS 2

#define KEY(session, name) ((session)*NAMES + (name))
#define SESSION_OF(key) (((key)-1) / NAMES)

byte file = 0;      // the inode of the slot's lock file; 0: there is none
byte inodes = 0;    // that were ever made
byte locked = 0;    // the inode on which a living worker has its lock
byte worker = 0;    // the session of that worker
byte sessions = 0;  // that began

#ifdef BEGIN_RELEASE
#define OPEN_RECORD Store(IN_USE, 0, true)
#else
#define OPEN_RECORD Exchange(IN_USE, 0)
#endif
#ifdef IN_USE_RELAXED
#define IS_RELEASE false
#else
#define IS_RELEASE true
#endif

inline Write(key, owner, inode, in_use) {
#ifndef BEGIN_SKIPPED
  OPEN_RECORD;
#endif
  Store(KEY_A, key, false);
  Store(KEY_B, key, false);
  Store(OWNER, owner, false);
  Store(INODE, inode, false);
  Store(IN_USE, in_use, IS_RELEASE)
}

inline Remove_file() {
  atomic { BARRIER -> file = 0 }
}

inline Make_file() {
  atomic { BARRIER -> inodes++; file = inodes }
}

// A session without a worker yet.
inline Claim() {
  d_step { sessions++; session = sessions; name = 1; owner = 0 };
  Remove_file();
#ifdef RENEW_LATE
  Write(KEY(session, name), owner, inodes + 1, 1);
  Make_file();
#else
  Make_file();
  Write(KEY(session, name), owner, file, 1);
#endif
}

// Free: the record, then its file.
inline Free() {
#ifdef REMOVE_FIRST
  Remove_file();
  Write(0, 0, 0, 0)
#else
  Write(0, 0, 0, 0);
  Remove_file()
#endif
}

#define IS_LOCKED (file != 0 && locked == file)

proctype Daemon() provided (running == _pid) {
  byte session = 0, name = 0, owner = 0;
  // As the last daemon left it: a slot that nobody holds is freed.
  if
  :: atomic { IS_LOCKED -> session = worker; owner = memory[OWNER] }
    name = (memory[IN_USE] == 1 -> memory[KEY_A] - KEY(session, 0) : NAMES)
  :: !IS_LOCKED -> Free()
  fi;
  do
  :: session == 0 && sessions < SESSIONS ->
    Claim();
    owner = session;
    Write(KEY(session, name), owner, file, 1);  // SetOwner
    atomic { BARRIER -> locked = file; worker = session }  // OpenFor, and a worker has it
  :: session > 0 && name < NAMES ->
    name++;
    Write(KEY(session, name), owner, file, 1)  // Rename
  :: session > 0 && IS_LOCKED ->
    Write(KEY(session, name), owner, file, 1)  // SetOwner, when it comes again
#ifdef RELEASE_LOCKED
  :: session > 0 ->
#else
  :: session > 0 && !IS_LOCKED ->
#endif
    Free();
    session = 0
  od
}

// What the next daemon finds, whatever instant the last one was killed at.
inline Adopt() {
  // A record in use names its lock file. Else the arena would be replaced, with all that is in it.
  assert(memory[IN_USE] == 0 || (file != 0 && memory[INODE] == file));
  // A worker that lives has the slot's lock file: nobody takes it for dead.
  assert(locked == 0 || locked == file);
  // Whoever holds the lock is the session that the record names, with a whole key; or the record
  // names nobody, and nobody can come back by it.
  if
  :: IS_LOCKED && memory[IN_USE] == 1 ->
    assert(memory[KEY_A] == memory[KEY_B]);
    assert(SESSION_OF(memory[KEY_A]) == worker);
    assert(memory[OWNER] == 0 || memory[OWNER] == worker)
  :: else -> skip
  fi
}

init {
  running = run Daemon();
  do
  :: killed < KILLS ->
    atomic {
      Kill();
      Adopt();
      running = run Daemon()
    }
  :: true -> break
  od
}

// The worker dies, and the kernel drops its lock. Until then its slot is its own.
active proctype Worker() {
  do
  :: atomic {
      locked != 0 ->
      assert(locked == file);
      locked = 0;
      worker = 0
    }
  od
}
