#include "client/llama/cached_state.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "client/llama/snapshot.h"
#include "client/llama/state_tensors.h"

namespace prefixd::llama {
namespace {

using interop::LlamaContext;
using interop::LlamaStateMap;
using Clock = std::chrono::steady_clock;

absl::Status ToAbsl(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::FailedPreconditionError(status.message);
}

// A layer with K and V for all tokens, in the order of the space.
struct Layer {
  int number = 0;
  uint32_t heads = 0;
  StateTensor keys, values;
};

std::vector<Layer> LayersOf(const LlamaStateMap& map, const SpaceSpec& spec, std::byte* state) {
  std::vector<Layer> layers;
  const StateTensors tensors = TensorsOf(map.context.caches[0], map.caches[0], state);
  for (size_t i = 0; i < tensors.keys.size(); ++i) {
    layers.push_back({.number = static_cast<int>(i),
                      .heads = spec.layers[i].kv_heads,
                      .keys = tensors.keys[i],
                      .values = tensors.values[i]});
  }
  return layers;
}

// Rows of tokens as the client takes and gives them.
template <typename View, typename Pointer>
View Dense(const StateTensor& tensor, uint32_t heads, Pointer rows) {
  View view;
  view.codes = rows;
  view.codes_head_stride = tensor.token_bytes / heads;
  view.codes_token_stride = tensor.token_bytes;
  return view;
}

// Returns tokens [begin, begin + count) of a saved tensor, copied to `scratch` where they do not
// stand one behind the other.
PackedView RowsOf(const Layer& layer, const StateTensor& tensor, const Cells& cells, uint32_t begin,
                  uint32_t count, std::vector<std::byte>* scratch) {
  const std::byte* rows = tensor.rows + begin * tensor.token_bytes;
  if (tensor.element != 0 || !cells.in_order()) {
    scratch->resize(count * tensor.token_bytes);
    CopyRowsOut(tensor, cells, begin, count, scratch->data());
    rows = scratch->data();
  }
  return Dense<PackedView>(tensor, layer.heads, rows);
}

absl::Status WriteRun(const Layer& layer, const Cells& cells, const TokenRun& run, Plan* plan) {
  std::vector<std::byte> key_scratch, value_scratch;
  const uint32_t count = run.end - run.begin;
  const PackedView keys = RowsOf(layer, layer.keys, cells, run.begin, count, &key_scratch);
  const PackedView values = RowsOf(layer, layer.values, cells, run.begin, count, &value_scratch);
  return ToAbsl(plan->WritePacked(layer.number, run.begin, count, keys, values));
}

// Returns the size of the snapshots of a space; 0 if it has none.
uint64_t SnapshotBytesOf(const SpaceSpec& spec) {
  const LayerSpec& last = spec.layers.back();
  return last.kind == LayerKind::kState ? last.state_bytes : 0;
}

// The time that a store may still take.
class Budget {
 public:
  explicit Budget(std::chrono::milliseconds whole) : whole_(whole), begin_(Clock::now()) {}
  std::chrono::milliseconds AtMost(std::chrono::milliseconds wanted) const {
    return std::max(std::chrono::milliseconds(1), std::min(wanted, Left()));
  }
  absl::Status Check(uint32_t token) const {
    if (Left() > std::chrono::milliseconds(0)) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("the time to store was over at token ", token));
  }

 private:
  std::chrono::milliseconds Left() const {
    return whole_ - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
  }
  const std::chrono::milliseconds whole_;
  const Clock::time_point begin_;
};

}  // namespace

absl::StatusOr<LlamaStateMap> LayOutState(const LlamaContext& context, const SpaceSpec& spec,
                                          std::span<const uint32_t> tokens, uint32_t length) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> first,
                           FirstTokens(context, SnapshotBytesOf(spec), length));
  return interop::LayOutLlamaState(context, tokens, length, first);
}

absl::Status FillState(const LlamaStateMap& map, const SpaceSpec& spec, Lease& lease,
                       std::span<std::byte> state) {
  std::vector<std::byte> snapshot(SnapshotBytesOf(spec));
  if (!snapshot.empty()) {
    PREFIXD_RETURN_IF_ERROR(
        ToAbsl(lease.GetState(static_cast<int>(spec.layers.size()) - 1, snapshot)));
  }
  interop::WriteLlamaHeads(map, state);
  std::vector<std::byte> scratch;
  for (const Layer& layer : LayersOf(map, spec, state.data())) {
    std::byte* value_rows = layer.values.rows;
    if (layer.values.element != 0) {
      scratch.resize(map.length * layer.values.token_bytes);
      value_rows = scratch.data();
    }
    PREFIXD_RETURN_IF_ERROR(
        ToAbsl(lease.Gather(layer.number, 0, map.length,
                            Dense<MutablePackedView>(layer.keys, layer.heads, layer.keys.rows),
                            Dense<MutablePackedView>(layer.values, layer.heads, value_rows))));
    if (layer.values.element != 0) CopyRowsIn(layer.values, 0, map.length, scratch.data());
  }
  RestoreSnapshot(map, snapshot, state.data());
  return absl::OkStatus();
}

absl::StatusOr<CommitInfo> StoreState(const LlamaContext& context, const SpaceSpec& spec,
                                      std::span<const std::byte> state, const LlamaStateMap& map,
                                      const StoreOptions& options, Space& space) {
  if (map.context != context) {
    return absl::FailedPreconditionError("the saved state is of another context of llama.cpp");
  }
  if (map.tokens.size() < map.length) {
    return absl::FailedPreconditionError(
        absl::StrCat("the saved state has ", map.tokens.size(), " tokens for ", map.length));
  }
  const std::span<const uint32_t> tokens(map.tokens.data(), map.length);
  auto* const rows = const_cast<std::byte*>(state.data());  // only read here
  std::vector<std::byte> snapshot(SnapshotBytesOf(spec));
  const bool has_snapshot = !snapshot.empty() && TakeSnapshot(map, rows, snapshot);
  const Budget budget(options.deadline);
  // No request waits for this: the announcement may take as long as a commit.
  const auto call = [&] { return budget.AtMost(CommitOptions{}.deadline); };
  Plan plan = space.Reserve(tokens, {.turn_ends = options.turn_ends, .deadline = call()});
  PREFIXD_RETURN_IF_ERROR(ToAbsl(plan.status()));
  CommitInfo all;
  const auto commit = [&](uint32_t end, bool last) {
    const Result<CommitInfo> done = plan.Commit(end, {.sequence_end = last, .deadline = call()});
    if (done.ok()) {
      all.stored_tokens += done.value().stored_tokens;
      all.duplicate_tokens += done.value().duplicate_tokens;
    }
    return ToAbsl(done.status);
  };
  if (has_snapshot) {
    // An error means that the cache has this state.
    plan.PutState(static_cast<int>(spec.layers.size()) - 1, map.length, snapshot);
  }
  const std::vector<Layer> layers = LayersOf(map, spec, rows);
  const Cells cells(map.caches[0]);
  for (const TokenRun run : std::vector<TokenRun>(plan.missing().begin(), plan.missing().end())) {
    PREFIXD_RETURN_IF_ERROR(budget.Check(run.begin));
    for (const Layer& layer : layers) {
      PREFIXD_RETURN_IF_ERROR(WriteRun(layer, cells, run, &plan));
    }
    if (run.end < tokens.size()) PREFIXD_RETURN_IF_ERROR(commit(run.end, false));
  }
  PREFIXD_RETURN_IF_ERROR(commit(map.length, true));
  return all;
}

}  // namespace prefixd::llama
