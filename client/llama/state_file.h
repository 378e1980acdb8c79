// A state file on its way: from leased pages into a file that a server restores, and from a file
// that a server saved into the cache.
//
// A file belongs to one thread at a time.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "interop/llama_state.h"
#include "prefixd/client.h"

namespace prefixd::llama {

// A file that this process has mapped; given back to its folder when this is gone.
class StateFile;

// Where the servers read and write states. Thread-safe. Files that were written stay, at their full
// length, to be written again: their memory is there and mapped already, which makes a restore
// several times faster. A server reads as far as the state goes and ignores what follows
// (llama_state_seq_load_file, in every version that has it).
class StateFolder {
 public:
  // Removes what processes left there that are gone.
  explicit StateFolder(std::string path);
  ~StateFolder();  // removes its files. Requires: all StateFiles are gone.
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  std::string NewName();
  // Maps what a server wrote. The file is removed when the StateFile is gone.
  absl::StatusOr<StateFile> Open(const std::string& name);
  // Gives a file of `bytes` bytes or more, of which `bytes` are to be written, readable by this
  // user and group. Exhausted if the file system has no room for it.
  absl::StatusOr<StateFile> Create(uint64_t bytes) PREFIXD_EXCLUDES(mutex_);

 private:
  friend class StateFile;
  struct Mapped {
    std::string name;
    int file = -1;
    std::byte* data = nullptr;
    uint64_t bytes = 0;   // that are valid
    uint64_t mapped = 0;  // from `data` on
    bool written_here = false;
  };
  // Returns the kept file that fits best: the shortest that is long enough, else the longest.
  std::optional<Mapped> TakeKept(uint64_t bytes) PREFIXD_EXCLUDES(mutex_);
  // Makes the file at least as long as asked, and its mapping.
  absl::Status Grow(uint64_t bytes, Mapped* file) const;
  void GiveBack(Mapped file) PREFIXD_EXCLUDES(mutex_);
  void Remove(const Mapped& file) const;

  const std::string path_;
  std::atomic<uint64_t> names_ = 0;
  base::Mutex mutex_;
  std::vector<Mapped> kept_ PREFIXD_GUARDED_BY(mutex_);
};

class StateFile {
 public:
  StateFile(StateFile&& other) noexcept;
  StateFile& operator=(StateFile&&) = delete;
  ~StateFile();

  const std::string& name() const { return file_.name; }
  std::span<std::byte> bytes() const { return {file_.data, file_.bytes}; }
  // Somebody may still be reading it: it will be removed, not written again.
  void Retire() { file_.written_here = false; }

 private:
  friend class StateFolder;
  StateFile(StateFolder* folder, StateFolder::Mapped file)
      : folder_(folder), file_(std::move(file)) {}
  StateFolder* folder_;
  StateFolder::Mapped file_;
};

// Writes the state of tokens [0, tokens.size()) from the lease, which has them all readable. Heads
// and dims are those of `spec`.
absl::StatusOr<StateFile> WriteState(const interop::LlamaContext& context, const SpaceSpec& spec,
                                     std::span<const uint32_t> tokens, Lease& lease,
                                     StateFolder* folder);

}  // namespace prefixd::llama
