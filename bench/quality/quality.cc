// Workload quality: held-out nats per byte of a KV format. Every byte of some windows of a text
// that the model was not trained on is predicted from those before it in the window, with all K and
// V that attention sees stored in the format.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/status.h"
#include "bench/common/workloads.h"
#include "client/worker/cache_space.h"
#include "client/worker/model.h"
#include "client/worker/weights.h"

namespace prefixd::bench {
namespace {

struct Checkpoint {
  worker::ModelConfig config;
  worker::Weights weights;
};

// InvalidArgument when the model's tokens are not bytes.
absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory) {
  Checkpoint checkpoint;
  PREFIXD_ASSIGN_OR_RETURN(checkpoint.config, worker::LoadModelConfig(directory));
  if (!checkpoint.config.byte_level()) {
    return absl::InvalidArgumentError(
        absl::StrCat("quality: ", directory, " has a vocabulary of ", checkpoint.config.vocab_size,
                     ", the corpus is read by models whose tokens are bytes"));
  }
  PREFIXD_ASSIGN_OR_RETURN(checkpoint.weights, worker::LoadWeights(directory, checkpoint.config));
  return checkpoint;
}

// [positions][vocabulary], a row after the other.
struct Logits {
  size_t vocabulary = 0;
  std::vector<float> values;
  size_t rows() const { return vocabulary == 0 ? 0 : values.size() / vocabulary; }
  std::span<const float> row(size_t i) const {
    return std::span(values).subspan(i * vocabulary, vocabulary);
  }
};

double LogSum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum);
}

// -ln of what `logits` give to `token`.
double Nats(std::span<const float> logits, uint32_t token) {
  return LogSum(logits) - double{logits[token]};
}

// KL divergence of `b` from `a`, in nats.
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

struct NamedFormat {
  std::string name;
  KvFormat format;
  std::optional<worker::AttentionModes> attention = {};  // other than a worker's for the format
};

// The first is raw f32, which the others are compared with.
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
  // And what --attention fast costs.
  for (const NamedFormat& format : plain) {
    if (format.name != "8/8" && format.name != "8/4" && format.name != "4/4") continue;
    const worker::AttentionModes fast{.prefill = AttendMode::kFastPrefill,
                                      .decode = AttendMode::kFast};
    formats.push_back({format.name + " fast", format.format, fast});
  }
  return formats;
}

class Reader {
 public:
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const Checkpoint& checkpoint,
                                                      const NamedFormat& format) {
    worker::Options options;
    options.server = "none";
    PREFIXD_ASSIGN_OR_RETURN(
        worker::CacheSpace cache,
        worker::OpenCacheSpace(options,
                               worker::MakeSpaceSpec(checkpoint.config, {}, {format.format})));
    return std::unique_ptr<Reader>(new Reader(checkpoint, format, std::move(cache)));
  }
  const Space& space() const { return cache_.space; }
  // Computes all of `tokens` on the worker's grid, on a sequence of its own that looks nothing up,
  // and gives the logits of every position.
  absl::StatusOr<Logits> Read(std::span<const uint32_t> tokens);

 private:
  Reader(const Checkpoint& checkpoint, const NamedFormat& format, worker::CacheSpace cache)
      : cache_(std::move(cache)),
        model_(checkpoint.config, checkpoint.weights,
               {.formats = {format.format},
                .threads = 2,
                .attention =
                    format.attention.value_or(worker::ChooseAttention(format.format).modes)}) {
    model_.UseGrid(cache_.space.block_tokens());
  }

  worker::CacheSpace cache_;
  worker::Model model_;
};

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

std::vector<uint32_t> ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint32_t> tokens;
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    tokens.push_back(static_cast<uint8_t>(*at));
  }
  return tokens;
}

// What is being computed, on a terminal's last line; nothing where there is no terminal.
void ShowProgress(const std::string& what) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (terminal) std::fprintf(stderr, "\r\033[K%s", what.c_str());
}

// Of one format, over all windows.
struct Reading {
  double nats = 0;          // per byte
  double extra = 0;         // per byte, over raw
  double extra_error = 0;   // standard error of it, from window to window
  double divergence = 0;    // from raw, per byte
  double same_percent = 0;  // positions whose likeliest byte is raw's
};

struct Window {
  std::vector<uint32_t> tokens;
  Logits raw;
};

std::vector<Window> Cut(const std::vector<uint32_t>& corpus, size_t count, size_t bytes) {
  std::vector<Window> windows(count);
  const size_t step = (corpus.size() - bytes) / std::max<size_t>(1, count - 1);
  for (size_t i = 0; i < count; ++i) {
    const auto begin = corpus.begin() + static_cast<ptrdiff_t>(i * step);
    windows[i].tokens.assign(begin, begin + static_cast<ptrdiff_t>(bytes));
  }
  return windows;
}

