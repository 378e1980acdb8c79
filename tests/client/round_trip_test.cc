// What a sequence stored comes back byte for byte, in every format and for every sort of match.
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/client/daemon.h"
#include "tests/support/unix_sockets.h"

namespace prefixd {
namespace {

struct Named {
  const char* name;
  KvFormat format;
};

class RoundTripTest : public testing::TestWithParam<Named> {
 protected:
  // A sequence of `tokens` with everything that the cache lacks appended and committed.
  Sequence Store(const std::vector<uint32_t>& tokens, uint32_t expect_cached,
                 MatchKind expect_kind) {
    Sequence seq = space_.value().Begin(tokens);
    EXPECT_EQ(seq.match().kind, expect_kind) << seq.match().status.message;
    EXPECT_EQ(seq.WaitAll(), expect_cached);
    const uint32_t count = static_cast<uint32_t>(tokens.size());
    if (expect_cached < count) AppendTokens(seq, spec_, tokens, expect_cached, count);
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    EXPECT_TRUE(stored.ok()) << stored.status.message;
    return seq;
  }

  TempDirectory directory_;
  Daemon daemon_{directory_.socket()};
  Client client_{{.address = directory_.address()}};
  SpaceSpec spec_ = SmallSpace(GetParam().format);
  Result<Space> space_ = client_.OpenSpace(spec_);
};

TEST_P(RoundTripTest, EveryByteOfAMatchIsWhatWasWritten) {
  ASSERT_TRUE(space_.ok()) << space_.status.message;
  const std::vector<uint32_t> base = Tokens(150, 1);
  const Sequence cold = Store(base, 0, MatchKind::kNone);
  const std::vector<Packed> written = GatherAll(cold, spec_, 150);
  EXPECT_NE(written[0], written[1]) << "K and V are told apart";
  EXPECT_NE(written[0], written[4]) << "layers are told apart";

  const Sequence exact = Store(base, 150, MatchKind::kExact);
  EXPECT_EQ(GatherAll(exact, spec_, 150), written);
  EXPECT_GT(exact.load_time().count(), 0);

  std::vector<uint32_t> longer = base;
  for (uint32_t token : Tokens(70, 2)) longer.push_back(token);
  const Sequence longer_first = Store(longer, 150, MatchKind::kPrefix);
  EXPECT_EQ(GatherAll(longer_first, spec_, 150), written);
  const Sequence longer_again = Store(longer, 220, MatchKind::kExact);
  EXPECT_EQ(GatherAll(longer_again, spec_, 220), GatherAll(longer_first, spec_, 220));

  std::vector<uint32_t> other(base.begin(), base.begin() + 100);
  for (uint32_t token : Tokens(60, 3)) other.push_back(token + 5000);
  const Sequence diverged = Store(other, 100, MatchKind::kLcp);
  EXPECT_EQ(GatherAll(diverged, spec_, 100), GatherAll(cold, spec_, 100));
  const Sequence diverged_again = Store(other, 160, MatchKind::kExact);
  EXPECT_EQ(GatherAll(diverged_again, spec_, 160), GatherAll(diverged, spec_, 160));

  const std::vector<uint32_t> shorter(base.begin(), base.begin() + 90);
  const Sequence cut = Store(shorter, 90, MatchKind::kSupersequence);
  EXPECT_EQ(GatherAll(cut, spec_, 90), GatherAll(cold, spec_, 90));
}

TEST_P(RoundTripTest, PackedBytesAreStoredAsTheyAre) {
  ASSERT_TRUE(space_.ok()) << space_.status.message;
  const std::vector<uint32_t> tokens = Tokens(100, 4);
  std::vector<Packed> packed;
  Sequence seq = space_.value().Begin(tokens);
  for (int layer = 0; layer < 3; ++layer) {
    const LayerSpec& l = spec_.layers[static_cast<size_t>(layer)];
    Packed k(l.formats[0].key, l.kv_heads, l.key_dim, 100);
    Packed v(l.formats[0].value, l.kv_heads, l.value_dim, 100);
    uint8_t next = static_cast<uint8_t>(layer);
    for (Packed* tensor : {&k, &v}) {
      for (auto* part : {&tensor->codes, &tensor->scales, &tensor->biases}) {
        for (std::byte& byte : *part) byte = std::byte{next += 37};
      }
    }
    const Status status =
        seq.WritePacked(layer, 0, 100, std::as_const(k).view(), std::as_const(v).view());
    ASSERT_TRUE(status.ok()) << status.message;
    packed.push_back(std::move(k));
    packed.push_back(std::move(v));
  }
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  Sequence again = space_.value().Begin(tokens);
  ASSERT_EQ(again.WaitAll(), 100u);
  EXPECT_EQ(GatherAll(again, spec_, 100), packed);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, RoundTripTest,
    testing::Values(Named{"RawF32", Raw(Dtype::kF32)}, Named{"RawF16", Raw(Dtype::kF16)},
                    Named{"RawBf16", Raw(Dtype::kBf16)},
                    Named{"Mlx8", MlxAffine(8, 64, Dtype::kF16)},
                    Named{"Mlx8And4", MlxAffine(8, 64, 4, 32, Dtype::kBf16)},
                    Named{"Mlx3", MlxAffine(3, 64, Dtype::kF32)},
                    Named{"Q8", Ggml(Codec::kQ8_0, Codec::kQ8_0)},
                    Named{"Q5And4", Ggml(Codec::kQ5_1, Codec::kQ4_0)},
                    Named{"MxFp8AndNvFp4", BlockFloat(Codec::kMxFp8, Codec::kNvFp4)},
                    Named{"TiledMlx8And4", Tiled(MlxAffine(8, 64, 4, 32, Dtype::kBf16))},
                    Named{"TiledMlx4And8", Tiled(MlxAffine(4, 32, 8, 64, Dtype::kF32))},
                    Named{"TiledQ8And41", Tiled(Ggml(Codec::kQ8_0, Codec::kQ4_1))},
                    Named{"Q5AndTiled4", Tiled(Ggml(Codec::kQ5_1, Codec::kQ4_0))}),
    [](const auto& info) { return std::string(info.param.name); });

// What an engine sees does not depend on the layout of the pages, but the space does.
TEST(LayoutTest, TokensInTiledPagesGatherAsThoseInRows) {
  TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address()});
  const KvFormat rows = MlxAffine(8, 64, 4, 32, Dtype::kF16);
  const std::vector<uint32_t> tokens = Tokens(150, 1);
  std::vector<std::vector<Packed>> gathered;
  for (const KvFormat& format : {rows, Tiled(rows)}) {
    const SpaceSpec spec = SmallSpace(format);
    Result<Space> space = client.OpenSpace(spec);
    ASSERT_TRUE(space.ok()) << space.status.message;
    Sequence seq = space.value().Begin(tokens);
    ASSERT_EQ(seq.WaitAll(), 0u);
    AppendTokens(seq, spec, tokens, 0, 150);
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    Sequence again = space.value().Begin(tokens);
    ASSERT_EQ(again.WaitAll(), 150u);
    gathered.push_back(GatherAll(again, spec, 150));
  }
  EXPECT_EQ(gathered[0], gathered[1]);
}

