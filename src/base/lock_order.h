// Ends the process when mutexes are taken in an order that could deadlock: when some thread takes B
// while it holds A, and some thread once took A while it held B (or through others between them).
// It needs no unlucky timing: each order has to be seen only once. On with
// PREFIXD_CHECK_LOCK_ORDER, which debug and sanitizer builds define; else it costs nothing.
//
// Mutexes are compared by class: those that one constructor made, or that have one name.
#pragma once
#include <cstdint>

namespace prefixd::base {

// Thread-safe. Must be told of every lock and unlock of its mutex, by the thread that does it.
class CheckedLockClass {
 public:
  // `name` outlives the process; nullptr: `file` and `line` name the class.
  CheckedLockClass(const char* name, const char* file, uint32_t line);

  // Call before the lock. Aborts, with the order that was seen before, if it may deadlock.
  void Locking() const;
  void Unlocked() const;

 private:
  const uint32_t id_;
};

class UncheckedLockClass {
 public:
  constexpr UncheckedLockClass(const char*, const char*, uint32_t) {}
  void Locking() const {}
  void Unlocked() const {}
};

#ifdef PREFIXD_CHECK_LOCK_ORDER
using LockClass = CheckedLockClass;
#else
using LockClass = UncheckedLockClass;
#endif

}  // namespace prefixd::base
