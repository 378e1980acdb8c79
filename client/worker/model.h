// A Llama decoder whose attention runs on the KV of a prefixd Sequence.
//
// The fixed prefill grid: prompt tokens are computed in steps that end at multiples of
// block_tokens. A step's weight products always have block_tokens rows, and a token's row is its
// position modulo block_tokens, whether one token of the block is computed or all. A token's result
// therefore depends on the tokens before it and nothing else: after a hit of any length, also one
// that ends inside a block, every later bit is what the cold run computes, on the same machine and
// thread count. Decoding uses one-row products, always.
//
// Where the formats say Rotation::kHadamard, queries and keys are turned after RoPE, values before
// they are stored and the output of attention back.
//
// One thread at a time. Activations are allocated once, for block_tokens rows.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/floats.h"
#include "client/worker/model_config.h"
#include "client/worker/rope.h"
#include "client/worker/weights.h"
#include "prefixd/attention.h"
#include "prefixd/client.h"

namespace prefixd::worker {

class Model {
 public:
  struct Options {
    // What the sequence's space stores, the same for all layers: LayerSpec::formats. Requires: at
    // least one, all of the same rotation.
    std::vector<KvFormat> formats;
    uint32_t threads = 1;
    AttendMode decode_mode = AttendMode::kPrecise;  // prefill is always precise
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
  };
  struct StepResult {
    // Pages of the cache turned out bad: nothing of this step counts. Restart the sequence.
    bool cache_shrank = false;
    std::chrono::nanoseconds waited{0};  // for pages
  };

  // One step of the prompt. Requires: begin < end, both in one block of the grid; every token
  // before `begin` is in `sequence`. Internal when the sequence does not take the K and V.
  absl::StatusOr<StepResult> Prefill(Sequence& sequence, const Step& step);

  // One token after the prompt: end == begin + 1, and PushToken() has announced it.
  absl::StatusOr<StepResult> Decode(Sequence& sequence, const Step& step);

  // What may follow the token at `position`, which the last step computed. [vocab_size], valid
  // until the next call.
  std::span<const float> Logits(uint32_t position);

  // Moves to another grid; cheap when it is the same. Sequences begun before must not go on.
  void UseGrid(uint32_t block_tokens);

  // Where a step from `begin` ends at the latest: the next multiple of block_tokens.
  uint32_t StepEnd(uint32_t begin) const { return (begin / block_tokens_ + 1) * block_tokens_; }
  uint32_t grid() const { return block_tokens_; }
  const ModelConfig& config() const { return config_; }
  const std::vector<KvFormat>& formats() const { return options_.formats; }

 private:
  // Where a step's tokens stand in the activations.
  struct Window {
    uint32_t begin = 0;    // position of the first token
    uint32_t rows = 0;     // tokens
    uint32_t slot = 0;     // row of the first token
    uint32_t product = 1;  // rows of every weight product
    AttendMode mode = AttendMode::kPrecise;
  };
  absl::StatusOr<StepResult> Run(Sequence& sequence, const Step& step, const Window& window);
  absl::Status Attention(Sequence& sequence, uint32_t layer);
  absl::Status RotateInputs(float* queries, size_t stride) const;
  void Mlp(const LayerWeights& layer);
  void Normalize(const std::vector<float>& weight);
  void AddToHidden();
  void ClearIdleRows();

  const ModelConfig config_;
  const Weights weights_;
  const Options options_;
  const uint32_t query_width_, kv_width_;
  uint32_t block_tokens_ = 0;
  Rope rope_;
  Window window_;  // of the last step
  // Activations, [block_tokens, width]. The inputs of products hold zeros in rows of no token.
  Floats hidden_;
  Floats normed_;    // input of qkv and gate_up
  Floats qkv_;       // queries | keys | values
  Floats attended_;  // input of attention_out
  Floats gate_up_;   // gate | up
  Floats gated_;     // input of down
  Floats added_;     // output of attention_out and down
  Floats final_, folded_, logits_;
};

}  // namespace prefixd::worker
