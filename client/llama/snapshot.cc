#include "client/llama/snapshot.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "client/llama/state_tensors.h"

namespace prefixd::llama {
namespace {

bool HasSliding(const interop::LlamaContext& context) { return context.caches.size() > 1; }

uint64_t SlidingTokenBytes(const interop::LlamaContext& context) {
  uint64_t bytes = 0;
  for (const interop::LlamaTensor& tensor : context.caches[1].keys) bytes += tensor.token_bytes;
  for (const interop::LlamaTensor& tensor : context.caches[1].values) bytes += tensor.token_bytes;
  return bytes;
}

uint32_t WindowOf(const interop::LlamaContext& context, uint64_t snapshot_bytes) {
  const uint64_t rows = snapshot_bytes - context.recurrent_bytes;
  return static_cast<uint32_t>(rows / SlidingTokenBytes(context));
}

// Calls copy(tensor of the sliding cache, offset of its rows in a snapshot).
template <typename Copy>
void ForEachTensor(const interop::LlamaStateMap& map, std::byte* state, uint32_t window,
                   const Copy& copy) {
  const StateTensors tensors = TensorsOf(map.context.caches[1], map.caches[1], state);
  size_t at = 0;
  for (const std::vector<StateTensor>* each : {&tensors.keys, &tensors.values}) {
    for (const StateTensor& tensor : *each) {
      copy(tensor, at);
      at += window * tensor.token_bytes;
    }
  }
}

}  // namespace

uint64_t SnapshotBytes(const interop::LlamaContext& context, uint32_t window) {
  const uint64_t sliding = HasSliding(context) ? window * SlidingTokenBytes(context) : 0;
  return sliding + context.recurrent_bytes;
}

bool TakeSnapshot(const interop::LlamaStateMap& map, std::byte* state,
                  std::span<std::byte> snapshot) {
  if (HasSliding(map.context)) {
    const interop::LlamaCacheMap& sliding = map.caches[1];
    const uint32_t window = WindowOf(map.context, snapshot.size());
    if (sliding.cells < window || map.length <= window) return false;
    const Cells cells(sliding);
    ForEachTensor(map, state, window, [&](const StateTensor& tensor, size_t at) {
      CopyRowsOut(tensor, cells, sliding.cells - window, window, &snapshot[at]);
    });
  }
  const uint64_t states = map.context.recurrent_bytes;
  if (states != 0) std::memcpy(&snapshot[snapshot.size() - states], state + map.recurrent, states);
  return true;
}

absl::StatusOr<std::vector<uint32_t>> FirstTokens(const interop::LlamaContext& context,
                                                  uint64_t snapshot_bytes, uint32_t length) {
  if (!HasSliding(context)) return std::vector<uint32_t>{0};
  const uint32_t window = WindowOf(context, snapshot_bytes);
  if (length <= window) {
    return absl::DataLossError(
        absl::StrCat("a snapshot after ", length, " tokens, of a window of ", window));
  }
  return std::vector<uint32_t>{0, length - window - 1};
}

void RestoreSnapshot(const interop::LlamaStateMap& map, std::span<const std::byte> snapshot,
                     std::byte* state) {
  if (HasSliding(map.context)) {
    const uint32_t window = WindowOf(map.context, snapshot.size());
    ForEachTensor(map, state, window, [&](const StateTensor& tensor, size_t at) {
      const std::vector<std::byte> zeros(tensor.token_bytes);
      CopyRowsIn(tensor, 0, 1, zeros.data());
      CopyRowsIn(tensor, 1, window, &snapshot[at]);
    });
  }
  const uint64_t states = map.context.recurrent_bytes;
  if (states != 0) std::memcpy(state + map.recurrent, &snapshot[snapshot.size() - states], states);
}

}  // namespace prefixd::llama
