// A lock that a worker takes by itself, of the kind by which this flavour of os tells who holds a
// file (os/holds.h).
#pragma once
#include <fcntl.h>
#include <sys/file.h>

#include "os/holds.h"

namespace prefixd {

enum class WorkerLock { kNone, kShared, kAlone };

// Returns whether holds are OFD locks, which a description that may only read cannot take alone.
inline bool HoldsAreOfd() { return os::HoldKind()[0] == '\0'; }

inline bool TakeLock(int fd, WorkerLock lock) {
  if (!HoldsAreOfd()) {
    const int how = lock == WorkerLock::kNone     ? LOCK_UN
                    : lock == WorkerLock::kShared ? LOCK_SH
                                                  : LOCK_EX;
    return flock(fd, how | LOCK_NB) == 0;
  }
  struct flock whole = {};
  whole.l_type = lock == WorkerLock::kNone     ? F_UNLCK
                 : lock == WorkerLock::kShared ? F_RDLCK
                                               : F_WRLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

}  // namespace prefixd
