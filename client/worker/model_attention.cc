// The parts of a layer that remember: attention, and the gated delta rule.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/worker/gated_delta.h"
#include "client/worker/model.h"
#include "prefixd/attention.h"

namespace prefixd::worker {
namespace {

absl::Status Checked(const Status& status, const char* what) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("model: ", what, ": ", status.message));
}

absl::Status PutState(Sequence& sequence, uint32_t layer, const RecurrentState& state) {
  std::vector<float> values(state.values.size());
  PREFIXD_RETURN_IF_ERROR(
      Checked(state.values.device()->Read(state.values.data(), values), "state"));
  return Checked(
      sequence.PutState(static_cast<int>(layer), state.tokens, std::as_bytes(std::span(values))),
      "snapshot");
}

bool IsRotated(const TensorFormat& format) { return format.rotation == Rotation::kHadamard; }

}  // namespace

// `queries`: rows of queries | keys | values, one head's vector after the other.
void Model::PrepareHeads(const PlacedLayer& weights, bool local_rope, float* queries,
                         size_t stride) {
  const KvFormat& format = options_.formats[0];
  const DeviceRope& rope = local_rope ? local_rope_ : rope_;
  const uint32_t dim = config_.head_dim;
  const auto heads = [&](size_t from, uint32_t count) {
    return Vectors{.data = queries + from,
                   .rows = window_.rows,
                   .row_stride = stride,
                   .heads = count,
                   .head_stride = dim};
  };
  const Vectors turned = heads(0, config_.query_heads + config_.kv_heads);  // K follows Q at once
  if (weights.qkv_bias != nullptr) {
    device_->AddBias(weights.qkv_bias, weights.qkv_bias_width, turned);
  }
  if (config_.head_norms) {
    const Vectors q = heads(0, config_.query_heads), k = heads(query_width_, config_.kv_heads);
    device_->Normalize(weights.query_norm, config_.rms_norm_eps, q, q);
    device_->Normalize(weights.key_norm, config_.rms_norm_eps, k, k);
  }
  device_->TurnByPosition(rope.cos.data(), rope.sin.data(), rope.rope.half(), turned);
  if (IsRotated(format.key)) device_->TurnHadamard(dim, turned);
  if (IsRotated(format.value)) {
    device_->TurnHadamard(dim, heads(query_width_ + kv_width_, config_.kv_heads));
  }
}

absl::Status Model::Attention(Sequence& sequence, uint32_t layer) {
  const PlacedLayer& weights = placed_.layers[layer];
  Normalize(weights.attention_norm);
  device_->Multiply(weights.qkv, window_.product, normed_.data(), qkv_.data());

  const size_t stride = weights.qkv.rows;
  float* queries = Rows(qkv_, stride);
  PrepareHeads(weights, config_.layer(layer).local_rope, queries, stride);
  float* out = Rows(attended_, query_width_);
  PREFIXD_RETURN_IF_ERROR(kv_ != nullptr ? kv_->Attend(layer, qkv_.data(), stride, attended_.data())
                                         : AttendOnHost(sequence, layer, queries, stride, out));
  const Vectors results{.data = out,
                        .rows = window_.rows,
                        .row_stride = query_width_,
                        .heads = config_.query_heads,
                        .head_stride = config_.head_dim};
  if (IsRotated(options_.formats[0].value)) device_->TurnHadamard(config_.head_dim, results);
  if (config_.gated_attention) {
    device_->MultiplyBySigmoid(queries + query_width_ + 2 * size_t{kv_width_}, stride, query_width_,
                               results);
  }
  device_->Multiply(weights.attention_out, window_.product, attended_.data(), added_.data());
  AddToHidden(weights.attention_out_norm);
  return absl::OkStatus();
}

