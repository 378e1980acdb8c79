// The shipped model, or another byte-level one, for workload quality: what it makes of a text when
// its KV is stored in a format.
//
// One thread. Every reader of a checkpoint shares its weights.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/cache_space.h"
#include "client/worker/model.h"
#include "client/worker/weights.h"

namespace prefixd::bench {

struct Checkpoint {
  std::string directory;
  worker::ModelConfig config;
  worker::Weights weights;
};
// InvalidArgument when the model's tokens are not bytes.
absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory);

// [positions][vocabulary], a row after the other.
struct Logits {
  size_t vocabulary = 0;
  std::vector<float> values;
  size_t rows() const { return vocabulary == 0 ? 0 : values.size() / vocabulary; }
  std::span<const float> row(size_t i) const {
    return std::span(values).subspan(i * vocabulary, vocabulary);
  }
};

// -ln of what `logits` give to `token`.
double Nats(std::span<const float> logits, uint32_t token);
// KL divergence of `b` from `a`, in nats.
double Divergence(std::span<const float> a, std::span<const float> b);
uint32_t Best(std::span<const float> logits);

class Reader {
 public:
  struct Options {
    std::vector<KvFormat> formats;  // finest first; one space for all layers
    uint32_t threads = 2;
    std::string server = "none";
    uint32_t block_tokens = 0;  // 0 = the default, 64
    // What a worker takes for the last of the formats, unless told otherwise.
    std::optional<worker::AttentionModes> attention = {};
  };
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const Checkpoint& checkpoint,
                                                      const Options& options);

  Space& space() { return cache_.space; }
  const worker::ModelConfig& config() const { return model_.config(); }
  // Computes [from, tokens.size()) on the grid, behind what `sequence` has, and gives the logits of
  // these positions.
  absl::StatusOr<Logits> Prefill(Sequence& sequence, std::span<const uint32_t> tokens,
                                 uint32_t from);
  // Computes [from, tokens.size()) one at a time, as an answer is; `sequence` knows the first
  // `announced` of the tokens already.
  absl::StatusOr<Logits> Decode(Sequence& sequence, std::span<const uint32_t> tokens, uint32_t from,
                                uint32_t announced);
  // All of `tokens`, on a sequence of its own that looks nothing up.
  absl::StatusOr<Logits> Read(std::span<const uint32_t> tokens);

 private:
  Reader(const Checkpoint& checkpoint, const Options& options, worker::CacheSpace cache);
  void Take(uint32_t position, Logits* logits);

  worker::CacheSpace cache_;
  worker::Model model_;
};

}  // namespace prefixd::bench
