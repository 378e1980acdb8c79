// Engines that own their KV memory: packed bytes go in through a Plan and come out through a Lease,
// bit for bit.
#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class LeaseTest : public testing::Test {
 protected:
  void Open(const SpaceSpec& spec, bool arena = true, uint64_t staging_bytes = 4 << 20) {
    spec_ = spec;
    daemon_.emplace(directory_.socket(),
                    DaemonOptions{.arena = arena ? arena_.path() : "", .directory = ""});
    client_.emplace(ClientOptions{.address = directory_.address(), .staging_bytes = staging_bytes});
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  void Open() { Open(SmallSpace(MlxAffine(8, 64, Dtype::kF16))); }
  uint64_t Count(const std::string& name) {
    for (const block::NamedCount& count : daemon_->cache().GetStats().counters) {
      if (count.name == name) return count.value;
    }
    return 0;
  }
  template <typename Done>
  static bool Eventually(Done done) {
    for (const auto end = steady_clock::now() + milliseconds(20'000); steady_clock::now() < end;) {
      if (done()) return true;
      std::this_thread::yield();
    }
    return false;
  }
  // Stores `cache` as the bytes of tokens_.
  void Store(const PackedCache& cache) {
    const Result<CommitInfo> stored = StorePacked(space_.value(), spec_, tokens_, cache);
    ASSERT_TRUE(stored.ok()) << stored.status.message;
    EXPECT_EQ(stored.value().stored_tokens, tokens_.size());
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  SpaceSpec spec_;
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
};

struct Carried {
  const char* name;
  KvFormat format;
  bool arena;
};
// K in rows, V [dim][tokens].
KvFormat TransposedValues(Dtype dtype) {
  KvFormat format = Raw(dtype);
  format.value.layout = Layout::kTransposed;
  return format;
}

class CarriedTest : public LeaseTest, public testing::WithParamInterface<Carried> {};

TEST_P(CarriedTest, PackedBytesGoInAndComeOutBitForBit) {
  Open(SmallSpace(GetParam().format), GetParam().arena);
  const PackedCache cache(spec_, 300, 7);
  Store(cache);
  Lease lease = space_.value().Acquire(tokens_);
  EXPECT_EQ(lease.match().kind, MatchKind::kExact);
  EXPECT_EQ(lease.match().in_place, GetParam().arena);
  ASSERT_EQ(lease.WaitAll(), 300u);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 300) == cache);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 171) == cache.Cut(171)) << "cut at the token";
  // A sequence reads the same bytes.
  Sequence seq = space_.value().Begin(tokens_);
  ASSERT_EQ(seq.WaitAll(), 300u);
  EXPECT_TRUE(PackedCache::Gathered(seq, spec_, 300) == cache);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CarriedTest,
    testing::Values(Carried{"Mlx8g64F16", MlxAffine(8, 64, Dtype::kF16), true},
                    Carried{"Mlx4g32Bf16", MlxAffine(4, 32, Dtype::kBf16), true},
                    Carried{"KeysDifferFromValues", MlxAffine(8, 64, 4, 32, Dtype::kF32), true},
                    Carried{"RawBf16", Raw(Dtype::kBf16), true},
                    Carried{"Ggml", Ggml(Codec::kQ8_0, Codec::kQ4_0), true},
                    Carried{"MxFp8AndNvFp4", BlockFloat(Codec::kMxFp8, Codec::kNvFp4), true},
                    Carried{"MxFp4Copied", BlockFloat(Codec::kMxFp4, Codec::kMxFp4), false},
                    Carried{"TransposedValues", TransposedValues(Dtype::kF16), true},
                    Carried{"TransposedValuesCopied", TransposedValues(Dtype::kF32), false},
                    Carried{"Mlx8g64F16Copied", MlxAffine(8, 64, Dtype::kF16), false},
                    Carried{"Mlx4g32Bf16Copied", MlxAffine(4, 32, Dtype::kBf16), false},
                    Carried{"KeysDifferFromValuesCopied", MlxAffine(8, 64, 4, 32, Dtype::kF32),
                            false}),
    [](const testing::TestParamInfo<Carried>& test) { return test.param.name; });

