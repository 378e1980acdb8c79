#include "client/worker/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"

#include "base/status.h"
#include "prefixd/attention.h"

namespace prefixd::worker {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status Checked(const Status& status, const char* what) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("model: ", what, ": ", status.message));
}

void RmsNorm(const float* in, const std::vector<float>& weight, float epsilon, float* out) {
  const size_t width = weight.size();
  double squares = 0;
  for (size_t i = 0; i < width; ++i) squares += double{in[i]} * double{in[i]};
  const float mean = static_cast<float>(squares / static_cast<double>(width));
  const float factor = 1.0F / std::sqrt(mean + epsilon);
  for (size_t i = 0; i < width; ++i) out[i] = weight[i] * (in[i] * factor);
}

bool IsRotated(const TensorFormat& format) { return format.rotation == Rotation::kHadamard; }

float Silu(float x) { return x / (1.0F + std::exp(-x)); }

}  // namespace

Model::Model(ModelConfig config, Weights weights, const Options& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      options_(options),
      query_width_(config_.query_heads * config_.head_dim),
      kv_width_(config_.kv_heads * config_.head_dim),
      rope_(config_.head_dim, config_.rope_theta),
      final_(config_.hidden_size),
      folded_(weights_.head.rows->rows),
      logits_(config_.vocab_size) {
  SetProductThreads(options_.threads);
  UseGrid(64);
}

void Model::UseGrid(uint32_t block_tokens) {
  if (block_tokens == block_tokens_) return;
  block_tokens_ = block_tokens;
  const auto allocate = [rows = size_t{block_tokens}](Floats* floats, size_t width) {
    *floats = Floats(rows * width);
    floats->Fill(0);
  };
  allocate(&hidden_, config_.hidden_size);
  allocate(&normed_, config_.hidden_size);
  allocate(&qkv_, query_width_ + 2 * kv_width_);
  allocate(&attended_, query_width_);
  allocate(&gate_up_, 2 * size_t{config_.intermediate_size});
  allocate(&gated_, config_.intermediate_size);
  allocate(&added_, config_.hidden_size);
}

absl::StatusOr<Model::StepResult> Model::Prefill(Sequence& sequence, const Step& step) {
  if (step.begin >= step.end || step.end > StepEnd(step.begin) || step.end > step.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("model: step from ", step.begin, " to ",
                                                   step.end, " of ", step.tokens.size(),
                                                   " tokens leaves the grid of ", block_tokens_));
  }
  return Run(sequence, step,
             {.begin = step.begin,
              .rows = step.end - step.begin,
              .slot = step.begin % block_tokens_,
              .product = block_tokens_});
}

absl::StatusOr<Model::StepResult> Model::Decode(Sequence& sequence, const Step& step) {
  if (step.end != step.begin + 1 || step.end > step.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: decode from ", step.begin, " to ", step.end, ", one token at a time"));
  }
  return Run(
      sequence, step,
      {.begin = step.begin, .rows = 1, .slot = 0, .product = 1, .mode = options_.decode_mode});
}

absl::StatusOr<Model::StepResult> Model::Run(Sequence& sequence, const Step& step,
                                             const Window& window) {
  window_ = window;
  ClearIdleRows();
  rope_.Prepare(window.begin, window.rows);
  const size_t width = config_.hidden_size;
  for (uint32_t i = 0; i < window.rows; ++i) {
    weights_.embed(step.tokens[window.begin + i],
                   hidden_.span().subspan((window.slot + i) * width, width));
  }
  StepResult result;
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    const auto before = Clock::now();
    const uint32_t usable = sequence.Wait(static_cast<int>(layer));
    result.waited += Clock::now() - before;
    if (usable < step.cached) {
      result.cache_shrank = true;
      return result;
    }
    PREFIXD_RETURN_IF_ERROR(Attention(sequence, layer));
    Mlp(weights_.layers[layer]);
  }
  return result;
}

// Zero rows go through a product unseen; stale ones would too, but could be NaN or slow denormals.
void Model::ClearIdleRows() {
  if (window_.rows == window_.product) return;
  for (Floats* input : {&normed_, &attended_, &gated_}) input->Fill(0);
}

