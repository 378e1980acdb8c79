// Workload quality: what a KV format costs a real model on text that it was not trained on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/common/bench.h"
#include "bench/quality/model.h"

namespace prefixd::bench {

struct NamedFormat {
  std::string name;
  KvFormat format;
  // Other than what a worker takes for the format.
  std::optional<worker::AttentionModes> attention = {};
};

struct QualityJob {
  Bench& bench;
  Checkpoint checkpoint;
  std::vector<uint32_t> corpus;      // a byte a token
  std::vector<NamedFormat> formats;  // the first is raw f32, which the others are compared with
};

// What is being computed, on a terminal's last line; nothing where there is no terminal.
void ShowProgress(const std::string& what);

// Nats per byte of held-out text, each format.
void MeasureText(const QualityJob& job);

}  // namespace prefixd::bench
