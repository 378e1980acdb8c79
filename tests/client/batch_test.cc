// Batches of packed K and V: gathered from leases, taken apart and put together, written out of,
// byte for byte.
#include "prefixd/batch.h"

#include <array>
#include <cstring>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

constexpr std::array<uint32_t, 3> kLengths = {70, 300, 129};

// Rows [kv_heads][tokens], dense: what a view shows.
Packed Shown(const PackedView& view, const TensorFormat& format, uint32_t heads, uint32_t dim,
             uint32_t tokens) {
  Packed shown(format, heads, dim, tokens);
  const RowBytes row = BytesOfRow(format, dim);
  const auto copy = [&](const void* from, size_t head_stride, size_t bytes,
                        std::vector<std::byte>* to) {
    for (size_t head = 0; bytes > 0 && head < heads; ++head) {
      std::memcpy(to->data() + head * tokens * bytes,
                  static_cast<const std::byte*>(from) + head * head_stride, tokens * bytes);
    }
  };
  copy(view.codes, view.codes_head_stride, row.codes, &shown.codes);
  copy(view.scales, view.scales_head_stride, row.scales, &shown.scales);
  copy(view.biases, view.scales_head_stride, row.biases, &shown.biases);
  return shown;
}

class BatchTest : public testing::TestWithParam<KvFormat> {
 protected:
  BatchTest() {
    for (uint32_t i = 0; i < kLengths.size(); ++i) {
      tokens_.push_back(Tokens(kLengths[i], 1000 * (i + 1)));
      caches_.emplace_back(spec_, kLengths[i], i);
      EXPECT_TRUE(StorePacked(space_.value(), spec_, tokens_[i], caches_[i]).ok());
      leases_.push_back(space_.value().Acquire(tokens_[i]));
      EXPECT_EQ(leases_[i].WaitAll(), kLengths[i]);
    }
  }
  Result<PackedBatch> GatherLayer(uint32_t layer) {
    std::vector<Lease*> all;
    for (Lease& lease : leases_) all.push_back(&lease);
    return PackedBatch::Gather(all, static_cast<int>(layer), spec_.layers[layer], kLengths);
  }
  // A row of a batch and a sequence's own tensors are the same bytes.
  void ExpectRow(const PackedBatch& batch, uint32_t row, uint32_t layer, uint32_t sequence) {
    const LayerSpec& l = spec_.layers[layer];
    const uint32_t n = kLengths[sequence];
    ASSERT_EQ(batch.length(row), n);
    const TensorFormat &key = l.formats[0].key, &value = l.formats[0].value;
    EXPECT_EQ(Shown(batch.key(row), key, l.kv_heads, l.key_dim, n),
              Shown(caches_[sequence].key(layer, 0), key, l.kv_heads, l.key_dim, n));
    EXPECT_EQ(Shown(batch.value(row), value, l.kv_heads, l.value_dim, n),
              Shown(caches_[sequence].value(layer, 0), value, l.kv_heads, l.value_dim, n));
  }

  TempDirectory directory_;
  Daemon daemon_{directory_.socket()};
  Client client_{{.address = directory_.address()}};
  SpaceSpec spec_ = SmallSpace(GetParam());
  Result<Space> space_ = client_.OpenSpace(spec_);
  std::vector<std::vector<uint32_t>> tokens_;
  std::vector<PackedCache> caches_;
  std::vector<Lease> leases_;
};

// S4-11
TEST_P(BatchTest, LeasesOfDifferentLengthBecomeOneTensorPaddedOnTheLeft) {
  for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    Result<PackedBatch> gathered = GatherLayer(layer);
    ASSERT_TRUE(gathered.ok()) << gathered.status.message;
    PackedBatch& batch = gathered.value();
    EXPECT_EQ(batch.width(), 300u);
    for (uint32_t row = 0; row < 3; ++row) ExpectRow(batch, row, layer, row);
    // What stands before a row's tokens is zero, in K and in V.
    const LayerSpec& l = spec_.layers[layer];
    for (const auto& [plane, format, dim] :
         {std::tuple(batch.key(), l.formats[0].key, l.key_dim),
          std::tuple(batch.value(), l.formats[0].value, l.value_dim)}) {
      const RowBytes row = BytesOfRow(format, dim);
      const auto* codes = static_cast<const std::byte*>(plane.codes);
      for (size_t head = 0; head < l.kv_heads; ++head) {
        const size_t begin = head * plane.codes_head_stride;
        for (size_t i = 0; i < batch.padding(0) * size_t{row.codes}; ++i) {
          ASSERT_EQ(codes[begin + i], std::byte{0});
        }
      }
    }
  }
}

TEST_P(BatchTest, MergeFilterExtendAndExtractMoveBytesAndNothingElse) {
  PackedBatch all = GatherLayer(1).value();
  Result<PackedBatch> last = all.Extract(2);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last.value().width(), 129u) << "no padding is left";
  ExpectRow(last.value(), 0, 1, 2);

  const std::array<uint32_t, 2> kept = {2, 0};
  PackedBatch filtered = all.Filter(kept).value();
  EXPECT_EQ(filtered.width(), 129u) << "as wide as the longest that is left";
  ExpectRow(filtered, 0, 1, 2);
  ExpectRow(filtered, 1, 1, 0);

  PackedBatch one = all.Extract(1).value();
  const std::array<const PackedBatch*, 2> both = {&filtered, &one};
  const Result<PackedBatch> merged = PackedBatch::Merge(both);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().width(), 300u);
  for (const auto& [row, sequence] : {std::pair(0u, 2u), {1u, 0u}, {2u, 1u}}) {
    ExpectRow(merged.value(), row, 1, sequence);
  }
  ASSERT_TRUE(filtered.Extend(one).ok());
  for (const auto& [row, sequence] : {std::pair(0u, 2u), {1u, 0u}, {2u, 1u}}) {
    ExpectRow(filtered, row, 1, sequence);
  }
  EXPECT_EQ(all.Extract(3).status.message, "batch: row 3 of 3");
  const std::array<const PackedBatch*, 2> strangers = {&all, &last.value()};
  EXPECT_TRUE(PackedBatch::Merge(strangers).ok());
  const PackedBatch other = GatherLayer(0).value();
  EXPECT_FALSE(filtered.Extend(other).ok()) << "of another layer";
}

