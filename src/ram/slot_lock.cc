#include "ram/slot_lock.h"

#include "block/arena_file.h"

namespace prefixd::ram {

struct flock SlotLock(uint32_t slot, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(block::kSlotLockOffset + slot);
  lock.l_len = 1;
  return lock;
}

bool SlotLocked(int fd, uint32_t slot) {
  struct flock lock = SlotLock(slot, F_WRLCK);
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace prefixd::ram