// More than a MiB a layer goes past the caches.
TEST_F(LeaseTest, LargeLayersComeOutBitForBitToo) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kBf16));
  for (LayerSpec& layer : spec.layers) layer.kv_heads = 48;
  Open(spec);
  const PackedCache cache(spec_, 300, 7);
  Store(cache);
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 300) == cache);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 171) == cache.Cut(171)) << "cut at the token";
}

TEST_F(LeaseTest, APartlySharedPromptIsRestoredToTheToken) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  Store(cache);
  std::vector<uint32_t> other = tokens_;
  other[101] += 1;
  Lease diverged = space_.value().Acquire(other);
  EXPECT_EQ(diverged.match().kind, MatchKind::kLcp);
  ASSERT_EQ(diverged.WaitAll(), 101u);
  EXPECT_TRUE(PackedCache::Gathered(diverged, spec_, 101) == cache.Cut(101));
  ASSERT_EQ(diverged.block_table(1).size(), 2u);
  EXPECT_EQ(diverged.block_table(1)[1].tokens, 101u - 64u);
  Lease exact = space_.value().Acquire(tokens_, {.max_cached_tokens = 299});
  EXPECT_EQ(exact.WaitAll(), 299u) << "an exact repeat reuses all but the last token (G1)";
}

TEST_F(LeaseTest, TensorsLargerThanTheirTokensAreFilledAndReadByTheirStrides) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  Store(cache);
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  // Room for 512 tokens a head and 16 bytes between rows; tokens [70, 300) of layer 0.
  const RowBytes row = BytesOfRow(spec_.layers[0].formats[0].key, 64);
  const size_t codes = row.codes + 16, scales = row.scales + 16;
  const std::byte untouched{0xee};
  std::vector<std::byte> planes[3] = {std::vector<std::byte>(2 * 512 * codes, untouched),
                                      std::vector<std::byte>(2 * 512 * scales, untouched),
                                      std::vector<std::byte>(2 * 512 * scales, untouched)};
  Packed value(spec_.layers[0].formats[0].value, 2, 128, 230);
  ASSERT_TRUE(lease
                  .Gather(0, 70, 230,
                          {.codes = planes[0].data(),
                           .scales = planes[1].data(),
                           .biases = planes[2].data(),
                           .codes_head_stride = 512 * codes,
                           .codes_token_stride = codes,
                           .scales_head_stride = 512 * scales,
                           .scales_token_stride = scales},
                          value.view())
                  .ok());
  const PackedView key = cache.key(0, 70);
  const void* from[3] = {key.codes, key.scales, key.biases};
  for (size_t plane = 0; plane < 3; ++plane) {
    const size_t bytes = plane == 0 ? row.codes : row.scales;
    const size_t from_head = plane == 0 ? key.codes_head_stride : key.scales_head_stride;
    const size_t stride = bytes + 16;
    size_t changed = 0;
    for (size_t head = 0; head < 2; ++head) {
      for (size_t t = 0; t < 230; ++t) {
        const std::byte* at = planes[plane].data() + (head * 512 + t) * stride;
        EXPECT_EQ(std::memcmp(
                      at, static_cast<const std::byte*>(from[plane]) + head * from_head + t * bytes,
                      bytes),
                  0)
            << plane << " " << head << " " << t;
        changed += static_cast<size_t>(std::count(at + bytes, at + stride, untouched));
      }
    }
    EXPECT_EQ(changed, 2u * 230 * 16) << "the bytes between rows stay";
  }
}

