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
    KvFormat format;  // of all layers
    // Other than what a worker takes for the format.
    std::optional<worker::AttentionModes> attention = {};
  };
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const Checkpoint& checkpoint,
                                                      const Options& options);

  const Space& space() const { return cache_.space; }
  // Computes all of `tokens` on the worker's grid, on a sequence of its own that looks nothing up,
  // and gives the logits of every position.
  absl::StatusOr<Logits> Read(std::span<const uint32_t> tokens);

 private:
  Reader(const Checkpoint& checkpoint, const Options& options, worker::CacheSpace cache);

  worker::CacheSpace cache_;
  worker::Model model_;
};

}  // namespace prefixd::bench
