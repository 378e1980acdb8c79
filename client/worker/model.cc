#include "client/worker/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/worker/host_device.h"

namespace prefixd::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the floats in a row of the widest projection.
size_t ProjectionWidth(const ModelConfig& config, size_t query_width, size_t kv_width) {
  const size_t attention = (config.gated_attention ? 2 : 1) * query_width + 2 * kv_width;
  if (!config.has(LayerType::kGatedDelta)) return attention;
  return std::max(attention, DeltaRow(config.delta).floats);
}

std::shared_ptr<Device> OrHost(const Model::Options& options) {
  return options.device != nullptr ? options.device : std::make_shared<HostDevice>(options.threads);
}

}  // namespace

Model::Model(ModelConfig config, Weights weights, const Options& options)
    : config_(std::move(config)),
      options_(options),
      device_(OrHost(options)),
      weights_(std::move(weights)),
      placed_(Place(weights_, *device_)),
      query_width_(config_.query_heads * config_.head_dim),
      kv_width_(config_.kv_heads * config_.head_dim),
      attention_scale_(config_.attention_scale > 0
                           ? config_.attention_scale
                           : 1.0F / std::sqrt(static_cast<float>(config_.head_dim))),
      rope_{.rope = Rope(config_.rotary_dim > 0 ? config_.rotary_dim : config_.head_dim,
                         config_.rope_theta, config_.rope_scaling)},
      local_rope_{.rope = Rope(config_.head_dim, config_.local_rope_theta)},
      final_(*device_, config_.hidden_size),
      folded_(*device_, placed_.head.rows),
      host_folded_(placed_.head.rows),
      logits_(config_.vocab_size) {
  if (!device_->uses_host_memory()) {
    weights_.layers.clear();
    weights_.head.rows = nullptr;
  }
  if (device_->paged_attention() != nullptr) {
    kv_ = std::make_unique<DeviceKv>(*device_, config_, options_.formats, attention_scale_);
  }
  UseGrid(64);
}

void Model::UseGrid(uint32_t block_tokens) {
  if (block_tokens == block_tokens_) return;
  block_tokens_ = block_tokens;
  const size_t rows = block_tokens;
  ready_ = absl::OkStatus();
  const auto allocate = [&](DeviceFloats* floats, size_t width) {
    *floats = {};  // gives the old ones back first
    *floats = DeviceFloats(*device_, rows * width);
    if (!floats->ok()) ready_ = absl::ResourceExhaustedError("model: no room for activations");
  };
  allocate(&hidden_, config_.hidden_size);
  allocate(&normed_, config_.hidden_size);
  allocate(&qkv_, ProjectionWidth(config_, query_width_, kv_width_));
  allocate(&attended_, std::max(query_width_, config_.delta.values()));
  allocate(&gate_up_, 2 * size_t{config_.intermediate_size});
  allocate(&gated_, config_.intermediate_size);
  allocate(&added_, config_.hidden_size);
  for (DeviceRope* rope : {&rope_, &local_rope_}) {
    allocate(&rope->cos, rope->rope.half());
    allocate(&rope->sin, rope->rope.half());
  }
  embedded_.resize(rows * config_.hidden_size);
  if (!placed_.ok || !final_.ok() || !folded_.ok()) {
    ready_ = absl::ResourceExhaustedError(absl::StrCat(
        "model: the device has no room for the weights, beyond ", placed_.bytes, " bytes of them"));
  }
  if (ready_.ok() && kv_ != nullptr) ready_ = kv_->SetGrid(block_tokens);
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

void Model::Prepare(DeviceRope* rope) {
  rope->rope.Prepare(window_.begin, window_.rows);
  device_->Write(rope->rope.cos(), rope->cos.data());
  device_->Write(rope->rope.sin(), rope->sin.data());
}

void Model::Embed(std::span<const uint32_t> tokens) {
  const size_t width = config_.hidden_size;
  const std::span<float> rows = std::span(embedded_).first(window_.rows * width);
  for (uint32_t i = 0; i < window_.rows; ++i) {
    weights_.embed(tokens[window_.begin + i], rows.subspan(i * width, width));
  }
  device_->Write(rows, Rows(hidden_, width));
}

absl::StatusOr<Model::StepResult> Model::Run(Sequence& sequence, const Step& step,
                                             const Window& window) {
  PREFIXD_RETURN_IF_ERROR(ready_);
  window_ = window;
  ClearIdleRows();
  Prepare(&rope_);
  if (config_.local_rope_theta > 0) Prepare(&local_rope_);
  Embed(step.tokens);
  if (kv_ != nullptr) {
    PREFIXD_RETURN_IF_ERROR(kv_->Begin({.sequence = &sequence,
                                        .state = step.state,
                                        .begin = window.begin,
                                        .rows = window.rows,
                                        .slot = window.slot,
                                        .product = window.product,
                                        .precise = window.mode == AttendMode::kPrecise}));
  }
  const absl::StatusOr<StepResult> result = RunLayers(sequence, step);
  // Waits for the device, which may still read the sequence's pages.
  const absl::Status ended =
      kv_ != nullptr && result.ok() && !result->cache_shrank ? kv_->End() : Finish();
  PREFIXD_RETURN_IF_ERROR(result.status());
  PREFIXD_RETURN_IF_ERROR(ended);
  return result;
}

absl::Status Model::Finish() {
  const Status finished = device_->Finish();
  if (finished.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("model: ", finished.message));
}

absl::StatusOr<Model::StepResult> Model::RunLayers(Sequence& sequence, const Step& step) {
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
    PREFIXD_RETURN_IF_ERROR(is_delta ? Delta(sequence, layer, step.state)
                                     : Attention(sequence, layer));
    Mlp(placed_.layers[layer]);
  }
  return result;
}