TEST_F(LeaseTest, WhatIsNotThereIsNotGathered) {
  Open();
  Store(PackedCache(spec_, 300, 7));
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  Packed key(spec_.layers[0].formats[0].key, 2, 64, 301);
  Packed value(spec_.layers[0].formats[0].value, 2, 128, 301);
  EXPECT_EQ(lease.Gather(0, 0, 301, key.view(), value.view()).code,
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(lease.Gather(0, 1, ~uint32_t{0}, key.view(), value.view()).code,
            StatusCode::kFailedPrecondition);
  EXPECT_FALSE(lease.Gather(3, 0, 1, key.view(), value.view()).ok()) << "no such layer";
  EXPECT_FALSE(lease.Gather(-1, 0, 1, key.view(), value.view()).ok());
  const Status parts = lease.Gather(0, 0, 1, {.codes = key.codes.data()}, value.view());
  EXPECT_EQ(parts.code, StatusCode::kInvalidArgument);
  EXPECT_NE(parts.message.find("scales"), std::string::npos) << parts.message;
  lease.Release({.used_tokens = 300});
  EXPECT_EQ(lease.restorable_tokens(), 0u);
  EXPECT_FALSE(lease.Gather(0, 0, 1, key.view(), value.view()).ok());
  EXPECT_TRUE(Eventually([&] { return daemon_->cache().GetStats().leases == 0; }));
}

TEST_F(LeaseTest, OfMixedFormatsOneIsChosenByReadable) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  for (LayerSpec& layer : spec.layers) layer.formats.push_back(MlxAffine(4, 64, Dtype::kF16));
  Open(spec);
  const PackedCache fine(spec_, 128, 1, 0), coarse(spec_, 300, 2, 1);
  const std::vector<uint32_t> first(tokens_.begin(), tokens_.begin() + 128);
  ASSERT_TRUE(StorePacked(space_.value(), spec_, first, fine).ok());
  const Result<CommitInfo> stored =
      StorePacked(space_.value(), spec_, tokens_, coarse, {.write_format = 1});
  ASSERT_TRUE(stored.ok()) << stored.status.message;
  EXPECT_EQ(stored.value().stored_tokens, 300u - 128u) << "blocks in a readable format are kept";
  Lease mixed = space_.value().Acquire(tokens_);
  ASSERT_EQ(mixed.WaitAll(), 300u);
  Packed key(spec_.layers[0].formats[0].key, 2, 64, 300);
  Packed value(spec_.layers[0].formats[0].value, 2, 128, 300);
  EXPECT_EQ(mixed.Gather(0, 0, 300, key.view(), value.view()).code,
            StatusCode::kFailedPrecondition);
  Lease chosen = space_.value().Acquire(tokens_, {.readable = 1});
  ASSERT_EQ(chosen.WaitAll(), 128u);
  EXPECT_TRUE(PackedCache::Gathered(chosen, spec_, 128) == fine);
  // An engine that reads only the coarse one heals the chain.
  ASSERT_TRUE(
      StorePacked(space_.value(), spec_, tokens_, coarse, {.write_format = 1, .readable = 2}).ok());
  Lease healed = space_.value().Acquire(tokens_, {.readable = 2});
  ASSERT_EQ(healed.WaitAll(), 300u);
  EXPECT_TRUE(PackedCache::Gathered(healed, spec_, 300, 1) == coarse);
}

TEST_F(LeaseTest, ALeaseCountsWhatItSaved) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  Store(cache);
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  PackedCache::Gathered(lease, spec_, 300);
  const ClientStats stats = client_->stats();
  EXPECT_EQ(stats.lookups, 1u);
  EXPECT_EQ(stats.requested_tokens, 300u);
  EXPECT_EQ(stats.restorable_tokens, 300u);
  EXPECT_EQ(stats.stored_tokens, 300u);
  EXPECT_EQ(stats.gathered_bytes, 300 * space_.value().payload_bytes_per_token()) << "G1";
  EXPECT_EQ(daemon_->space().ram_payload_bytes, stats.gathered_bytes)
      << "stored are the engine's own bytes (G1)";
}

