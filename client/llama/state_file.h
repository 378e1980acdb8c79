// A state file on its way: from leased pages into a file that a server restores, and from a file
// that a server saved into the cache. Each byte is copied once.
//
// Functions on values that belong to one thread at a time.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/llama_state.h"
#include "prefixd/client.h"

namespace prefixd::llama {

// A file that this process has mapped. Removed when this is gone.
class StateFile {
 public:
  // Maps what a server wrote.
  static absl::StatusOr<StateFile> Open(std::string path);
  // Makes a file of `bytes` bytes, readable by this user and group. Exhausted, and no file, if the
  // file system has no room for it.
  static absl::StatusOr<StateFile> Create(std::string path, uint64_t bytes);
  StateFile(StateFile&& other) noexcept;
  StateFile& operator=(StateFile&&) = delete;
  ~StateFile();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  StateFile(std::string path, std::span<std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}
  static absl::StatusOr<StateFile> Map(std::string path, int file, uint64_t bytes, bool write);
  std::string path_;
  std::span<std::byte> bytes_;
};

// Writes the state of tokens [0, tokens.size()) from the lease, which has them all readable. Heads
// and dims are those of `spec`.
absl::StatusOr<StateFile> WriteState(const interop::LlamaContext& context, const SpaceSpec& spec,
                                     std::span<const uint32_t> tokens, Lease& lease,
                                     const std::string& path);

// Stores what the cache lacks of a saved state, up to its last token, where a sequence ends; turns
// end at `turn_ends` too. FailedPrecondition if the state is not of `context`.
absl::StatusOr<CommitInfo> StoreState(const interop::LlamaContext& context, const SpaceSpec& spec,
                                      const StateFile& file, const interop::LlamaStateMap& map,
                                      std::span<const uint32_t> turn_ends, Space& space);

}  // namespace prefixd::llama
