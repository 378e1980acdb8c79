// A decoder (see model_config.h for the families) whose attention runs on the KV of a prefixd
// Sequence.
//
// The fixed prefill grid: prompt tokens are computed in steps that end at multiples of
// block_tokens. A step's weight products always have block_tokens rows, and a token's row is its
// position modulo block_tokens, whether one token of the block is computed or all. A token's result
// therefore depends only on the tokens before it: after a hit of any length, also one that ends
// inside a block, every later bit is what the cold run computes, on the same machine and thread
// count. Decoding always uses one-row products.
//
// Layers of kind kGatedDelta keep a state beside the sequence, in RunningState. A step takes the
// state from `begin` to `end`, token by token. If the state stands elsewhere, it begins anew at
// token 0 or comes from the sequence's snapshot at `begin`. The model puts every snapshot that the
// sequence wants.
//
// The arithmetic is a Device's: the CPU's, or a GPU's, which then has the weights and, for each
// running sequence, pages of its own (device_kv.h).
//
// If the formats say Rotation::kHadamard, the model turns queries and keys after RoPE, values
// before they are stored, and the output of attention back.
//
// One thread at a time. Activations are allocated once, for block_tokens rows.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/device.h"
#include "client/worker/device_kv.h"
#include "client/worker/kv_format.h"
#include "client/worker/model_config.h"
#include "client/worker/placed_weights.h"
#include "client/worker/rope.h"
#include "client/worker/running_state.h"
#include "client/worker/weights.h"
#include "prefixd/attention.h"
#include "prefixd/client.h"

namespace prefixd::worker {

class Model {
 public:
  struct Options {
    // Formats that the sequence's space stores (LayerSpec::formats), the same for all layers.
    // Requires: at least one, all of the same rotation.
    std::vector<KvFormat> formats;
    uint32_t threads = 1;
    AttentionModes attention = {};
    std::shared_ptr<Device> device = nullptr;  // null: the CPU
  };
  // The grid is 64 tokens until UseGrid() says otherwise.
  Model(ModelConfig config, Weights weights, const Options& options);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Tokens of `tokens` to compute: [begin, end).
  struct Step {
    std::span<const uint32_t> tokens;
    uint32_t begin = 0;
    uint32_t end = 0;
    uint32_t cached = 0;  // tokens that the sequence promised from the cache
    // The state of the same sequence. It may be null on the CPU if no layer is kGatedDelta.
    RunningState* state = nullptr;
  };
  struct StepResult {
    // Pages of the cache turned out bad: nothing of this step counts, and the caller must restart
    // the sequence.
    bool cache_shrank = false;
    std::chrono::nanoseconds waited{0};  // time spent waiting for pages
  };

  // Computes one step of the prompt. Requires: begin < end, both in one block of the grid; every
  // token before `begin` is in `sequence`. Internal if the sequence does not take the K and V, or
  // if the device fails.
  absl::StatusOr<StepResult> Prefill(Sequence& sequence, const Step& step);

  // Computes one token after the prompt. Requires: end == begin + 1, and PushToken() has announced
  // the token.
  absl::StatusOr<StepResult> Decode(Sequence& sequence, const Step& step);

  // Returns the logits of the token after `position`: [vocab_size], valid until the next call. All
  // are 0 if the device failed, which the next step tells. Requires: the last step computed
  // `position`.
  std::span<const float> Logits(uint32_t position);

  // Moves to another grid; cheap if it is the same. Sequences that began before must not go on.
  void UseGrid(uint32_t block_tokens);

  // Returns the latest end of a step from `begin`: the next multiple of block_tokens.
  uint32_t StepEnd(uint32_t begin) const { return (begin / block_tokens_ + 1) * block_tokens_; }
  uint32_t grid() const { return block_tokens_; }
  const ModelConfig& config() const { return config_; }
  const std::vector<KvFormat>& formats() const { return options_.formats; }
  const DeviceFacts& device() const { return device_->facts(); }
  PagedAttention::Pinned pinned() const {  // nothing on the CPU
    const PagedAttention* const pages = device_->paged_attention();
    return pages == nullptr ? PagedAttention::Pinned{} : pages->pinned();
  }

 private:
  // Where a step's tokens are in the activations.
  struct Window {
    uint32_t begin = 0;    // position of the first token
    uint32_t rows = 0;     // tokens
    uint32_t slot = 0;     // row of the first token
    uint32_t product = 1;  // rows of every weight product
    AttendMode mode = AttendMode::kPrecise;
  };
  absl::StatusOr<StepResult> Run(Sequence& sequence, const Step& step, const Window& window);
  absl::StatusOr<StepResult> RunLayers(Sequence& sequence, const Step& step);
  absl::Status Finish();
  void Embed(std::span<const uint32_t> tokens);
  absl::Status Attention(Sequence& sequence, uint32_t layer);
  // Attends on the sequence's own pages. queries, out: of the window's first row.
  absl::Status AttendOnHost(Sequence& sequence, uint32_t layer, const float* queries, size_t stride,
                            float* out);
  absl::Status Delta(Sequence& sequence, uint32_t layer, RunningState* running);
  absl::Status BringState(const Sequence& sequence, uint32_t layer, RecurrentState* state);
  // Applies what comes between the projections and attention: biases, norms, RoPE, the rotation.
  void PrepareHeads(const PlacedLayer& weights, bool local_rope, float* queries, size_t stride);
  void Mlp(const PlacedLayer& layer);
  void Normalize(const PlacedNorm& norm);
  // Adds added_ to hidden_. Norms added_ first if there is such a norm.
  void AddToHidden(const PlacedNorm& norm);
  void ClearIdleRows();
  // The rows of the window in activations of that width.
  float* Rows(const DeviceFloats& activations, size_t width) const {
    return activations.data() + window_.slot * width;
  }
  struct DeviceRope {
    Rope rope;
    DeviceFloats cos{}, sin{};  // [block_tokens, half], of the window's rows
  };
  void Prepare(DeviceRope* rope);

  const ModelConfig config_;
  const Options options_;
  const std::shared_ptr<Device> device_;
  Weights weights_;  // without the matrices that a device has copies of
  const PlacedWeights placed_;
  const uint32_t query_width_, kv_width_;
  const float attention_scale_;
  uint32_t block_tokens_ = 0;
  absl::Status ready_;  // why no step can run
  DeviceRope rope_, local_rope_;
  Window window_;  // window of the last step
  // Activations, [block_tokens, width]. The inputs of products hold zeros in rows without a token,
  // or what a GPU attends for them.
  DeviceFloats hidden_;
  DeviceFloats normed_;    // input of qkv, delta projections and gate_up
  DeviceFloats qkv_;       // queries | keys | values | gates, or a delta layer's projections
  DeviceFloats attended_;  // input of attention_out and of a delta layer's out
  DeviceFloats gate_up_;   // gate | up
  DeviceFloats gated_;     // input of down
  DeviceFloats added_;     // output of attention_out, out and down
  DeviceFloats final_, folded_;
  std::unique_ptr<DeviceKv> kv_;  // null if the device attends on the sequence's own pages
  std::vector<float> embedded_, host_folded_, logits_;
};

// Puts the current states into the cache, wanted or not. Called where a sequence ends.
absl::Status PutStates(Sequence& sequence, const RunningState& state);

}  // namespace prefixd::worker