// Zeroes the products' inputs if some rows are idle. Idle rows do not change other rows, but stale
// ones could hold NaN or slow denormals.
void Model::ClearIdleRows() {
  if (window_.rows == window_.product) return;
  for (DeviceFloats* input : {&normed_, &attended_, &gated_}) {
    device_->Clear(input->data(), input->size());
  }
}

void Model::Normalize(const PlacedNorm& norm) {
  const size_t width = config_.hidden_size;
  device_->Normalize(norm, config_.rms_norm_eps,
                     {.data = Rows(hidden_, width), .rows = window_.rows, .row_stride = width},
                     {.data = Rows(normed_, width), .rows = window_.rows, .row_stride = width});
}

void Model::AddToHidden(const PlacedNorm& norm) {
  const size_t width = config_.hidden_size;
  const Vectors added{.data = Rows(added_, width), .rows = window_.rows, .row_stride = width};
  if (norm.weight != nullptr) device_->Normalize(norm, config_.rms_norm_eps, added, added);
  device_->Add(added.data, Rows(hidden_, width), window_.rows * width);
}

void Model::Mlp(const PlacedLayer& layer) {
  Normalize(layer.mlp_norm);
  device_->Multiply(layer.gate_up, window_.product, normed_.data(), gate_up_.data());
  const uint32_t width = config_.intermediate_size;
  device_->Gate(config_.activation, width, window_.rows, Rows(gate_up_, 2 * size_t{width}),
                Rows(gated_, width));
  device_->Multiply(layer.down, window_.product, gated_.data(), added_.data());
  AddToHidden(layer.mlp_out_norm);
}

std::span<const float> Model::Logits(uint32_t position) {
  const size_t row = window_.slot + (position - window_.begin);
  device_->Normalize(placed_.final_norm, config_.rms_norm_eps,
                     {.data = hidden_.data() + row * config_.hidden_size}, {.data = final_.data()});
  device_->Multiply(placed_.head, 1, final_.data(), folded_.data());
  const std::vector<float>& scale = weights_.head.scale;
  std::vector<float>& read = scale.empty() ? logits_ : host_folded_;
  const Status status = device_->Read(folded_.data(), read);
  if (!status.ok()) {
    ready_ = absl::InternalError(absl::StrCat("model: logits: ", status.message));
    std::ranges::fill(logits_, 0.0F);
  } else if (!scale.empty()) {
    for (uint32_t token = 0; token < config_.vocab_size; ++token) {
      logits_[token] = scale[token] * host_folded_[token % host_folded_.size()];
    }
  }
  return logits_;
}

}  // namespace prefixd::worker