class WorthOfLeaseTest : public LeaseTest {
 protected:
  // Tokens used of a lease that `read` does something with, as the daemon counts them.
  template <typename Read>
  uint64_t UsedAfter(Read read, const ReleaseInfo* told = nullptr) {
    const uint64_t before = Count("tokens.used");
    {
      Lease lease = space_.value().Acquire(tokens_);
      EXPECT_EQ(lease.WaitAll(), 300u);
      read(lease);
      if (told != nullptr) lease.Release(*told);
    }
    EXPECT_TRUE(Eventually([&] { return daemon_->cache().GetStats().leases == 0; }));
    return Count("tokens.used") - before;
  }
  Status Gather(Lease& lease, int layer, uint32_t begin, uint32_t count) {
    Packed key(spec_.layers[0].formats[0].key, 3, 128, 300);
    Packed value(spec_.layers[0].formats[0].value, 3, 128, 300);
    return lease.Gather(layer, begin, count, key.view(), value.view());
  }
};

TEST_F(WorthOfLeaseTest, AReleaseTellsUpToWhereTheLeaseWasRead) {
  Open();
  Store(PackedCache(spec_, 300, 7));
  EXPECT_EQ(UsedAfter([](Lease&) {}), 0u) << "nothing was read";
  EXPECT_EQ(UsedAfter([](Lease& lease) { EXPECT_EQ(lease.runs(1).size(), 1u); }), 0u);
  EXPECT_EQ(UsedAfter([&](Lease& lease) {
              EXPECT_TRUE(Gather(lease, 0, 0, 171).ok());
              EXPECT_TRUE(Gather(lease, 1, 100, 20).ok());
              EXPECT_TRUE(Gather(lease, 2, 300, 0).ok()) << "0 tokens are none";
              EXPECT_FALSE(Gather(lease, 1, 0, 301).ok()) << "nothing was copied";
            }),
            171u);
  EXPECT_EQ(UsedAfter([](Lease& lease) { EXPECT_EQ(lease.block_table(1).size(), 5u); }), 300u);
  EXPECT_EQ(UsedAfter([&](Lease& lease) {
              Lease moved = std::move(lease);
              EXPECT_TRUE(Gather(moved, 0, 0, 64).ok());
              lease = std::move(moved);
            }),
            64u);
}

TEST_F(WorthOfLeaseTest, WhatTheEngineTellsStands) {
  Open();
  Store(PackedCache(spec_, 300, 7));
  const auto gather = [&](Lease& lease) { EXPECT_TRUE(Gather(lease, 0, 0, 300).ok()); };
  const ReleaseInfo none{.used_tokens = 0}, some{.used_tokens = 7};
  EXPECT_EQ(UsedAfter(gather, &none), 0u);
  EXPECT_EQ(UsedAfter(gather, &some), 7u);
  const ReleaseInfo rate{.prefill_tokens_per_s = 100};
  EXPECT_EQ(UsedAfter(gather, &rate), 300u);
  const double saved = daemon_->cache().GetStats().seconds_saved;
  EXPECT_GT(saved, 1.0);  // 3 s but for the load
  EXPECT_EQ(UsedAfter(gather), 300u);
  EXPECT_GT(daemon_->cache().GetStats().seconds_saved, saved + 1.0) << "the rate of the space";
  const ReleaseInfo nan{.prefill_tokens_per_s = std::nan("")};
  EXPECT_EQ(UsedAfter(gather, &nan), 300u) << "one bad number does not keep the lease";
}