double SumNats(const Window& window, const Logits& logits) {
  double sum = 0;
  for (size_t i = 1; i < window.tokens.size(); ++i) {
    sum += Nats(logits.row(i - 1), window.tokens[i]);
  }
  return sum;
}

Reading Summarize(const std::vector<Window>& windows, const std::vector<Logits>& read) {
  Reading reading;
  std::vector<double> extra;  // of each window, per byte
  double positions = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const Window& window = windows[w];
    const double count = static_cast<double>(window.tokens.size() - 1);
    const double nats = SumNats(window, read[w]);
    extra.push_back((nats - SumNats(window, window.raw)) / count);
    reading.nats += nats;
    positions += count;
    for (size_t i = 0; i + 1 < window.tokens.size(); ++i) {
      reading.divergence += Divergence(window.raw.row(i), read[w].row(i));
      reading.same_percent += Best(window.raw.row(i)) == Best(read[w].row(i)) ? 100 : 0;
    }
  }
  reading.nats /= positions;
  reading.divergence /= positions;
  reading.same_percent /= positions;
  const double n = static_cast<double>(extra.size());
  for (const double e : extra) reading.extra += e / n;
  double squares = 0;
  for (const double e : extra) squares += (e - reading.extra) * (e - reading.extra);
  reading.extra_error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  return reading;
}

std::string TableLine(const std::string& name, uint64_t bytes, const Reading& r) {
  char text[160];
  std::snprintf(text, sizeof(text), "| %-16s | %5llu | %.4f | %+8.2f +- %4.2f | %8.3f | %6.2f %% |",
                name.c_str(), static_cast<unsigned long long>(bytes), r.nats, r.extra * 1e3,
                r.extra_error * 1e3, r.divergence * 1e3, r.same_percent);
  return text;
}

void Measure(Bench& bench, const Checkpoint& checkpoint, const std::vector<uint32_t>& corpus) {
  const std::vector<NamedFormat> formats = Formats(bench.smoke());
  const uint64_t count = bench.Parameter("text_windows", 2, 4, 12);
  const uint64_t bytes = bench.Parameter("text_window_tokens", 128, 2048, 2048);
  std::vector<Window> windows = Cut(corpus, count, bytes);
  std::vector<std::string> table = {
      "| format | B/token | nats/byte | over raw, millinats | KL, millinats | same best byte |",
      "|---|---|---|---|---|---|"};
  for (const NamedFormat& format : formats) {
    const auto reader = Reader::Open(checkpoint, format);
    if (!bench.Check(reader.ok(), std::string(reader.status().message()))) return;
    std::vector<Logits> read;
    for (size_t w = 0; w < windows.size(); ++w) {
      ShowProgress("quality: text, " + format.name + ", window " + std::to_string(w + 1) + " of " +
                   std::to_string(windows.size()));
      absl::StatusOr<Logits> logits = (*reader)->Read(windows[w].tokens);
      if (!bench.Check(logits.ok(), std::string(logits.status().message()))) return;
      read.push_back(*std::move(logits));
      if (&format == &formats[0]) windows[w].raw = read.back();
    }
    const Reading reading = Summarize(windows, read);
    const uint64_t stored = (*reader)->space().payload_bytes_per_token();
    ShowProgress("");
    bench.Add({"text " + format.name,
               {{"nats_per_byte", reading.nats},
                {"over_raw_millinats", reading.extra * 1e3},
                {"standard_error_millinats", reading.extra_error * 1e3},
                {"divergence_millinats", reading.divergence * 1e3},
                {"same_best_percent", reading.same_percent},
                {"stored_per_token", static_cast<double>(stored)}}});
    table.push_back(TableLine(format.name, stored, reading));
  }
  for (const std::string& line : table) bench.Note(line);
}

}  // namespace

void RunQuality(Bench& bench) {
  const std::string source = PREFIXD_SOURCE_DIR;
  const std::string model = bench.model().empty() ? source + "/tests/data/model" : bench.model();
  const std::string corpus =
      bench.corpus().empty() ? source + "/tests/data/corpus/kjv_sample.txt" : bench.corpus();
  const absl::StatusOr<Checkpoint> checkpoint = LoadCheckpoint(model);
  if (!bench.Check(checkpoint.ok(), std::string(checkpoint.status().message()))) return;
  const std::vector<uint32_t> text = ReadBytes(corpus);
  constexpr size_t kLeast = 16384;
  if (!bench.Check(text.size() >= kLeast, corpus + " has " + std::to_string(text.size()) +
                                              " bytes, " + std::to_string(kLeast) +
                                              " are the least")) {
    return;
  }
  Measure(bench, *checkpoint, text);
  ShowProgress("");
}

}  // namespace prefixd::bench