TEST_P(BatchTest, AStepOfDecodingGoesBehindEveryRow) {
  PackedBatch all = GatherLayer(0).value();
  const LayerSpec& l = spec_.layers[0];
  const std::array<uint32_t, 3> one = {1, 1, 1};
  PackedBatch step(l, 0, one);
  for (uint32_t row = 0; row < 3; ++row) {
    std::memset(step.key(row).codes, static_cast<int>(row + 1), 1);
  }
  ASSERT_TRUE(all.Append(step).ok());
  for (uint32_t row = 0; row < 3; ++row) {
    ASSERT_EQ(all.length(row), kLengths[row] + 1);
    const std::byte newest =
        *static_cast<const std::byte*>(std::as_const(all).key(row, kLengths[row]).codes);
    EXPECT_EQ(newest, static_cast<std::byte>(row + 1));
    const uint32_t n = kLengths[row];
    EXPECT_EQ(Shown(std::as_const(all).key(row), l.formats[0].key, l.kv_heads, l.key_dim, n),
              Shown(caches_[row].key(0, 0), l.formats[0].key, l.kv_heads, l.key_dim, n));
  }
}

// A row of a batch is stored as it stands, and comes back the same.
TEST_P(BatchTest, ARowIsWrittenOutOfTheBatch) {
  std::vector<PackedBatch> layers;
  for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    layers.push_back(GatherLayer(layer).value());
  }
  SpaceSpec elsewhere = spec_;
  elsewhere.model = "elsewhere";
  Result<Space> space = client_.OpenSpace(elsewhere);
  Plan plan = space.value().Reserve(tokens_[2]);
  for (const TokenRun run : plan.missing()) {
    for (uint32_t layer = 0; layer < layers.size(); ++layer) {
      const PackedBatch& batch = layers[layer];
      const Status status =
          plan.WritePacked(static_cast<int>(layer), run.begin, run.end - run.begin,
                           batch.key(2, run.begin), batch.value(2, run.begin));
      ASSERT_TRUE(status.ok()) << status.message;
    }
    ASSERT_TRUE(plan.Commit(run.end).ok());
  }
  ASSERT_TRUE(plan.Commit(129, {.sequence_end = true}).ok());
  Lease lease = space.value().Acquire(tokens_[2]);
  ASSERT_EQ(lease.WaitAll(), 129u);
  EXPECT_TRUE(PackedCache::Gathered(lease, elsewhere, 129) == caches_[2]);
}

INSTANTIATE_TEST_SUITE_P(Formats, BatchTest,
                         testing::Values(MlxAffine(8, 64, Dtype::kF16),
                                         Tiled(MlxAffine(8, 64, 4, 32, Dtype::kBf16)),
                                         MlxAffine(4, 64, 2, 32, Dtype::kF16), Raw(Dtype::kBf16),
                                         Ggml(Codec::kQ8_0, Codec::kQ4_0)));

// S4-12: where V is K and a constant, a copy of K in V's place is seen.
TEST(BatchValuesTest, ValuesAreNotKeys) {
  TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address()});
  SpaceSpec spec{.model = "test", .weights_digest = {std::byte{7}}};
  spec.layers = {{.kv_heads = 2, .key_dim = 64, .value_dim = 64, .formats = {Raw(Dtype::kF32)}}};
  Result<Space> space = client.OpenSpace(spec);
  std::vector<Lease> leases;
  const std::array<uint32_t, 2> lengths = {40, 100};
  for (const uint32_t length : lengths) {
    const std::vector<uint32_t> tokens = Tokens(length, length);
    std::vector<float> k = Tensor(tokens, 0, length, 0, 2, 64, true), v = k;
    for (float& x : v) x += 4;
    Sequence seq = space.value().Begin(tokens);
    ASSERT_TRUE(seq.Append(0, 0, length, {.data = k.data()}, {.data = v.data()}).ok());
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    leases.push_back(space.value().Acquire(tokens));
    ASSERT_EQ(leases.back().WaitAll(), length);
  }
  const std::array<Lease*, 2> both = {&leases[0], &leases[1]};
  PackedBatch batch = PackedBatch::Gather(both, 0, spec.layers[0], lengths).value();
  batch = batch.Filter(std::array<uint32_t, 2>{1, 0}).value();
  for (uint32_t row = 0; row < 2; ++row) {
    const auto* key = static_cast<const float*>(batch.key(row).codes);
    const auto* value = static_cast<const float*>(batch.value(row).codes);
    for (uint32_t i = 0; i < batch.length(row) * 64; ++i) ASSERT_EQ(value[i], key[i] + 4);
  }
}

}  // namespace
}  // namespace prefixd