TEST_F(LeaseTest, RunsSayWhereWhichFormatStands) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  for (LayerSpec& layer : spec.layers) layer.formats.push_back(MlxAffine(4, 64, Dtype::kF16));
  Open(spec);
  const std::vector<uint32_t> first(tokens_.begin(), tokens_.begin() + 128);
  ASSERT_TRUE(StorePacked(space_.value(), spec_, first, PackedCache(spec_, 128, 1, 0)).ok());
  ASSERT_TRUE(StorePacked(space_.value(), spec_, tokens_, PackedCache(spec_, 300, 2, 1),
                          {.write_format = 1})
                  .ok());
  Lease lease = space_.value().Acquire(tokens_);
  const std::vector<TokenRun> runs = lease.runs(1);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].begin + runs[0].format, 0u);
  EXPECT_EQ(runs[0].end, 128u);
  EXPECT_EQ(runs[1].begin, 128u);
  EXPECT_EQ(runs[1].end, 300u);
  EXPECT_EQ(runs[1].format, 1u);
  EXPECT_TRUE(lease.runs(3).empty());
  EXPECT_TRUE(Lease().runs(0).empty());
}

TEST_F(LeaseTest, ASequenceCountsWhatItsEngineCopiesOutToo) {
  Open();
  Store(PackedCache(spec_, 300, 7));
  Sequence seq = space_.value().Begin(tokens_);
  ASSERT_EQ(seq.WaitAll(), 300u);
  GatherAll(seq, spec_, 200);
  EXPECT_EQ(client_->stats().gathered_bytes, 200 * space_.value().payload_bytes_per_token());
}

TEST_F(LeaseTest, OnlyBlocksThatNobodyHasAreMine) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  Store(cache);
  EXPECT_TRUE(space_.value().Reserve(tokens_).missing().empty());
  std::vector<uint32_t> longer = tokens_;
  for (const uint32_t token : Tokens(100, 5)) longer.push_back(token);
  Plan plan = space_.value().Reserve(longer);
  ASSERT_EQ(plan.missing().size(), 1u);
  EXPECT_EQ(plan.missing()[0].begin, 256u) << "the partial block is superseded";
  EXPECT_EQ(plan.missing()[0].end, 400u);
}

TEST_F(LeaseTest, AWholeTensorMayBeGivenAndOnlyWhatIsMissingIsTaken) {
  Open();
  Store(PackedCache(spec_, 300, 7));
  std::vector<uint32_t> longer = tokens_;
  for (const uint32_t token : Tokens(100, 5)) longer.push_back(token);
  const PackedCache other(spec_, 400, 8);
  Plan plan = space_.value().Reserve(longer);
  WriteRun(plan, spec_, other, {0, 400});
  const Result<CommitInfo> stored = plan.Commit(400, {.sequence_end = true});
  ASSERT_TRUE(stored.ok()) << stored.status.message;
  EXPECT_EQ(stored.value().stored_tokens, 400u - 256u);
  Lease lease = space_.value().Acquire(longer);
  ASSERT_EQ(lease.WaitAll(), 400u);
  const PackedCache gathered = PackedCache::Gathered(lease, spec_, 400);
  EXPECT_TRUE(gathered.Cut(256) == PackedCache(spec_, 300, 7).Cut(256));
  EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(gathered.key(0, 256).codes),
                        static_cast<const std::byte*>(other.key(0, 256).codes), 64),
            0);
}

TEST_F(LeaseTest, RunsFitIntoStagingAndNothingIsSent) {
  Open(SmallSpace(MlxAffine(8, 64, Dtype::kF16)), true, 512 << 10);
  ASSERT_EQ(client_->arena().staging_bytes, 512u << 10);
  const std::vector<uint32_t> tokens = Tokens(1000, 3);
  const PackedCache cache(spec_, 1000, 9);
  {
    Plan plan = space_.value().Reserve(tokens);
    ASSERT_GT(plan.missing().size(), 1u);
    uint32_t at = 0;
    for (const TokenRun run : plan.missing()) {
      EXPECT_EQ(run.begin, at);
      EXPECT_LE((run.end - run.begin) * space_.value().payload_bytes_per_token(), 256u << 10);
      at = run.end;
    }
    EXPECT_EQ(at, 1000u);
  }
  ASSERT_TRUE(StorePacked(space_.value(), spec_, tokens, cache).ok());
  EXPECT_EQ(Count("rpc.put"), 0u);
  Lease lease = space_.value().Acquire(tokens);
  ASSERT_EQ(lease.WaitAll(), 1000u);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 1000) == cache);
}

