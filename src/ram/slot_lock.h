// The OFD lock on a slot's byte of the arena file.
#pragma once
#include <fcntl.h>

#include <cstdint>

namespace prefixd::ram {

struct flock SlotLock(uint32_t slot, short type);
// Another description than `fd`'s has it. True, too, when the kernel does not tell: to be on the
// safe side somebody is reading.
bool SlotLocked(int fd, uint32_t slot);

}  // namespace prefixd::ram
