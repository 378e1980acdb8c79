#include "os/held_file.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <utility>

namespace prefixd::os {
namespace {

// Never destroyed: a thread may fork while the process ends. What a child must not have.
struct State {
  std::mutex mutex;  // guards what follows
  std::set<int> files;
  std::set<std::pair<void*, size_t>> mappings;
  bool is_parents = false;  // a fork closed all of it here
  bool has_handlers = false;
};

void Prepare();
void InParent();
void InChild();

State& TheState() {
  static State* const state = [] {
    auto* const made = new State;
    made->has_handlers = pthread_atfork(Prepare, InParent, InChild) == 0;
    return made;
  }();
  return *state;
}

// The thread that forks holds the mutex across the fork and releases it on both sides.
void Prepare() { TheState().mutex.lock(); }
void InParent() { TheState().mutex.unlock(); }
// Allocates and frees nothing: another thread may have been in the heap. So what is listed stays
// listed, and a child's own child must leave it alone: something else may be there.
void InChild() {
  State& state = TheState();
  if (!std::exchange(state.is_parents, true)) {
    for (const int fd : state.files) close(fd);
    for (const auto& [base, bytes] : state.mappings) munmap(base, bytes);
  }
  state.mutex.unlock();
}

// Makes the lists those of this process. Requires: the mutex.
State& OwnState() {
  State& state = TheState();
  if (std::exchange(state.is_parents, false)) {
    state.files.clear();
    state.mappings.clear();
  }
  return state;
}

// Closes in the process that opened it. A child's copy was closed by the fork, and its number may
// be another file's.
void CloseFile(int fd, pid_t owner) {
  if (fd < 0 || owner != getpid()) return;
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  TheState().files.erase(fd);
  close(fd);
}

}  // namespace

void PrepareForForks() { TheState(); }

HeldFile::~HeldFile() { CloseFile(fd_, owner_); }

bool HeldFile::Take(int fd) {
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  State& state = OwnState();
  state.files.insert(fd);
  fd_ = fd;
  owner_ = getpid();
  if (!state.has_handlers) errno = ENOMEM;
  return state.has_handlers;
}

HeldMapping::~HeldMapping() {
  if (base_ != nullptr && owner_ == getpid()) {
    const std::lock_guard<std::mutex> lock(TheState().mutex);
    TheState().mappings.erase({base_, bytes_});
    munmap(base_, bytes_);
  }
  CloseFile(fd_, owner_);
}

const char* HeldMapping::Map(int fd, uint64_t bytes, Access access) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const std::lock_guard<std::mutex> lock(TheState().mutex);
  State& state = OwnState();
  state.files.insert(fd);
  fd_ = fd;
  owner_ = getpid();
  void* const base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return "mmap";
  state.mappings.insert({base, bytes});
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  if (!state.has_handlers) errno = ENOMEM;
  return state.has_handlers ? nullptr : "pthread_atfork";
}

void HeldMapping::MakeLarge() {}

}  // namespace prefixd::os
