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
// Layers of kind kGatedDelta keep a state beside the sequence, in RecurrentStates. A step takes the
// state from `begin` to `end`, token by token. If the state stands elsewhere, it begins anew at
// token 0 or comes from the sequence's snapshot at `begin`. The model puts every snapshot that the
// sequence wants.
//
// If the formats say Rotation::kHadamard, the model turns queries and keys after RoPE, values
// before they are stored, and the output of attention back.
//
// One thread at a time. Activations are allocated once, for block_tokens rows.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/floats.h"
#include "client/worker/kv_format.h"
#include "client/worker/model_config.h"
#include "client/worker/recurrent_states.h"
#include "client/worker/rope.h"
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
    // States of the same sequence; null if the model has no kGatedDelta layer.
    RecurrentStates* states = nullptr;
  };
  struct StepResult {
    // Pages of the cache turned out bad: nothing of this step counts, and the caller must restart
    // the sequence.
    bool cache_shrank = false;
    std::chrono::nanoseconds waited{0};  // time spent waiting for pages
  };

  // Computes one step of the prompt. Requires: begin < end, both in one block of the grid; every
  // token before `begin` is in `sequence`. Internal if the sequence does not take the K and V.
  absl::StatusOr<StepResult> Prefill(Sequence& sequence, const Step& step);

  // Computes one token after the prompt. Requires: end == begin + 1, and PushToken() has announced
  // the token.
  absl::StatusOr<StepResult> Decode(Sequence& sequence, const Step& step);

  // Returns the logits of the token after `position`: [vocab_size], valid until the next call.
  // Requires: the last step computed `position`.
  std::span<const float> Logits(uint32_t position);

  // Moves to another grid; cheap if it is the same. Sequences that began before must not go on.
  void UseGrid(uint32_t block_tokens);

  // Returns the latest end of a step from `begin`: the next multiple of block_tokens.
  uint32_t StepEnd(uint32_t begin) const { return (begin / block_tokens_ + 1) * block_tokens_; }
  uint32_t grid() const { return block_tokens_; }
  const ModelConfig& config() const { return config_; }
  const std::vector<KvFormat>& formats() const { return options_.formats; }

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
  absl::Status Attention(Sequence& sequence, uint32_t layer);
  absl::Status Delta(Sequence& sequence, uint32_t layer, RecurrentStates* states);
  absl::Status BringState(const Sequence& sequence, uint32_t layer, RecurrentState* state) const;
  // Puts the state into the cache if the sequence wants a snapshot at its position.
  absl::Status PutSnapshots(Sequence& sequence, uint32_t layer, RecurrentState& state) const;
  // Applies what comes between the projections and attention: biases, norms, RoPE, the rotation.
  absl::Status PrepareHeads(const LayerWeights& weights, bool local_rope, float* queries,
                            size_t stride) const;
  void MultiplyByGates(const float* gates, size_t stride, float* out) const;
  void Mlp(const LayerWeights& layer);
  void Normalize(const std::vector<float>& weight);
  // Adds added_ to hidden_. Norms added_ first if `norm` is not empty.
  void AddToHidden(const std::vector<float>& norm);
  void ClearIdleRows();

  const ModelConfig config_;
  const Weights weights_;
  const Options options_;
  const uint32_t query_width_, kv_width_;
  const float attention_scale_;
  uint32_t block_tokens_ = 0;
  Rope rope_, local_rope_;
  Window window_;  // window of the last step
  // Activations, [block_tokens, width]. The inputs of products hold zeros in rows without a token.
  Floats hidden_;
  Floats normed_;    // input of qkv, delta projections and gate_up
  Floats qkv_;       // queries | keys | values | gates, or a delta layer's projections
  Floats attended_;  // input of attention_out and of a delta layer's out
  Floats gate_up_;   // gate | up
  Floats gated_;     // input of down
  Floats added_;     // output of attention_out, out and down
  Floats final_, folded_, logits_;
};

// Puts the current states into the cache, wanted or not. Called where a sequence ends.
absl::Status PutStates(Sequence& sequence, RecurrentStates& states);

}  // namespace prefixd::worker