void Model::Normalize(const std::vector<float>& weight) {
  for (uint32_t row = window_.slot; row < window_.slot + window_.rows; ++row) {
    const size_t at = size_t{row} * config_.hidden_size;
    RmsNorm(hidden_.data() + at, weight, config_.rms_norm_eps, normed_.data() + at);
  }
}

void Model::AddToHidden() {
  const size_t width = config_.hidden_size;
  const size_t end = (size_t{window_.slot} + window_.rows) * width;
  for (size_t i = window_.slot * width; i < end; ++i) hidden_.data()[i] += added_.data()[i];
}

// queries: rows of queries | keys | values, a head's vector behind the other.
absl::Status Model::RotateInputs(float* queries, size_t stride) const {
  const KvFormat& format = options_.formats[0];
  const size_t turned = IsRotated(format.key) ? config_.query_heads + config_.kv_heads : 0;
  float* values = queries + query_width_ + kv_width_;
  for (uint32_t i = 0; i < window_.rows; ++i) {
    if (turned > 0) {
      PREFIXD_RETURN_IF_ERROR(
          Checked(Rotate(queries + i * stride, turned, 0, config_.head_dim), "rotate"));
    }
    if (IsRotated(format.value)) {
      PREFIXD_RETURN_IF_ERROR(
          Checked(Rotate(values + i * stride, config_.kv_heads, 0, config_.head_dim), "rotate"));
    }
  }
  return absl::OkStatus();
}

absl::Status Model::Attention(Sequence& sequence, uint32_t layer) {
  const LayerWeights& weights = weights_.layers[layer];
  Normalize(weights.attention_norm);
  Multiply(*weights.qkv, window_.product, normed_.data(), qkv_.data());

  const size_t stride = weights.qkv->rows;
  float* queries = qkv_.data() + window_.slot * stride;
  float* keys = queries + query_width_;
  float* values = keys + kv_width_;
  for (uint32_t i = 0; i < window_.rows; ++i) {  // K follows Q without a gap
    rope_.Rotate(i, config_.query_heads + config_.kv_heads, queries + i * stride);
  }
  PREFIXD_RETURN_IF_ERROR(RotateInputs(queries, stride));
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
                      .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim)),
                      .threads = options_.threads,
                      .mode = window_.mode,
                      .query_row_stride = stride,
                      .query_head_stride = config_.head_dim,
                      .out_row_stride = query_width_,
                      .out_head_stride = config_.head_dim}),
              "attend"));
  if (IsRotated(options_.formats[0].value)) {
    const size_t vectors = size_t{window_.rows} * config_.query_heads;
    PREFIXD_RETURN_IF_ERROR(Checked(Rotate(out, vectors, 0, config_.head_dim), "rotate"));
  }
  Multiply(*weights.attention_out, window_.product, attended_.data(), added_.data());
  AddToHidden();
  return absl::OkStatus();
}

void Model::Mlp(const LayerWeights& layer) {
  Normalize(layer.mlp_norm);
  Multiply(*layer.gate_up, window_.product, normed_.data(), gate_up_.data());
  const size_t width = config_.intermediate_size;
  for (uint32_t row = window_.slot; row < window_.slot + window_.rows; ++row) {
    const float* gate = gate_up_.data() + 2 * row * width;
    const float* up = gate + width;
    float* gated = gated_.data() + row * width;
    for (size_t i = 0; i < width; ++i) gated[i] = Silu(gate[i]) * up[i];
  }
  Multiply(*layer.down, window_.product, gated_.data(), added_.data());
  AddToHidden();
}

std::span<const float> Model::Logits(uint32_t position) {
  const size_t row = window_.slot + (position - window_.begin);
  RmsNorm(hidden_.data() + row * config_.hidden_size, weights_.final_norm, config_.rms_norm_eps,
          final_.data());
  const OutputHead& head = weights_.head;
  if (head.scale.empty()) {
    Multiply(*head.rows, 1, final_.data(), logits_.data());
    return logits_.span();
  }
  Multiply(*head.rows, 1, final_.data(), folded_.data());
  for (uint32_t token = 0; token < config_.vocab_size; ++token) {
    logits_.data()[token] = head.scale[token] * folded_.data()[token % head.rows->rows];
  }
  return logits_.span();
}

}  // namespace prefixd::worker
