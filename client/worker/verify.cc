#include "client/worker/verify.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "base/status.h"
#include "quant/codec.h"

namespace prefixd::worker {
namespace {

// Packed K or V of one layer: [kv_heads, tokens, bytes of a row], dense.
class PackedTensor {
 public:
  PackedTensor(const TensorFormat& format, const ModelConfig& config, uint32_t tokens)
      : format_(format),
        dim_(config.head_dim),
        tokens_(tokens),
        row_(BytesOfRow(format, config.head_dim)),
        codes_(size_t{config.kv_heads} * tokens * row_.codes),
        scales_(size_t{config.kv_heads} * tokens * row_.scales),
        biases_(size_t{config.kv_heads} * tokens * row_.biases) {
    format_.layout = Layout::kRows;  // Gather gives rows, whatever the page's layout
  }
  MutablePackedView View() {
    return {.codes = codes_.data(),
            .scales = scales_.data(),
            .biases = biases_.data(),
            .codes_head_stride = size_t{tokens_} * row_.codes,
            .codes_token_stride = row_.codes,
            .scales_head_stride = size_t{tokens_} * row_.scales,
            .scales_token_stride = row_.scales};
  }
  bool SameRow(const PackedTensor& other, size_t row) const {
    const auto same = [&](const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                          size_t bytes) {
      return std::memcmp(a.data() + row * bytes, b.data() + row * bytes, bytes) == 0;
    };
    return same(codes_, other.codes_, row_.codes) && same(scales_, other.scales_, row_.scales) &&
           same(biases_, other.biases_, row_.biases);
  }
  void Dequantize(size_t row, std::vector<float>* values) const {
    values->resize(dim_);
    quant::DequantizeRow(format_,
                         {.codes = codes_.data() + row * row_.codes,
                          .scales = scales_.data() + row * row_.scales,
                          .biases = biases_.data() + row * row_.biases},
                         *values);
  }

 private:
  quant::TensorFormat format_;
  const uint32_t dim_, tokens_;
  const RowBytes row_;
  std::vector<std::byte> codes_, scales_, biases_;
};

absl::Status Checked(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("verify: ", status.message));
}

// K and V of one block of a layer, in the block's format.
struct BlockRows {
  BlockRows(const KvFormat& kv, const ModelConfig& config, uint32_t tokens)
      : key(kv.key, config, tokens), value(kv.value, config, tokens) {}

  absl::Status GatherFrom(const Sequence& sequence, int layer, uint32_t begin, uint32_t count) {
    return Checked(sequence.Gather(layer, begin, count, key.View(), value.View()));
  }
  PackedTensor key, value;
};

// The findings about every token and block after the layers added so far.
class Comparison {
 public:
  Comparison(const Model& model, uint32_t tokens)
      : model_(model),
        tokens_(tokens),
        identical_(tokens, true),
        worst_((tokens + model.grid() - 1) / model.grid(), 0) {}

  // Compares one layer. A block that a sliding layer does not hold is not compared.
  absl::Status Add(Sequence& hit, Sequence& cold, int layer) {
    const std::span<const BlockTableEntry> hits = hit.block_table(layer);
    const std::span<const BlockTableEntry> colds = cold.block_table(layer);
    if (hits.size() < worst_.size() || colds.size() < worst_.size()) {
      return absl::InternalError("verify: the block tables are too short");
    }
    for (uint32_t block = 0; block < worst_.size(); ++block) {
      if (hits[block].units == nullptr || colds[block].units == nullptr) continue;
      const uint32_t begin = block * model_.grid();
      const uint32_t count = std::min(tokens_ - begin, model_.grid());
      const KvFormat& hit_format = model_.formats()[hits[block].format];
      const KvFormat& cold_format = model_.formats()[colds[block].format];
      BlockRows a(hit_format, model_.config(), count), b(cold_format, model_.config(), count);
      PREFIXD_RETURN_IF_ERROR(a.GatherFrom(hit, layer, begin, count));
      PREFIXD_RETURN_IF_ERROR(b.GatherFrom(cold, layer, begin, count));
      const bool comparable = hits[block].format == colds[block].format;
      for (const auto& [ours, theirs] :
           {std::pair(&a.key, &b.key), std::pair(&a.value, &b.value)}) {
        const double difference = Difference(*ours, *theirs, begin, count, comparable);
        worst_[block] = std::max(worst_[block], difference);
      }
      bound_ = std::max({bound_, VerifyBound(hit_format), VerifyBound(cold_format)});
    }
    return absl::OkStatus();
  }
  Verification Result() const {
    Verification result{.tokens = tokens_, .bound = bound_};
    result.identical_tokens =
        static_cast<uint32_t>(std::count(identical_.begin(), identical_.end(), true));
    for (const double worst : worst_) {
      result.worst = std::max(result.worst, worst);
      if (!(worst <= bound_)) ++result.wrong_blocks;  // NaN is wrong too
    }
    return result;
  }

 private:
  // Returns the relative RMS difference of the block at `begin`: 0 if all bytes are the same,
  // infinity if a value is not finite.
  double Difference(const PackedTensor& hit, const PackedTensor& cold, uint32_t begin,
                    uint32_t count, bool same_format) {
    double squares = 0, all = 0;
    bool same = true;
    for (uint32_t head = 0; head < model_.config().kv_heads; ++head) {
      for (uint32_t token = 0; token < count; ++token) {
        const size_t row = size_t{head} * count + token;
        if (!same_format || !hit.SameRow(cold, row)) same = identical_[begin + token] = false;
        hit.Dequantize(row, &a_);
        cold.Dequantize(row, &b_);
        for (size_t i = 0; i < a_.size(); ++i) {
          const double difference = double{a_[i]} - double{b_[i]};
          squares += difference * difference;
          all += double{b_[i]} * double{b_[i]};
        }
      }
    }
    if (same) return 0;
    return std::isfinite(squares) ? std::sqrt(squares / std::max(all, 1e-30)) : INFINITY;
  }

  const Model& model_;
  const uint32_t tokens_;
  std::vector<bool> identical_;
  std::vector<double> worst_;  // worst difference of each block
  double bound_ = 0;           // bound of the coarsest format seen
  std::vector<float> a_, b_;
};

}  // namespace

double VerifyBound(const KvFormat& format) {
  const int bits = std::min(format.key.bits, format.value.bits);
  return bits > 8 ? 0.02 : bits == 8 ? 0.1 : 0.5;
}

absl::StatusOr<Verification> VerifyHit(Model& model, Space& space, Sequence& hit,
                                       std::span<const uint32_t> tokens) {
  const auto count = static_cast<uint32_t>(tokens.size());
  Sequence cold = space.Begin(  // looks nothing up
      tokens,
      {.max_cached_tokens = 0, .write_format = static_cast<uint32_t>(model.formats().size() - 1)});
  RunningState state;
  for (uint32_t at = 0; at < count;) {
    const uint32_t end = std::min(model.StepEnd(at), count);
    PREFIXD_RETURN_IF_ERROR(
        model
            .Prefill(cold,
                     {.tokens = tokens, .begin = at, .end = end, .cached = 0, .state = &state})
            .status());
    at = end;
  }
  Comparison comparison(model, count);
  for (uint32_t layer = 0; layer < model.config().layers; ++layer) {
    if (model.config().layer(layer).type == LayerType::kGatedDelta) continue;
    PREFIXD_RETURN_IF_ERROR(comparison.Add(hit, cold, static_cast<int>(layer)));
  }
  return comparison.Result();
}

}  // namespace prefixd::worker
