// Hits against cold runs, through a real prefixd. A hit on pages that were computed on the same
// grid must equal the cold run in every bit. Pages that were made otherwise (by decoding, by
// another number of threads, in a coarser format) give other bits: how far the answers then move is
// shown.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/daemon_process.h"
#include "bench/quality.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kDecoded = 16;  // tokens after the prompt, given

// One side of a comparison: prompt positions from `hit` on and some decoded behind them.
struct Run {
  uint32_t used = 0;  // tokens from the cache
  Logits logits;
  std::vector<std::byte> pages;  // of the used tokens, every layer
};

struct Difference {
  double logit = 0;       // the largest
  double divergence = 0;  // mean of the positions, nats
  bool same_bits = false;
};

Difference Compare(const Logits& cold, const Logits& hit) {
  Difference difference;
  const size_t rows = hit.rows();
  const size_t first = cold.rows() - rows;
  difference.same_bits = std::memcmp(cold.row(first).data(), hit.values.data(),
                                     hit.values.size() * sizeof(float)) == 0;
  for (size_t i = 0; i < rows; ++i) {
    const std::span<const float> a = cold.row(first + i), b = hit.row(i);
    for (size_t t = 0; t < a.size(); ++t) {
      difference.logit = std::max(difference.logit, std::fabs(double{a[t]} - double{b[t]}));
    }
    difference.divergence += Divergence(a, b) / static_cast<double>(rows);
  }
  return difference;
}

// Packed K and V of tokens [0, count), every layer.
std::vector<std::byte> PageBytes(const Sequence& sequence, const worker::ModelConfig& config,
                                 const KvFormat& format, uint32_t count) {
  std::vector<std::byte> all;
  for (int layer = 0; layer < static_cast<int>(config.layers); ++layer) {
    MutablePackedView views[2];
    size_t begin[2];
    for (size_t i = 0; i < 2; ++i) {
      const RowBytes row = BytesOfRow(i == 0 ? format.key : format.value, config.head_dim);
      begin[i] = all.size();
      all.resize(begin[i] +
                 size_t{config.kv_heads} * count * (row.codes + row.scales + row.biases));
      views[i] = {.codes_head_stride = size_t{count} * row.codes,
                  .codes_token_stride = row.codes,
                  .scales_head_stride = size_t{count} * row.scales,
                  .scales_token_stride = row.scales};
    }
    for (size_t i = 0; i < 2; ++i) {
      const RowBytes row = BytesOfRow(i == 0 ? format.key : format.value, config.head_dim);
      const size_t rows = size_t{config.kv_heads} * count;
      views[i].codes = all.data() + begin[i];
      views[i].scales = all.data() + begin[i] + rows * row.codes;
      views[i].biases = all.data() + begin[i] + rows * (row.codes + row.scales);
    }
    if (!sequence.Gather(layer, 0, count, views[0], views[1]).ok()) return {};
  }
  return all;
}

class Comparison {
 public:
  Comparison(const QualityJob& job, std::string server) : job_(job), server_(std::move(server)) {
    const uint64_t prompt = job.bench.Parameter("hit_prompt_tokens", 200, 700, 1500);
    tokens_.assign(job.corpus.begin(),
                   job.corpus.begin() + static_cast<ptrdiff_t>(prompt + kDecoded));
    prompt_ = static_cast<uint32_t>(prompt);
  }

  // Cold, then hits of several lengths: all bits must be the same.
  void SameGrid(const NamedFormat& format) {
    ShowProgress("quality: hits, " + format.name);
    auto reader = Open({.formats = {format.format}});
    if (reader == nullptr) return;
    Sequence cold = reader->space().Begin(prompt(), {.max_cached_tokens = 0});
    const Logits want = Continue(*reader, cold, 0);
    Store(cold);
    const std::vector<std::byte> pages = PageBytes(cold, reader->config(), format.format, prompt_);
    double largest = 0;
    uint32_t runs = 0;
    for (const uint32_t hit : {uint32_t{1}, uint32_t{63}, uint32_t{64}, prompt_ / 2, prompt_ - 1}) {
      Sequence warm = reader->space().Begin(prompt(), {.max_cached_tokens = hit});
      const uint32_t used = warm.WaitAll();
      job_.bench.Check(used == hit, format.name + ": a hit of " + std::to_string(used) +
                                        " tokens instead of " + std::to_string(hit));
      const Difference difference = Compare(want, Continue(*reader, warm, used));
      job_.bench.Check(difference.same_bits, format.name + ": a hit of " + std::to_string(used) +
                                                 " tokens differs from the cold run");
      job_.bench.Check(
          !pages.empty() && PageBytes(warm, reader->config(), format.format, prompt_) == pages,
          format.name + ": pages of a hit differ from the cold run's");
      largest = std::max(largest, difference.logit);
      ++runs;
    }
    job_.bench.Add({"hits " + format.name + ", same grid",
                    {{"hits", double(runs)}, {"largest_logit_difference", largest}}});
  }

