// What of a state cannot be cut at any token, as one snapshot: the rows that sliding layers hold,
// which are those of their window, and the states of recurrent layers. llama.cpp keeps exactly a
// window, so that these rows serve this one length alone.
//
// A server goes on from a state only if its sliding cache begins before the window, so that it
// could also step back by a token (pos_min in server-context.cpp of llama.cpp; run against build
// 11549). A restored state gets one more row there, of zeros: no token from its end on attends to
// it, and for fewer tokens the server sees that the window is not all there. While a sequence is no
// longer than the window it has no such row, and no snapshot.
//
// A snapshot: of each K and V of the sliding cache the rows of a window, oldest first; then the
// recurrent states. Functions on memory that the caller keeps alive.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "interop/llama_state.h"

namespace prefixd::llama {

// `window` in tokens. Returns 0 if states of `context` can be cut anywhere.
uint64_t SnapshotBytes(const interop::LlamaContext& context, uint32_t window);

// Writes the snapshot of a mapped state. Returns false, with nothing written, if the state has
// none: its sliding cache does not hold a window and a token. Requires: snapshot has
// SnapshotBytes().
bool TakeSnapshot(const interop::LlamaStateMap& map, std::byte* state,
                  std::span<std::byte> snapshot);

// Returns the first token of each cache of a state of `length` tokens that has a snapshot of this
// size, for LayOutLlamaState. DataLoss if no state so short has one.
absl::StatusOr<std::vector<uint32_t>> FirstTokens(const interop::LlamaContext& context,
                                                  uint64_t snapshot_bytes, uint32_t length);
// Writes rows and states of a snapshot to the state. Requires: `map` is laid out from
// FirstTokens().
void RestoreSnapshot(const interop::LlamaStateMap& map, std::span<const std::byte> snapshot,
                     std::byte* state);

}  // namespace prefixd::llama
