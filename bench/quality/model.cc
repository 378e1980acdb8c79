#include "bench/quality/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"

#include "base/status.h"

namespace prefixd::bench {
namespace {

double LogSum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum);
}

}  // namespace

absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory) {
  Checkpoint checkpoint{.directory = directory, .config = {}, .weights = {}};
  PREFIXD_ASSIGN_OR_RETURN(checkpoint.config, worker::LoadModelConfig(directory));
  if (!checkpoint.config.byte_level()) {
    return absl::InvalidArgumentError(
        absl::StrCat("quality: ", directory, " has a vocabulary of ", checkpoint.config.vocab_size,
                     ", the corpus is read by models whose tokens are bytes"));
  }
  PREFIXD_ASSIGN_OR_RETURN(checkpoint.weights, worker::LoadWeights(directory, checkpoint.config));
  return checkpoint;
}

double Nats(std::span<const float> logits, uint32_t token) {
  return LogSum(logits) - double{logits[token]};
}

double Divergence(std::span<const float> a, std::span<const float> b) {
  const double log_a = LogSum(a), log_b = LogSum(b);
  double divergence = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_p = double{a[i]} - log_a;
    divergence += std::exp(log_p) * (log_p - (double{b[i]} - log_b));
  }
  return std::max(0.0, divergence);
}

uint32_t Best(std::span<const float> logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

absl::StatusOr<std::unique_ptr<Reader>> Reader::Open(const Checkpoint& checkpoint,
                                                     const Options& options) {
  worker::Options worker_options;
  worker_options.server = "none";
  PREFIXD_ASSIGN_OR_RETURN(
      worker::CacheSpace cache,
      worker::OpenCacheSpace(worker_options,
                             worker::MakeSpaceSpec(checkpoint.config, {}, {options.format})));
  return std::unique_ptr<Reader>(new Reader(checkpoint, options, std::move(cache)));
}

Reader::Reader(const Checkpoint& checkpoint, const Options& options, worker::CacheSpace cache)
    : cache_(std::move(cache)),
      model_(checkpoint.config, checkpoint.weights,
             {.formats = {options.format},
              .threads = 2,
              .attention =
                  options.attention.value_or(worker::ChooseAttention(options.format).modes)}) {
  model_.UseGrid(cache_.space.block_tokens());
}

absl::StatusOr<Logits> Reader::Read(std::span<const uint32_t> tokens) {
  Sequence sequence = cache_.space.Begin(tokens, {.max_cached_tokens = 0});
  Logits logits;
  for (uint32_t at = 0; at < tokens.size();) {
    const uint32_t end = std::min(model_.StepEnd(at), static_cast<uint32_t>(tokens.size()));
    PREFIXD_RETURN_IF_ERROR(
        model_.Prefill(sequence, {.tokens = tokens, .begin = at, .end = end, .cached = 0})
            .status());
    for (; at < end; ++at) {
      const std::span<const float> row = model_.Logits(at);
      logits.vocabulary = row.size();
      logits.values.insert(logits.values.end(), row.begin(), row.end());
    }
  }
  return logits;
}

}  // namespace prefixd::bench
