// A state of llama.cpp on its way: from leased pages into memory, and from memory into the cache.
// Each byte is copied once. The memory is a file that a server reads or wrote, or a buffer of a
// process that has llama.cpp in itself.
//
// Functions on values that belong to one thread at a time.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/llama_state.h"
#include "prefixd/client.h"

namespace prefixd::llama {

// Returns where a state of the first `length` tokens holds what; a state in memory has no `tokens`.
// DataLoss if no state so short can be restored.
absl::StatusOr<interop::LlamaStateMap> LayOutState(const interop::LlamaContext& context,
                                                   const SpaceSpec& spec,
                                                   std::span<const uint32_t> tokens,
                                                   uint32_t length);
// Writes that state from the lease, which has all its tokens readable. Heads and dims are those of
// `spec`. Requires: `map` is of LayOutState(), state has map.bytes.
absl::Status FillState(const interop::LlamaStateMap& map, const SpaceSpec& spec, Lease& lease,
                       std::span<std::byte> state);

struct StoreOptions {
  std::span<const uint32_t> turn_ends{};                       // beside the last token
  std::chrono::milliseconds deadline = std::chrono::hours(1);  // of all calls to the daemon
};
// Stores what the cache lacks of a state, or of one cut at a checkpoint, up to its last token,
// where a sequence ends. FailedPrecondition if the state is not of `context`. DeadlineExceeded if
// the time was over; what was stored until then stays.
absl::StatusOr<CommitInfo> StoreState(const interop::LlamaContext& context, const SpaceSpec& spec,
                                      std::span<const std::byte> state,
                                      const interop::LlamaStateMap& map,
                                      const StoreOptions& options, Space& space);

}  // namespace prefixd::llama
