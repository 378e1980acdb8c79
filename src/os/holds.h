// Locks that tell whether somebody still has a file: one process hands a description with a lock to
// another, and sees when the last holder of it is gone, at the latest when the holder's process is
// dead. The lock belongs to the open file description, not to a process or a descriptor.
//
// linux: an OFD read lock, which F_OFD_GETLK sees without taking one. portable: flock, shared,
// which is seen by trying to lock the file alone: for that instant another IsHeld() says true. The
// kernel keeps the two kinds apart, so a daemon of one flavour does not see the holds of the other:
// HoldKind() is part of the names of such files.
//
// Thread-safe. Calls that fail say why in errno.
#pragma once
#include <string>

namespace prefixd::os {

// Gives the descriptor's description the lock. Requires: nobody holds the file alone.
bool Hold(int fd);
// Returns whether another description has a hold on the file. True also if the system does not
// tell. Requires: `fd` is open for writing and has no hold itself.
bool IsHeld(int fd);
// Part of the names of files with holds: "" or ".flock".
const char* HoldKind();

}  // namespace prefixd::os