TEST_F(LeaseTest, WhatIsWrittenBeyondStagingIsSent) {
  Open(SmallSpace(MlxAffine(8, 64, Dtype::kF16)), true, 512 << 10);
  const std::vector<uint32_t> tokens = Tokens(1000, 3);
  const PackedCache cache(spec_, 1000, 9);
  Plan plan = space_.value().Reserve(tokens);
  WriteRun(plan, spec_, cache, {0, 1000});
  const Result<CommitInfo> stored = plan.Commit(1000, {.sequence_end = true});
  ASSERT_TRUE(stored.ok()) << stored.status.message;
  EXPECT_EQ(stored.value().stored_tokens, 1000u);
  EXPECT_GT(Count("rpc.put"), 0u);
  Lease lease = space_.value().Acquire(tokens);
  ASSERT_EQ(lease.WaitAll(), 1000u);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 1000) == cache);
}

TEST_F(LeaseTest, BlocksThatAnotherWorkerWritesAreItsOwnUntilItIsDone) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  Client other_client({.address = directory_.address()});
  Result<Space> other = other_client.OpenSpace(spec_);
  ASSERT_TRUE(other.ok()) << other.status.message;
  Plan first = space_.value().Reserve(tokens_);
  Plan second = other.value().Reserve(tokens_), third = other.value().Reserve(tokens_);
  EXPECT_TRUE(second.missing().empty());
  const Result<CommitInfo> early = second.Commit(300, {.sequence_end = true});
  EXPECT_EQ(early.status.code, StatusCode::kFailedPrecondition);
  EXPECT_NE(early.status.message.find("another worker"), std::string::npos) << early.status.message;
  WriteRun(first, spec_, cache, {0, 300});
  ASSERT_TRUE(first.Commit(300).ok());
  const Result<CommitInfo> late = second.Commit(300, {.sequence_end = true});
  ASSERT_TRUE(late.ok()) << late.status.message;
  EXPECT_EQ(late.value().stored_tokens, 0u);
  EXPECT_EQ(daemon_->space().ends, 1u);
  const Result<CommitInfo> only = third.Commit(256);
  EXPECT_TRUE(only.ok()) << "asked again what is pending: " << only.status.message;
}

TEST_F(LeaseTest, ABlockThatIsNotWholeIsNotCommitted) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  Plan plan = space_.value().Reserve(tokens_);
  const Status gap = plan.WritePacked(0, 70, 10, cache.key(0, 70), cache.value(0, 70));
  EXPECT_EQ(gap.code, StatusCode::kInvalidArgument) << gap.message;
  EXPECT_FALSE(plan.WritePacked(0, 0, 301, cache.key(0, 0), cache.value(0, 0)).ok());
  EXPECT_FALSE(plan.WritePacked(3, 0, 64, cache.key(0, 0), cache.value(0, 0)).ok());
  const Status no_such = space_.value()
                             .Reserve(tokens_, {.write_format = 1})
                             .WritePacked(0, 0, 64, cache.key(0, 0), cache.value(0, 0));
  EXPECT_EQ(no_such.code, StatusCode::kInvalidArgument) << no_such.message;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(plan.WritePacked(static_cast<int>(layer), 0, 300, cache.key(layer, 0),
                                 cache.value(layer, 0))
                    .ok());
  }
  ASSERT_TRUE(plan.WritePacked(2, 0, 100, cache.key(2, 0), cache.value(2, 0)).ok());
  const Result<CommitInfo> refused = plan.Commit(300);
  EXPECT_EQ(refused.status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status.message.find("layer 2"), std::string::npos) << refused.status.message;
  EXPECT_EQ(plan.Commit(70).status.code, StatusCode::kInvalidArgument) << "inside a block";
  EXPECT_EQ(plan.Commit(0).status.code, StatusCode::kInvalidArgument);
  ASSERT_TRUE(plan.Commit(64).ok()) << "block 0 is whole";
  // The rest of it later: a block grows token by token.
  ASSERT_TRUE(plan.WritePacked(2, 100, 200, cache.key(2, 100), cache.value(2, 100)).ok());
  ASSERT_TRUE(plan.Commit(300).ok());
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  EXPECT_TRUE(PackedCache::Gathered(lease, spec_, 300) == cache);
}