// A2 seed-story.
TEST(SeedStoryTest, TokensEndsAndBytesAreTheSeedsAtQwenGeometry) {
  TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address()});
  SpaceSpec spec{.model = "Qwen/Qwen3-0.6B", .weights_digest = {std::byte{3}}};
  spec.layers.assign(28, {.kv_heads = 8,
                          .key_dim = 128,
                          .value_dim = 128,
                          .formats = {MlxAffine(8, 64, Dtype::kF16)}});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  EXPECT_EQ(space.value().payload_bytes_per_token(), 60'928u);

  const std::vector<uint32_t> first = Tokens(253, 1);
  std::vector<uint32_t> second = Tokens(194, 2);
  for (uint32_t i = 0; i < 17; ++i) second[i] = first[i];
  second[17] = first[17] + 1;
  const auto run = [&](const std::vector<uint32_t>& tokens, uint32_t prompt, uint32_t cached,
                       uint64_t held_after_prompt, uint64_t held_at_end) {
    Sequence seq = space.value().Begin(std::span(tokens).first(prompt));
    ASSERT_EQ(seq.WaitAll(), cached);
    AppendTokens(seq, spec, tokens, cached, prompt);
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    EXPECT_EQ(daemon.space().stored_tokens, held_after_prompt);
    for (size_t i = prompt; i < tokens.size(); ++i) seq.PushToken(tokens[i]);
    AppendTokens(seq, spec, tokens, prompt, static_cast<uint32_t>(tokens.size()));
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    EXPECT_EQ(daemon.space().stored_tokens, held_at_end);
  };
  run(first, 53, 0, 53, 253);
  run(second, 44, 17, 297, 447);
  EXPECT_EQ(daemon.space().ends, 4u);
  EXPECT_EQ(daemon.space().ram_payload_bytes, 27'234'816u);
}

