// Files that a process maps or keeps open and its children must not have: a child of fork() that
// goes on would keep what its dead parent held.
//
// linux: the mapping alone keeps the open file description and with it the description's locks; it
// is marked MADV_DONTFORK and the descriptor is closed. portable: the descriptor stays open,
// because a mapping keeps no lock on every system, and handlers of fork() close and unmap in the
// child. Neither sees a child made by vfork() or clone(); exec closes everything.
//
// Thread-safe for different objects.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace prefixd::os {

// Registers what the portable flavour needs before a fork. Handlers of a caller that holds a mutex
// of its own across these calls must be registered after this.
void PrepareForForks();

// Keeps a file's description and its locks, of a file that nobody reads or writes here.
class HeldFile {
 public:
  HeldFile() = default;
  ~HeldFile();
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;
  // Takes the descriptor, which this object closes at once or later, also if it fails. Returns
  // false, with errno, if children would have the file. Called once.
  bool Take(int fd);

 private:
  [[maybe_unused]] int fd_ = -1;           // portable
  [[maybe_unused]] void* page_ = nullptr;  // linux
  pid_t owner_ = -1;
};

// A mapping of a file's first bytes, for as long as the object lives in the process that made it.
class HeldMapping {
 public:
  enum class Access { kRead, kReadAndWrite };
  HeldMapping() = default;
  ~HeldMapping();
  HeldMapping(const HeldMapping&) = delete;
  HeldMapping& operator=(const HeldMapping&) = delete;
  // Takes the descriptor as HeldFile does. Returns null, or the name of the call that failed, with
  // errno. Called once.
  const char* Map(int fd, uint64_t bytes, Access access);
  // Asks for huge pages, and leaves the mapping out of core dumps, where the system can.
  void MakeLarge();
  std::byte* data() const { return base_; }

 private:
  [[maybe_unused]] int fd_ = -1;  // portable
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  pid_t owner_ = -1;
};

}  // namespace prefixd::os
