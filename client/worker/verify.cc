#include "client/worker/verify.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/cpp/convert.h"
#include "quant/codec.h"

namespace prefixd::worker {
namespace {

// Packed K or V of one layer: [kv_heads, tokens, bytes of a row], dense.
class PackedTensor {
 public:
  PackedTensor(const TensorFormat& format, const ModelConfig& config, uint32_t tokens)
      : format_(client::FromPublic(format)),
        dim_(config.head_dim),
        tokens_(tokens),
        row_(BytesOfRow(format, config.head_dim)),
        codes_(size_t{config.kv_heads} * tokens * row_.codes),
        scales_(size_t{config.kv_heads} * tokens * row_.scales),
        biases_(size_t{config.kv_heads} * tokens * row_.biases) {
    format_.layout = quant::Layout::kRows;  // what Gather gives, whatever the page's layout
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

// What is known of every token and block after some layers.
class Comparison {
 public:
  Comparison(const Model& model, uint32_t tokens)
      : heads_(model.config().kv_heads),
        tokens_(tokens),
        block_tokens_(model.grid()),
        identical_(tokens, true),
        worst_((tokens + block_tokens_ - 1) / block_tokens_, 0) {}

  void Add(const PackedTensor& hit, const PackedTensor& cold) {
    for (size_t block = 0; block < worst_.size(); ++block) {
      const auto begin = static_cast<uint32_t>(block) * block_tokens_;
      worst_[block] = std::max(worst_[block], Difference(hit, cold, begin));
    }
  }
  Verification Result(double bound) const {
    Verification result{.tokens = tokens_, .bound = bound};
    result.identical_tokens =
        static_cast<uint32_t>(std::count(identical_.begin(), identical_.end(), true));
    for (const double worst : worst_) {
      result.worst = std::max(result.worst, worst);
      if (!(worst <= bound)) ++result.wrong_blocks;  // NaN is wrong too
    }
    return result;
  }

 private:
  // Relative RMS of the block that begins at `begin`.
  double Difference(const PackedTensor& hit, const PackedTensor& cold, uint32_t begin) {
    const uint32_t end = std::min(tokens_, begin + block_tokens_);
    double squares = 0, all = 0;
    bool same = true;
    for (uint32_t head = 0; head < heads_; ++head) {
      for (uint32_t token = begin; token < end; ++token) {
        const size_t row = size_t{head} * tokens_ + token;
        if (!hit.SameRow(cold, row)) same = identical_[token] = false;
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

  const uint32_t heads_, tokens_, block_tokens_;
  std::vector<bool> identical_;
  std::vector<double> worst_;  // of each block
  std::vector<float> a_, b_;
};

}  // namespace

double VerifyBound(const KvFormat& format) {
  const int bits = std::min(format.key.bits, format.value.bits);
  return bits > 8 ? 0.02 : bits == 8 ? 0.1 : 0.5;
}

absl::StatusOr<Verification> VerifyHit(Model& model, Space& space, const Sequence& hit,
                                       std::span<const uint32_t> tokens) {
  const auto count = static_cast<uint32_t>(tokens.size());
  Sequence cold = space.Begin(tokens, {.max_tokens = 0});  // looks nothing up
  for (uint32_t at = 0; at < count;) {
    const uint32_t end = std::min(model.StepEnd(at), count);
    PREFIXD_RETURN_IF_ERROR(
        model.Prefill(cold, {.tokens = tokens, .begin = at, .end = end, .cached = 0}).status());
    at = end;
  }
  const KvFormat& format = model.formats()[0];
  Comparison comparison(model, count);
  for (int layer = 0; layer < static_cast<int>(model.config().layers); ++layer) {
    PackedTensor hit_key(format.key, model.config(), count), cold_key = hit_key;
    PackedTensor hit_value(format.value, model.config(), count), cold_value = hit_value;
    PREFIXD_RETURN_IF_ERROR(Checked(hit.Gather(layer, 0, count, hit_key.View(), hit_value.View())));
    PREFIXD_RETURN_IF_ERROR(
        Checked(cold.Gather(layer, 0, count, cold_key.View(), cold_value.View())));
    comparison.Add(hit_key, cold_key);
    comparison.Add(hit_value, cold_value);
  }
  return comparison.Result(VerifyBound(format));
}

}  // namespace prefixd::worker
