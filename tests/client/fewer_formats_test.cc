// Layers with fewer formats than others: an index beyond theirs is their last one.
#include <optional>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

const KvFormat kRaw = Raw(Dtype::kF16), kQuantized = MlxAffine(8, 64, Dtype::kF16);

// A full layer in raw and in 8 bits beside layers in raw alone, one of which slides.
SpaceSpec SomeFormats() {
  SpaceSpec spec = SmallSpace(kRaw);
  spec.layers[0].formats = {kRaw, kQuantized};
  spec.layers[2].kind = LayerKind::kSliding;
  spec.layers[2].window = 1000;
  return spec;
}

// `spec` with the one format in which each layer stands when `format` is written.
SpaceSpec Written(SpaceSpec spec, uint32_t format) {
  for (LayerSpec& layer : spec.layers)
    layer.formats = {layer.formats[std::min<size_t>(format, layer.formats.size() - 1)]};
  return spec;
}

class FewerFormatsTest : public testing::TestWithParam<bool> {
 protected:
  FewerFormatsTest()
      : daemon_(directory_.socket(), {.arena = GetParam() ? arena_.path() : "", .directory = ""}),
        client_({.address = directory_.address()}),
        space_(client_.OpenSpace(spec_)) {}
  // Tokens stored.
  uint32_t Store(uint32_t format, uint64_t readable = ~uint64_t{0}) {
    const Result<CommitInfo> stored =
        StorePacked(space_.value(), Written(spec_, format), tokens_, CacheIn(format),
                    {.write_format = format, .readable = readable});
    EXPECT_TRUE(stored.ok()) << stored.status.message;
    return stored.ok() ? stored.value().stored_tokens : 0;
  }
  PackedCache CacheIn(uint32_t format) const { return {Written(spec_, format), 300, 7}; }
  uint32_t Restorable(uint64_t readable) {
    return space_.value().Acquire(tokens_, {.readable = readable}).WaitAll();
  }
  void ExpectStored(uint32_t format, uint64_t readable) {
    Lease lease = space_.value().Acquire(tokens_, {.readable = readable});
    ASSERT_EQ(lease.WaitAll(), 300u) << lease.match().why_shorter << lease.match().status.message;
    EXPECT_TRUE(PackedCache::Gathered(lease, Written(spec_, format), 300) == CacheIn(format));
    EXPECT_EQ(lease.runs(0)[0].format, format);
    EXPECT_EQ(lease.runs(1)[0].format, 0u);
    EXPECT_EQ(lease.runs(2)[0].format, 0u);
  }

  const TempDirectory directory_;
  const ArenaPath arena_;
  const SpaceSpec spec_ = SomeFormats();
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
  Daemon daemon_;
  Client client_;
  Result<Space> space_;
};

TEST_P(FewerFormatsTest, OnePlanWritesEachLayerInTheFormatThatItHas) {
  ASSERT_TRUE(space_.ok()) << space_.status.message;
  EXPECT_EQ(Store(1), 300u);
  for (const uint64_t readable : {~uint64_t{0}, uint64_t{2}, uint64_t{3}})
    ExpectStored(1, readable);
  EXPECT_EQ(Restorable(1), 0u) << "the full layer stands in 8 bits";
  EXPECT_EQ(Store(1, 2), 0u) << "it is here";
  EXPECT_EQ(Store(0, 1), 300u) << "raw is not";
  ExpectStored(0, 1);
}

TEST_P(FewerFormatsTest, AppendedTokensToo) {
  ASSERT_TRUE(space_.ok()) << space_.status.message;
  const auto append = [&](uint32_t format) {
    Sequence seq =
        space_.value().Begin(tokens_, {.readable = uint64_t{1} << format, .write_format = format});
    const uint32_t begin = seq.WaitAll();
    AppendTokens(seq, spec_, tokens_, begin, 300);
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    EXPECT_TRUE(stored.ok()) << stored.status.message;
    EXPECT_EQ(seq.block_table(0).front().format, format);
    EXPECT_EQ(seq.block_table(1).front().format, 0u);
    return begin;
  };
  EXPECT_EQ(append(1), 0u);
  EXPECT_EQ(append(1), 300u);
  EXPECT_EQ(append(0), 0u);
  EXPECT_EQ(append(0), 300u);
}

TEST_P(FewerFormatsTest, AFormatThatNoLayerHasIsRefused) {
  ASSERT_TRUE(space_.ok()) << space_.status.message;
  const PackedCache cache = CacheIn(1);
  Plan plan = space_.value().Reserve(tokens_, {.write_format = 2});
  const Status status = plan.WritePacked(1, 0, 300, cache.key(1, 0), cache.value(1, 0));
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message, "write_packed: write_format is 2, the layers have 2");
  Sequence seq = space_.value().Begin(tokens_, {.write_format = 2});
  EXPECT_EQ(seq.WritePacked(1, 0, 300, cache.key(1, 0), cache.value(1, 0)).code,
            StatusCode::kInvalidArgument);
  const std::vector<float> row(1024);
  EXPECT_EQ(seq.Append(1, 0, 1, {.data = row.data()}, {.data = row.data()}).code,
            StatusCode::kInvalidArgument);
  EXPECT_EQ(space_.value().Acquire(tokens_, {.readable = 0}).match().status.code,
            StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Arena, FewerFormatsTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "InPlace" : "Copied"; });

// Advice is seen in the layers that have a choice, and followed in those alone.
TEST(FewerFormatsAdviceTest, TheAdvisedFormatIsThatOfTheLayersThatHaveIt) {
  const TempDirectory directory;
  const ArenaPath arena;
  const Daemon daemon(directory.socket(), {.arena = arena.path(),
                                           .directory = "",
                                           .ram_bytes = uint64_t{32} << 20,
                                           .tighten_above = 0.2});
  Client client({.address = directory.address(), .staging_bytes = 1 << 20});
  SpaceSpec spec = SomeFormats();
  std::swap(spec.layers[0], spec.layers[2]);  // the first group has no choice
  spec.layers[0].kv_heads = spec.layers[2].kv_heads = 8;
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  uint32_t format = 0;
  for (uint32_t seed = 1; seed < 200 && format == 0; ++seed) {
    const std::vector<uint32_t> tokens = Tokens(300, seed);
    Plan plan = space.value().Reserve(tokens, {.coarser_formats = 2});
    ASSERT_TRUE(plan.status().ok()) << plan.status().message;
    for (const TokenRun run : plan.mine()) {
      format = run.format;
      WriteRun(plan, Written(spec, format), PackedCache(Written(spec, format), 300, seed), run);
      const Result<CommitInfo> stored = plan.Commit(run.end);
      ASSERT_TRUE(stored.ok()) << stored.status.message;
    }
    if (format == 0) continue;
    Lease lease = space.value().Acquire(tokens);
    ASSERT_GT(lease.WaitAll(), 0u);
    EXPECT_EQ(lease.runs(0)[0].format, 0u);
    EXPECT_EQ(lease.runs(2)[0].format, 1u);
  }
  EXPECT_EQ(format, 1u);
}

}  // namespace
}  // namespace prefixd
