// Engines that batch: packed K and V of several leases are gathered into one tensor by strides, and
// each sequence is stored out of that tensor again, byte for byte.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

constexpr std::array<uint32_t, 3> kLengths = {70, 300, 129};
constexpr uint32_t kWidth = 300;

// K or V of one layer of a batch: [rows][heads][kWidth][row bytes], a row's tokens at the right
// end.
class Batch {
 public:
  Batch(const TensorFormat& format, uint32_t heads, uint32_t dim)
      : heads_(heads), row_(BytesOfRow(format, dim)) {
    codes_.resize(kLengths.size() * heads * kWidth * row_.codes);
    scales_.resize(kLengths.size() * heads * kWidth * row_.scales);
    biases_.resize(kLengths.size() * heads * kWidth * row_.biases);
  }
  // The tokens of one row from token `begin` on.
  MutablePackedView Row(uint32_t row, uint32_t begin) {
    const size_t slot = row * size_t{heads_} * kWidth + (kWidth - kLengths[row]) + begin;
    return {.codes = codes_.data() + slot * row_.codes,
            .scales = scales_.data() + slot * row_.scales,
            .biases = biases_.data() + slot * row_.biases,
            .codes_head_stride = size_t{kWidth} * row_.codes,
            .codes_token_stride = row_.codes,
            .scales_head_stride = size_t{kWidth} * row_.scales,
            .scales_token_stride = row_.scales};
  }
  PackedView ReadRow(uint32_t row, uint32_t begin) {
    const MutablePackedView view = Row(row, begin);
    return {view.codes,
            view.scales,
            view.biases,
            view.codes_head_stride,
            view.codes_token_stride,
            view.scales_head_stride,
            view.scales_token_stride};
  }
  // What stands before a row's tokens is as it was: zero.
  bool IsPaddedWithZeros(uint32_t row) const {
    const auto zeros = [&](const std::vector<std::byte>& plane, size_t bytes) {
      for (size_t head = row * size_t{heads_}; head < (row + size_t{1}) * heads_; ++head) {
        const std::byte* const begin = plane.data() + head * kWidth * bytes;
        const size_t padding = (kWidth - kLengths[row]) * bytes;
        if (std::any_of(begin, begin + padding, [](std::byte b) { return b != std::byte{0}; }))
          return false;
      }
      return true;
    };
    return zeros(codes_, row_.codes) && zeros(scales_, row_.scales) && zeros(biases_, row_.biases);
  }

 private:
  const uint32_t heads_;
  const RowBytes row_;
  std::vector<std::byte> codes_, scales_, biases_;
};

class BatchTest : public testing::TestWithParam<KvFormat> {
 protected:
  // Gathers all sequences into one tensor for K and one for V of each layer.
  void GatherAll(Space& space) {
    for (const LayerSpec& l : spec_.layers) {
      keys_.emplace_back(l.formats[0].key, l.kv_heads, l.key_dim);
      values_.emplace_back(l.formats[0].value, l.kv_heads, l.value_dim);
    }
    for (uint32_t row = 0; row < kLengths.size(); ++row) {
      Lease lease = space.Acquire(tokens_[row]);
      ASSERT_EQ(lease.WaitAll(), kLengths[row]);
      for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const Status status = lease.Gather(static_cast<int>(layer), 0, kLengths[row],
                                           keys_[layer].Row(row, 0), values_[layer].Row(row, 0));
        ASSERT_TRUE(status.ok()) << status.message;
      }
    }
  }
  // Stores one row of the batch.
  void StoreRow(Space& space, uint32_t row) {
    Plan plan = space.Reserve(tokens_[row]);
    for (const TokenRun run : plan.missing()) {
      for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
        const Status status = plan.WritePacked(
            static_cast<int>(layer), run.begin, run.end - run.begin,
            keys_[layer].ReadRow(row, run.begin), values_[layer].ReadRow(row, run.begin));
        ASSERT_TRUE(status.ok()) << status.message;
      }
      ASSERT_TRUE(plan.Commit(run.end).ok());
    }
    ASSERT_TRUE(plan.Commit(kLengths[row], {.sequence_end = true}).ok());
  }

  TempDirectory directory_;
  Daemon daemon_{directory_.socket()};
  Client client_{{.address = directory_.address()}};
  const SpaceSpec spec_ = SmallSpace(GetParam());
  const std::array<std::vector<uint32_t>, 3> tokens_ = {
      Tokens(kLengths[0], 1000), Tokens(kLengths[1], 2000), Tokens(kLengths[2], 3000)};
  std::vector<Batch> keys_, values_;  // [layer]
};

// S4-11, S4-12: the bytes of K and V differ in every row, so a mix-up of any two would be seen.
TEST_P(BatchTest, LeasesOfDifferentLengthBecomeOneTensorPaddedOnTheLeftAndPartAgain) {
  Result<Space> space = client_.OpenSpace(spec_);
  SpaceSpec other = spec_;
  other.model = "elsewhere";
  Result<Space> elsewhere = client_.OpenSpace(other);
  std::vector<PackedCache> caches;
  for (uint32_t row = 0; row < kLengths.size(); ++row) {
    caches.emplace_back(spec_, kLengths[row], row);
    ASSERT_TRUE(StorePacked(space.value(), spec_, tokens_[row], caches[row]).ok());
  }
  ASSERT_NO_FATAL_FAILURE(GatherAll(space.value()));
  for (uint32_t row = 0; row < kLengths.size(); ++row) {
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      EXPECT_TRUE(keys_[layer].IsPaddedWithZeros(row));
      EXPECT_TRUE(values_[layer].IsPaddedWithZeros(row));
    }
    ASSERT_NO_FATAL_FAILURE(StoreRow(elsewhere.value(), row));
    Lease lease = elsewhere.value().Acquire(tokens_[row]);
    ASSERT_EQ(lease.WaitAll(), kLengths[row]);
    EXPECT_TRUE(PackedCache::Gathered(lease, other, kLengths[row]) == caches[row]);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BatchTest,
                         testing::Values(MlxAffine(8, 64, Dtype::kF16),
                                         Tiled(MlxAffine(8, 64, 4, 32, Dtype::kBf16)),
                                         MlxAffine(4, 64, 2, 32, Dtype::kF16), Raw(Dtype::kBf16),
                                         Ggml(Codec::kQ8_0, Codec::kQ4_0)));

}  // namespace
}  // namespace prefixd
