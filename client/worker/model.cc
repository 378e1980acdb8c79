#include "client/worker/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/worker/layer_math.h"

namespace prefixd::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the floats in a row of the widest projection.
size_t ProjectionWidth(const ModelConfig& config, size_t query_width, size_t kv_width) {
  const size_t attention = (config.gated_attention ? 2 : 1) * query_width + 2 * kv_width;
  if (!config.has(LayerType::kGatedDelta)) return attention;
  return std::max(attention, DeltaRow(config.delta).floats);
}

}  // namespace

Model::Model(ModelConfig config, Weights weights, const Options& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      options_(options),
      query_width_(config_.query_heads * config_.head_dim),
      kv_width_(config_.kv_heads * config_.head_dim),
      attention_scale_(config_.attention_scale > 0
                           ? config_.attention_scale
                           : 1.0F / std::sqrt(static_cast<float>(config_.head_dim))),
      rope_(config_.rotary_dim > 0 ? config_.rotary_dim : config_.head_dim, config_.rope_theta,
            config_.rope_scaling),
      local_rope_(config_.head_dim, config_.local_rope_theta),
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
  allocate(&qkv_, ProjectionWidth(config_, query_width_, kv_width_));
  allocate(&attended_, std::max(query_width_, config_.delta.values()));
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
              .product = block_tokens_,
              .mode = options_.attention.prefill});
}

absl::StatusOr<Model::StepResult> Model::Decode(Sequence& sequence, const Step& step) {
  if (step.end != step.begin + 1 || step.end > step.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: decode from ", step.begin, " to ", step.end, ", one token at a time"));
  }
  return Run(
      sequence, step,
      {.begin = step.begin, .rows = 1, .slot = 0, .product = 1, .mode = options_.attention.decode});
}

absl::StatusOr<Model::StepResult> Model::Run(Sequence& sequence, const Step& step,
                                             const Window& window) {
  window_ = window;
  ClearIdleRows();
  rope_.Prepare(window.begin, window.rows);
  if (config_.local_rope_theta > 0) local_rope_.Prepare(window.begin, window.rows);
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
    const bool is_delta = config_.layer(layer).type == LayerType::kGatedDelta;
    PREFIXD_RETURN_IF_ERROR(is_delta ? Delta(sequence, layer, step.states)
                                     : Attention(sequence, layer));
    Mlp(weights_.layers[layer]);
  }
  return result;
}

// Zeroes the products' inputs if some rows are idle. Idle rows do not change other rows, but stale
// ones could hold NaN or slow denormals.
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

void Model::AddToHidden(const std::vector<float>& norm) {
  const size_t width = config_.hidden_size;
  for (uint32_t row = window_.slot; row < window_.slot + window_.rows; ++row) {
    float* added = added_.data() + row * width;
    if (!norm.empty()) RmsNorm(added, norm, config_.rms_norm_eps, added);
    float* hidden = hidden_.data() + row * width;
    for (size_t i = 0; i < width; ++i) hidden[i] += added[i];
  }
}

void Model::Mlp(const LayerWeights& layer) {
  Normalize(layer.mlp_norm);
  Multiply(*layer.gate_up, window_.product, normed_.data(), gate_up_.data());
  const size_t width = config_.intermediate_size;
  for (uint32_t row = window_.slot; row < window_.slot + window_.rows; ++row) {
    const float* gate = gate_up_.data() + 2 * row * width;
    const float* up = gate + width;
    float* gated = gated_.data() + row * width;
    if (config_.activation == Activation::kSilu) {
      for (size_t i = 0; i < width; ++i) gated[i] = Silu(gate[i]) * up[i];
    } else {
      for (size_t i = 0; i < width; ++i) gated[i] = GeluTanh(gate[i]) * up[i];
    }
  }
  Multiply(*layer.down, window_.product, gated_.data(), added_.data());
  AddToHidden(layer.mlp_out_norm);
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
