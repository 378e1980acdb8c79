// The KV memory of an engine that owns it: for every layer K and V as packed bytes, drawn by a
// seed; how it is stored through a Plan and read through a Lease.
#pragma once
#include <random>
#include <vector>

#include "tests/client/support.h"

namespace prefixd {

class PackedCache {
 public:
  // Random bytes: what they mean does not matter to whom carries them.
  PackedCache(const SpaceSpec& spec, uint32_t tokens, uint32_t seed, uint32_t format = 0)
      : PackedCache(Zeros{}, spec, tokens, format) {
    std::mt19937 random(seed);
    for (Packed& planes : planes_) {
      for (auto* plane : {&planes.codes, &planes.scales, &planes.biases}) {
        for (std::byte& byte : *plane) byte = static_cast<std::byte>(random());
      }
    }
  }
  bool operator==(const PackedCache& other) const {
    return tokens_ == other.tokens_ && planes_ == other.planes_;
  }

  // The first `tokens` tokens.
  PackedCache Cut(uint32_t tokens) const {
    PackedCache cut(Zeros{}, spec_, tokens, format_);
    for (uint32_t i = 0; i < planes_.size(); ++i) {
      const RowBytes row = RowOf(i);
      CutPlane(planes_[i].codes, row.codes, tokens, &cut.planes_[i].codes);
      CutPlane(planes_[i].scales, row.scales, tokens, &cut.planes_[i].scales);
      CutPlane(planes_[i].biases, row.biases, tokens, &cut.planes_[i].biases);
    }
    return cut;
  }

  // Of tokens from `begin` on, where they stand among all.
  PackedView key(uint32_t layer, uint32_t begin) const { return ViewOf(layer * 2, begin); }
  PackedView value(uint32_t layer, uint32_t begin) const { return ViewOf(layer * 2 + 1, begin); }

  // What `from`, a Lease or a Sequence, has of tokens [0, tokens); an empty one when it refuses.
  template <typename Pages>
  static PackedCache Gathered(Pages& from, const SpaceSpec& spec, uint32_t tokens,
                              uint32_t format = 0) {
    PackedCache cache(Zeros{}, spec, tokens, format);
    for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
      const Status status =
          from.Gather(static_cast<int>(layer), 0, tokens, cache.planes_[layer * 2].view(),
                      cache.planes_[layer * 2 + 1].view());
      EXPECT_TRUE(status.ok()) << status.message;
      if (!status.ok()) return PackedCache(Zeros{}, spec, 0, format);
    }
    return cache;
  }

 private:
  struct Zeros {};
  PackedCache(Zeros, const SpaceSpec& spec, uint32_t tokens, uint32_t format)
      : spec_(spec), tokens_(tokens), format_(format) {
    for (uint32_t i = 0; i < spec.layers.size() * 2; ++i) {
      planes_.emplace_back(FormatOf(i), spec.layers[i / 2].kv_heads, DimOf(i), tokens);
    }
  }
  const TensorFormat& FormatOf(uint32_t i) const {
    const KvFormat& format = spec_.layers[i / 2].formats[format_];
    return i % 2 == 0 ? format.key : format.value;
  }
  uint32_t DimOf(uint32_t i) const {
    return i % 2 == 0 ? spec_.layers[i / 2].key_dim : spec_.layers[i / 2].value_dim;
  }
  RowBytes RowOf(uint32_t i) const { return BytesOfRow(FormatOf(i), DimOf(i)); }
  PackedView ViewOf(uint32_t i, uint32_t begin) const {
    const RowBytes row = RowOf(i);
    return {.codes = planes_[i].codes.data() + size_t{begin} * row.codes,
            .scales = planes_[i].scales.data() + size_t{begin} * row.scales,
            .biases = planes_[i].biases.data() + size_t{begin} * row.biases,
            .codes_head_stride = size_t{tokens_} * row.codes,
            .codes_token_stride = row.codes,
            .scales_head_stride = size_t{tokens_} * row.scales,
            .scales_token_stride = row.scales};
  }
  void CutPlane(const std::vector<std::byte>& from, size_t row, uint32_t tokens,
                std::vector<std::byte>* to) const {
    to->clear();
    for (size_t head = 0; row > 0 && head < from.size() / (row * tokens_); ++head) {
      const auto begin = from.begin() + static_cast<ptrdiff_t>(head * row * tokens_);
      to->insert(to->end(), begin, begin + static_cast<ptrdiff_t>(row * tokens));
    }
  }

  SpaceSpec spec_;
  uint32_t tokens_;
  uint32_t format_;
  std::vector<Packed> planes_;  // K and V of layer 0, of layer 1, ...
};

// Writes the run of every layer.
inline void WriteRun(Plan& plan, const SpaceSpec& spec, const PackedCache& cache, TokenRun run) {
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const Status status =
        plan.WritePacked(static_cast<int>(layer), run.begin, run.end - run.begin,
                         cache.key(layer, run.begin), cache.value(layer, run.begin));
    EXPECT_TRUE(status.ok()) << status.message;
  }
}

// All that is missing of `tokens`, run by run. Returns the first error, else the sums.
inline Result<CommitInfo> StorePacked(Space& space, const SpaceSpec& spec,
                                      const std::vector<uint32_t>& tokens, const PackedCache& cache,
                                      const ReserveOptions& options = {}) {
  Plan plan = space.Reserve(tokens, options);
  if (!plan.status().ok()) return {.status = plan.status(), .held = {}};
  CommitInfo sum;
  const auto commit = [&](uint32_t end, bool sequence_end) {
    const Result<CommitInfo> stored = plan.Commit(end, {.sequence_end = sequence_end});
    if (stored.ok()) {
      sum.stored_tokens += stored.value().stored_tokens;
      sum.duplicate_tokens += stored.value().duplicate_tokens;
    }
    return stored.status;
  };
  for (const TokenRun run : plan.missing()) {
    WriteRun(plan, spec, cache, run);
    if (const Status status = commit(run.end, false); !status.ok()) return {status, {}};
  }
  const Status status = commit(static_cast<uint32_t>(tokens.size()), true);
  return {.status = status, .held = sum};
}

}  // namespace prefixd