TEST_F(LeaseTest, TurnEndsAreEndsOfSequencesToo) {
  Open();
  const std::vector<uint32_t> turns = {53, 120};
  ASSERT_TRUE(
      StorePacked(space_.value(), spec_, tokens_, PackedCache(spec_, 300, 7), {.turn_ends = turns})
          .ok());
  EXPECT_EQ(daemon_->space().ends, 3u);
  Lease turn = space_.value().Acquire(std::span(tokens_).first(120));
  EXPECT_EQ(turn.match().kind, MatchKind::kExact);
  const std::vector<uint32_t> beyond = {301};
  const Plan refused = space_.value().Reserve(tokens_, {.turn_ends = beyond});
  EXPECT_EQ(refused.status().code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(refused.missing().empty());
}

TEST_F(LeaseTest, PaddingIsZeroAsInAnyPage) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  spec.block_tokens = 16;
  Open(spec);
  Store(PackedCache(spec_, 300, 7));
  Lease lease = space_.value().Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 300u);
  const std::byte* unit = lease.block_table(0)[3].units;  // of K: 16 rows of 64 + 2 + 2 bytes
  EXPECT_EQ(std::count(unit + 16 * 68, unit + 1152, std::byte{0}), 1152 - 16 * 68);
}

TEST_F(LeaseTest, APlanThatIsDroppedLeavesNothingBehind) {
  Open();
  const PackedCache cache(spec_, 300, 7);
  {
    Plan plan = space_.value().Reserve(tokens_);
    WriteRun(plan, spec_, cache, {0, 300});
    EXPECT_EQ(daemon_->cache().GetStats().reservations, 1u);
  }
  EXPECT_TRUE(Eventually([&] { return daemon_->cache().GetStats().reservations == 0; }));
  EXPECT_EQ(space_.value().Acquire(tokens_).WaitAll(), 0u);
  Store(cache);
}

TEST(LeaseWithoutDaemonTest, NothingIsRestoredAndNothingIsStored) {
  const TempDirectory directory;
  const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Client client({.address = directory.address()});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok());
  const std::vector<uint32_t> tokens = Tokens(300, 1);
  Lease lease = space.value().Acquire(tokens, {.deadline = milliseconds(60'000)});
  EXPECT_EQ(lease.WaitAll(), 0u);
  EXPECT_EQ(lease.match().status.code, StatusCode::kUnavailable);
  Plan plan = space.value().Reserve(tokens);
  EXPECT_EQ(plan.status().code, StatusCode::kUnavailable);
  EXPECT_TRUE(plan.missing().empty());
  WriteRun(plan, spec, PackedCache(spec, 300, 7), {0, 300});  // passed over
  EXPECT_EQ(plan.Commit(300).status.code, StatusCode::kUnavailable);
  EXPECT_EQ(client.stats().failed_lookups, 1u);
}

TEST(LeaseWithoutDaemonTest, EmptyHandlesAnswerNothing) {
  Lease lease;
  EXPECT_EQ(lease.WaitAll(), 0u);
  EXPECT_TRUE(lease.block_table(0).empty());
  EXPECT_FALSE(lease.Gather(0, 0, 1, {}, {}).ok());
  Plan plan;
  EXPECT_FALSE(plan.status().ok());
  EXPECT_FALSE(plan.Commit(1).ok());
  EXPECT_EQ(Space().Acquire({}).WaitAll(), 0u);
  EXPECT_TRUE(Space().Reserve({}).missing().empty());
}

}  // namespace
}  // namespace prefixd
