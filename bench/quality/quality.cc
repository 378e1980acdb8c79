#include "bench/quality/quality.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "bench/common/workloads.h"

namespace prefixd::bench {
namespace {

std::vector<NamedFormat> Formats(bool smoke) {
  const auto mlx = [](int key_bits, int value_bits) {
    return MlxAffine(key_bits, 64, value_bits, 64, Dtype::kF16);
  };
  std::vector<NamedFormat> plain = {{"raw f32", Raw(Dtype::kF32)}, {"8/4", mlx(8, 4)}};
  if (!smoke) {
    plain = {{"raw f32", Raw(Dtype::kF32)},
             {"8/8", mlx(8, 8)},
             {"8/4", mlx(8, 4)},
             {"6/4", mlx(6, 4)},
             {"4/4", mlx(4, 4)},
             {"4/2", mlx(4, 2)},
             {"q8_0", Ggml(Codec::kQ8_0, Codec::kQ8_0)},
             {"q4_0", Ggml(Codec::kQ4_0, Codec::kQ4_0)}};
  }
  std::vector<NamedFormat> formats;
  for (const NamedFormat& format : plain) {
    formats.push_back(format);
    formats.push_back({format.name + " hadamard", Rotated(format.format)});
  }
  return formats;
}

std::vector<uint32_t> ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint32_t> tokens;
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    tokens.push_back(static_cast<uint8_t>(*at));
  }
  return tokens;
}

}  // namespace

void ShowProgress(const std::string& what) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (terminal) std::fprintf(stderr, "\r\033[K%s", what.c_str());
}

void RunQuality(Bench& bench) {
  const std::string source = PREFIXD_SOURCE_DIR;
  const std::string model = bench.model().empty() ? source + "/tests/data/model" : bench.model();
  const std::string corpus =
      bench.corpus().empty() ? source + "/tests/data/corpus/kjv_sample.txt" : bench.corpus();
  absl::StatusOr<Checkpoint> checkpoint = LoadCheckpoint(model);
  if (!bench.Check(checkpoint.ok(), std::string(checkpoint.status().message()))) return;
  QualityJob job{.bench = bench,
                 .checkpoint = *std::move(checkpoint),
                 .corpus = ReadBytes(corpus),
                 .formats = Formats(bench.smoke())};
  constexpr size_t kLeast = 16384;
  if (!bench.Check(job.corpus.size() >= kLeast, corpus + " has " +
                                                    std::to_string(job.corpus.size()) + " bytes, " +
                                                    std::to_string(kLeast) + " are the least")) {
    return;
  }
  MeasureText(job);
  ShowProgress("");
}

}  // namespace prefixd::bench
