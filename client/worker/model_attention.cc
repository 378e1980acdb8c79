// The parts of a layer that remember: attention, and the gated delta rule.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/worker/gated_delta.h"
#include "client/worker/layer_math.h"
#include "client/worker/model.h"
#include "prefixd/attention.h"

namespace prefixd::worker {
namespace {

absl::Status Checked(const Status& status, const char* what) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("model: ", what, ": ", status.message));
}

bool IsRotated(const TensorFormat& format) { return format.rotation == Rotation::kHadamard; }

void NormHeads(const std::vector<float>& norm, uint32_t heads, float epsilon, float* vectors) {
  for (size_t head = 0; head < heads; ++head) {
    float* vector = vectors + head * norm.size();
    RmsNorm(vector, norm, epsilon, vector);
  }
}

}  // namespace

// `queries`: rows of queries | keys | values, one head's vector after the other.
absl::Status Model::PrepareHeads(const LayerWeights& weights, bool local_rope, float* queries,
                                 size_t stride) const {
  const KvFormat& format = options_.formats[0];
  const Rope& rope = local_rope ? local_rope_ : rope_;
  const size_t dim = config_.head_dim;
  const uint32_t turned = config_.query_heads + config_.kv_heads;  // K follows Q without a gap
  for (uint32_t i = 0; i < window_.rows; ++i) {
    float* row = queries + i * stride;
    float* keys = row + query_width_;
    float* values = keys + kv_width_;
    for (size_t b = 0; b < weights.qkv_bias.size(); ++b) row[b] += weights.qkv_bias[b];
    if (config_.head_norms) {
      NormHeads(weights.query_norm, config_.query_heads, config_.rms_norm_eps, row);
      NormHeads(weights.key_norm, config_.kv_heads, config_.rms_norm_eps, keys);
    }
    rope.Rotate(i, turned, dim, row);
    if (IsRotated(format.key)) {
      PREFIXD_RETURN_IF_ERROR(Checked(prefixd::Rotate(row, turned, 0, config_.head_dim), "rotate"));
    }
    if (IsRotated(format.value)) {
      PREFIXD_RETURN_IF_ERROR(
          Checked(prefixd::Rotate(values, config_.kv_heads, 0, config_.head_dim), "rotate"));
    }
  }
  return absl::OkStatus();
}

void Model::MultiplyByGates(const float* gates, size_t stride, float* out) const {
  for (size_t row = 0; row < window_.rows; ++row) {
    for (size_t i = 0; i < query_width_; ++i) {
      out[row * query_width_ + i] *= Sigmoid(gates[row * stride + i]);
    }
  }
}

absl::Status Model::Attention(Sequence& sequence, uint32_t layer) {
  const LayerWeights& weights = weights_.layers[layer];
  const LayerShape shape = config_.layer(layer);
  Normalize(weights.attention_norm);
  Multiply(*weights.qkv, window_.product, normed_.data(), qkv_.data());

  const size_t stride = weights.qkv->rows;
  float* queries = qkv_.data() + window_.slot * stride;
  float* keys = queries + query_width_;
  float* values = keys + kv_width_;
  PREFIXD_RETURN_IF_ERROR(PrepareHeads(weights, shape.local_rope, queries, stride));
  const auto view = [&](const float* data) {
    return TensorView{.data = data,
                      .dtype = Dtype::kF32,
                      .head_stride = config_.head_dim,
                      .token_stride = stride};
  };
  PREFIXD_RETURN_IF_ERROR(Checked(sequence.Append(static_cast<int>(layer), window_.begin,
                                                  window_.rows, view(keys), view(values)),
                                  "append"));
  float* out = attended_.data() + size_t{window_.slot} * query_width_;
  PREFIXD_RETURN_IF_ERROR(
      Checked(Attend(sequence.block_table(static_cast<int>(layer)), options_.formats, queries, out,
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
              "attend"));
  if (IsRotated(options_.formats[0].value)) {
    const size_t vectors = size_t{window_.rows} * config_.query_heads;
    PREFIXD_RETURN_IF_ERROR(Checked(prefixd::Rotate(out, vectors, 0, config_.head_dim), "rotate"));
  }
  if (config_.gated_attention) MultiplyByGates(values + kv_width_, stride, out);
  Multiply(*weights.attention_out, window_.product, attended_.data(), added_.data());
  AddToHidden(weights.attention_out_norm);
  return absl::OkStatus();
}

absl::Status Model::Delta(Sequence& sequence, uint32_t layer, RecurrentStates* states) {
  if (states == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: layer ", layer, " keeps a state, the step has none"));
  }
  states->resize(config_.layers);
  RecurrentState& state = (*states)[layer];
  PREFIXD_RETURN_IF_ERROR(BringState(sequence, layer, &state));
  const DeltaWeights& weights = weights_.layers[layer].delta;
  Normalize(weights_.layers[layer].attention_norm);
  Multiply(*weights.projections, window_.product, normed_.data(), qkv_.data());
  const size_t stride = weights.projections->rows, width = config_.delta.values();
  for (uint32_t i = 0; i < window_.rows; ++i) {
    const size_t row = size_t{window_.slot} + i;
    DeltaStep(config_.delta, weights, config_.rms_norm_eps, qkv_.data() + row * stride,
              state.values.data(), attended_.data() + row * width);
    ++state.tokens;
    PREFIXD_RETURN_IF_ERROR(PutSnapshots(sequence, layer, state));
  }
  Multiply(*weights.out, window_.product, attended_.data(), added_.data());
  AddToHidden({});
  return absl::OkStatus();
}

// Brings the state to where the step begins.
absl::Status Model::BringState(const Sequence& sequence, uint32_t layer,
                               RecurrentState* state) const {
  if (state->tokens == window_.begin) return absl::OkStatus();
  state->values.assign(DeltaStateFloats(config_.delta), 0);
  if (window_.begin > 0) {
    if (sequence.restorable_tokens() != window_.begin) {
      return absl::InternalError(absl::StrCat("model: no state of layer ", layer, " at token ",
                                              window_.begin, ", the cache has one at ",
                                              sequence.restorable_tokens()));
    }
    PREFIXD_RETURN_IF_ERROR(
        Checked(sequence.GetState(static_cast<int>(layer), state->bytes()), "state"));
  }
  state->tokens = window_.begin;
  return absl::OkStatus();
}

absl::Status Model::PutSnapshots(Sequence& sequence, uint32_t layer, RecurrentState& state) const {
  const std::span<const uint32_t> wanted = sequence.snapshots_wanted();
  if (!std::binary_search(wanted.begin(), wanted.end(), state.tokens)) return absl::OkStatus();
  return Checked(sequence.PutState(static_cast<int>(layer), state.tokens, state.bytes()),
                 "snapshot");
}

absl::Status PutStates(Sequence& sequence, RecurrentStates& states) {
  for (size_t layer = 0; layer < states.size(); ++layer) {
    RecurrentState& state = states[layer];
    if (state.values.empty()) continue;
    PREFIXD_RETURN_IF_ERROR(Checked(
        sequence.PutState(static_cast<int>(layer), state.tokens, state.bytes()), "snapshot"));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::worker