// The daemon's ends of connections to the socket at `path`.
int Connections(const std::string& path) {
  std::ifstream sockets("/proc/net/unix");
  int connections = 0;
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (name == path && state == "03") ++connections;
  }
  return connections;
}

TEST(ConnectionsTest, PagesTravelOnAConnectionOfTheirOwn) {
  TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address(), .use_arena = false});
  ASSERT_TRUE(client.WaitAttached(std::chrono::seconds(20)));
  const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  EXPECT_EQ(Connections(directory.socket()), 1) << "whoever sends no pages needs no other";
  const std::vector<uint32_t> tokens = Tokens(100, 6);
  Sequence seq = space.value().Begin(tokens);
  AppendTokens(seq, spec, tokens, 0, 100);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  EXPECT_EQ(Connections(directory.socket()), 2) << "Put";
  Sequence again = space.value().Begin(tokens);
  ASSERT_EQ(again.WaitAll(), 100u);
  EXPECT_EQ(Connections(directory.socket()), 2) << "Fetch";
}

TEST(ConnectionsTest, ASocketTakesMoreOfAFetchAndOfAPutThanTheKernelLetsItByDefault) {
  TempDirectory directory;
  Daemon daemon(directory.socket());
  Client client({.address = directory.address(), .use_arena = false});
  ASSERT_TRUE(client.WaitAttached(std::chrono::seconds(20)));
  const auto largest = [&](SocketEnd end) { return LargestSendBuffer(directory.socket(), end); };
  const int by_default = largest(SocketEnd::kConnected);
  EXPECT_GT(largest(SocketEnd::kAccepted), by_default) << "Fetch";
  const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  const std::vector<uint32_t> tokens = Tokens(100, 6);
  Sequence seq = space.value().Begin(tokens);
  AppendTokens(seq, spec, tokens, 0, 100);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  EXPECT_GT(largest(SocketEnd::kConnected), by_default) << "Put";
}

TEST(RaceTest, TwoClientsThatStoreOneSequenceBothSucceed) {
  TempDirectory directory;
  Daemon daemon(directory.socket());
  const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  const std::vector<uint32_t> tokens = Tokens(1000, 5);
  const auto work = [&] {
    Client client({.address = directory.address()});
    Result<Space> space = client.OpenSpace(spec);
    ASSERT_TRUE(space.ok());
    Sequence seq = space.value().Begin(tokens, {.max_cached_tokens = 999});
    const uint32_t cached = seq.WaitAll();
    for (uint32_t at = cached; at < 1000;) {
      const uint32_t end = std::min<uint32_t>(1000, at + 100);
      AppendTokens(seq, spec, tokens, at, end);
      const Result<CommitInfo> stored = seq.Commit({.sequence_end = end == 1000});
      EXPECT_TRUE(stored.ok()) << stored.status.message;
      at = end;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(daemon.space().stored_tokens, 1000u);
}

}  // namespace
}  // namespace prefixd