  // The pages of the prompt but its last token were made by `donor`, in formats[rung] of `format`.
  template <typename MakePages>
  void OtherPages(const std::string& name, const std::vector<KvFormat>& formats, uint32_t rung,
                  uint32_t donor_threads, const MakePages& make_pages) {
    ShowProgress("quality: hits, " + name);
    auto cold_reader = Open({.formats = {formats[0]}}, /*alone=*/true);
    auto donor = Open({.formats = formats, .threads = donor_threads});
    if (cold_reader == nullptr || donor == nullptr) return;
    Sequence cold = cold_reader->space().Begin(prompt(), {.max_cached_tokens = 0});
    const Logits want = Continue(*cold_reader, cold, 0);
    {
      Sequence made =
          donor->space().Begin(prompt(), {.max_cached_tokens = 0, .write_format = rung});
      make_pages(*donor, made);
      Store(made);
    }
    auto reader = Open({.formats = formats});
    if (reader == nullptr) return;
    Sequence warm = reader->space().Begin(prompt(), {.max_cached_tokens = prompt_ - 1});
    const uint32_t used = warm.WaitAll();
    job_.bench.Check(used == prompt_ - 1, name + ": a hit of " + std::to_string(used) + " tokens");
    const Difference difference = Compare(want, Continue(*reader, warm, used));
    job_.bench.Add({"hits " + name,
                    {{"largest_logit_difference", difference.logit},
                     {"divergence_millinats", difference.divergence * 1e3},
                     {"same_bits", difference.same_bits ? 1.0 : 0.0}}});
    // A wrong page moves logits by several units (tests of --verify-hits plant one).
    job_.bench.Check(difference.divergence < 0.05,
                     name + ": answers moved by more than 50 millinats");
  }

  std::span<const uint32_t> prompt() const { return std::span(tokens_).first(prompt_); }

 private:
  std::unique_ptr<Reader> Open(Reader::Options options, bool alone = false) {
    if (!alone) options.server = server_;
    auto reader = Reader::Open(job_.checkpoint, options);
    job_.bench.Check(reader.ok(), std::string(reader.status().message()));
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  void Store(Sequence& sequence) {
    const Result<CommitInfo> stored = sequence.Commit({.sequence_end = true});
    job_.bench.Check(stored.ok(), stored.status.message);
  }
  // Prompt from `from` on, then the given tokens behind it.
  Logits Continue(Reader& reader, Sequence& sequence, uint32_t from) {
    absl::StatusOr<Logits> logits = reader.Prefill(sequence, prompt(), from);
    if (logits.ok()) {
      const absl::StatusOr<Logits> more = reader.Decode(sequence, tokens_, prompt_, prompt_);
      if (more.ok()) {
        logits->values.insert(logits->values.end(), more->values.begin(), more->values.end());
      } else {
        logits = more.status();
      }
    }
    job_.bench.Check(logits.ok(), std::string(logits.status().message()));
    return logits.ok() ? *std::move(logits) : Logits{};
  }

  const QualityJob& job_;
  const std::string server_;
  std::vector<uint32_t> tokens_;
  uint32_t prompt_ = 0;
};

void CompareAll(const QualityJob& job, Comparison& comparison) {
  const size_t every = job.bench.smoke() || job.bench.quick() ? 3 : 1;
  for (size_t i = 0; i < job.formats.size(); i += every) comparison.SameGrid(job.formats[i]);
  const KvFormat raw = Raw(Dtype::kF32);
  const auto by_prefill = [&](Reader& reader, Sequence& sequence) {
    job.bench.Check(reader.Prefill(sequence, comparison.prompt(), 0).ok(), "prefill");
  };
  const auto by_decoding = [&](Reader& reader, Sequence& sequence) {
    const std::span<const uint32_t> prompt = comparison.prompt();
    const auto announced = static_cast<uint32_t>(prompt.size());
    job.bench.Check(reader.Decode(sequence, prompt, 0, announced).ok(), "decode");
  };
  for (const NamedFormat& named :
       {NamedFormat{"raw", raw}, NamedFormat{"8/8", MlxAffine(8, 64, Dtype::kF16)},
        NamedFormat{"8/4", MlxAffine(8, 64, 4, 64, Dtype::kF16)}}) {
    KvFormat own =
        named.format;  // another space than the same grid's, which holds these tokens already
    own.key.dtype = own.value.dtype = Dtype::kBf16;
    if (named.name == "raw") own = Raw(Dtype::kF16);
    comparison.OtherPages(named.name + " (16 bit), pages made by decoding", {own}, 0, 2,
                          by_decoding);
  }
  comparison.OtherPages("raw (bf16), pages made by one thread", {Raw(Dtype::kBf16)}, 0, 1,
                        by_prefill);
  comparison.OtherPages("8/8 pages, raw behind them", {raw, MlxAffine(8, 64, Dtype::kF16)}, 1, 2,
                        by_prefill);
  comparison.OtherPages("4/4 pages, raw behind them", {raw, MlxAffine(4, 64, Dtype::kF16)}, 1, 2,
                        by_prefill);
}

}  // namespace

void MeasureHits(const QualityJob& job) {
  auto daemon = DaemonProcess::Start(
      {.directory = job.bench.directory(), .ram = "256MiB", .ssd = "off", .arena = "off"});
  if (!job.bench.Check(daemon.ok(), std::string(daemon.status().message()))) return;
  Comparison comparison(job, (*daemon)->address());
  CompareAll(job, comparison);
  ShowProgress("");
  const absl::Status stopped = (*daemon)->Stop();
  job.bench.Check(stopped.ok(), std::string(stopped.message()));
}

}  // namespace prefixd::bench