absl::Status Model::AttendOnHost(Sequence& sequence, uint32_t layer, const float* queries,
                                 size_t stride, float* out) {
  const LayerShape shape = config_.layer(layer);
  const auto view = [&](const float* data) {
    return TensorView{.data = data,
                      .dtype = Dtype::kF32,
                      .head_stride = config_.head_dim,
                      .token_stride = stride};
  };
  const float* keys = queries + query_width_;
  PREFIXD_RETURN_IF_ERROR(Checked(sequence.Append(static_cast<int>(layer), window_.begin,
                                                  window_.rows, view(keys), view(keys + kv_width_)),
                                  "append"));
  return Checked(
      Attend(sequence.block_table(static_cast<int>(layer)), options_.formats, queries, out,
             {.query_rows = window_.rows,
              .query_heads = config_.query_heads,
              .kv_heads = config_.kv_heads,
              .key_dim = config_.head_dim,
              .value_dim = config_.head_dim,
              .first_position = window_.begin,
              .scale = attention_scale_,
              .threads = options_.threads,
              .mode = window_.mode,
              .window = shape.window,
              .sink_tokens = shape.sink_tokens,
              .query_row_stride = stride,
              .query_head_stride = config_.head_dim,
              .out_row_stride = query_width_,
              .out_head_stride = config_.head_dim}),
      "attend");
}

absl::Status Model::Delta(Sequence& sequence, uint32_t layer, RunningState* running) {
  if (running == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: layer ", layer, " keeps a state, the step has none"));
  }
  running->recurrent.resize(config_.layers);
  RecurrentState& state = running->recurrent[layer];
  PREFIXD_RETURN_IF_ERROR(BringState(sequence, layer, &state));
  const PlacedLayer& weights = placed_.layers[layer];
  Normalize(weights.attention_norm);
  device_->Multiply(weights.delta_projections, window_.product, normed_.data(), qkv_.data());
  const size_t stride = weights.delta_projections.rows, width = config_.delta.values();
  const uint32_t end = window_.begin + window_.rows;
  while (state.tokens < end) {
    const std::span<const uint32_t> wanted = sequence.snapshots_wanted();
    const auto next = std::ranges::upper_bound(wanted, state.tokens);
    const bool puts = next != wanted.end() && *next <= end;
    const uint32_t until = puts ? *next : end;
    const size_t row = window_.slot + (state.tokens - window_.begin);
    device_->Delta({.shape = config_.delta,
                    .weights = weights.delta,
                    .norm_epsilon = config_.rms_norm_eps,
                    .tokens = until - state.tokens,
                    .projections = qkv_.data() + row * stride,
                    .projections_stride = stride,
                    .state = state.values.data(),
                    .out = attended_.data() + row * width});
    state.tokens = until;
    if (puts) PREFIXD_RETURN_IF_ERROR(PutState(sequence, layer, state));
  }
  device_->Multiply(weights.delta_out, window_.product, attended_.data(), added_.data());
  AddToHidden({});
  return absl::OkStatus();
}

// Brings the state to where the step begins.
absl::Status Model::BringState(const Sequence& sequence, uint32_t layer, RecurrentState* state) {
  if (state->tokens == window_.begin) return absl::OkStatus();
  const size_t floats = DeltaStateFloats(config_.delta);
  if (state->values.empty()) state->values = DeviceFloats(*device_, floats);
  if (!state->values.ok()) return absl::ResourceExhaustedError("model: no room for a state");
  if (window_.begin == 0) {
    device_->Clear(state->values.data(), floats);
  } else {
    if (sequence.restorable_tokens() != window_.begin) {
      return absl::InternalError(absl::StrCat("model: no state of layer ", layer, " at token ",
                                              window_.begin, ", the cache has one at ",
                                              sequence.restorable_tokens()));
    }
    std::vector<float> values(floats);
    PREFIXD_RETURN_IF_ERROR(Checked(
        sequence.GetState(static_cast<int>(layer), std::as_writable_bytes(std::span(values))),
        "state"));
    device_->Write(values, state->values.data());
  }
  state->tokens = window_.begin;
  return absl::OkStatus();
}

absl::Status PutStates(Sequence& sequence, const RunningState& state) {
  for (uint32_t layer = 0; layer < state.recurrent.size(); ++layer) {
    if (state.recurrent[layer].values.empty()) continue;
    PREFIXD_RETURN_IF_ERROR(PutState(sequence, layer, state.recurrent[layer]));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::worker
