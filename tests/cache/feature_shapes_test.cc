// Every way to meet what is stored, in every format, from every tier: the slice of the bytes that
// were stored, and nothing else.
#include <fstream>
#include <set>
#include <tuple>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

quant::TensorFormat Eight() { return quant::MlxAffineFormat(8, 64, quant::Dtype::kF16); }
quant::TensorFormat Four() { return quant::MlxAffineFormat(4, 64, quant::Dtype::kF16); }

block::SpaceIdentity Heads64(const std::vector<quant::KvFormat>& ladder) {
  block::SpaceIdentity identity = SmallIdentity(64, 4);
  for (block::LayerGroup& group : identity.groups) {
    group.value_dim = 64;
    group.ladder = ladder;
  }
  return identity;
}

struct NamedFormat {
  const char* name;
  quant::KvFormat format;
};
std::vector<NamedFormat> FourFormats() {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  return {{"raw", {raw, raw}},
          {"eight", {Eight(), Eight()}},
          {"four", {Four(), Four()}},
          {"eight_four", {Eight(), Four()}}};
}

enum class Where { kRam, kSsd, kRestarted };

// A request beside 280 stored tokens: so many of them, then others.
struct Shape {
  const char* name;
  uint32_t keep, more;
  block::MatchKind kind;
};
constexpr Shape kShapes[] = {
    {"exact", 280, 0, block::MatchKind::kExact},
    {"supersequence with excess", 44, 0, block::MatchKind::kSupersequence},
    {"supersequence at a block border", 256, 0, block::MatchKind::kSupersequence},
    {"prefix", 280, 30, block::MatchKind::kPrefix},
    {"lcp", 157, 30, block::MatchKind::kLcp}};

class FiveShapesTest : public CacheTest,
                       public ::testing::WithParamInterface<std::tuple<size_t, Where>> {
 protected:
  static Tokens RequestOf(const Shape& shape, const Tokens& stored) {
    Tokens request(stored.begin(), stored.begin() + shape.keep);
    for (uint32_t i = 0; i < shape.more; ++i) request.push_back(70000 + i);
    return request;
  }
  // Out of RAM: so much of other text is stored and read that nothing of it stays.
  void PushOut(const block::SpaceIdentity& identity, block::SpaceHandle space) {
    for (uint64_t i = 0; Counter("bytes.evicted") < uint64_t{40} << 20; ++i) {
      ASSERT_TRUE(Store(identity, space, RandomTokens(1000 + i, 1280)).ok());
      ASSERT_LT(i, 500u);
    }
  }
};

// S1-07, S1-45, S1-49
TEST_P(FiveShapesTest, EveryShapeOfMatchIsTheSliceOfWhatWasStored) {
  const auto [format, where] = GetParam();
  const auto identity = Heads64({FourFormats()[format].format});
  Open(WithSsd(uint64_t{32} << 20));
  auto space = OpenSpace(identity);
  for (uint64_t i = 0; i < std::size(kShapes); ++i) {  // a sequence for each shape
    ASSERT_TRUE(Store(identity, space, RandomTokens(i, 280)).ok());
  }
  if (where != Where::kRam) cache_->Flush(In(20000));
  if (where == Where::kSsd) PushOut(identity, space);
  if (where == Where::kRestarted) {
    Open(WithSsd(uint64_t{32} << 20));
    space = OpenSpace(identity);
  }
  for (uint64_t i = 0; i < std::size(kShapes); ++i) {
    const Shape& shape = kShapes[i];
    SCOPED_TRACE(shape.name);
    const Tokens request = RequestOf(shape, RandomTokens(i, 280));
    const auto acquired = Acquire(space, request);
    EXPECT_EQ(acquired.match.kind, shape.kind);
    EXPECT_EQ(acquired.match.matched_tokens, shape.keep);
    EXPECT_EQ(acquired.match.restorable_tokens, shape.keep);
    EXPECT_EQ(acquired.match.ssd_bytes > 0, where != Where::kRam) << "not from the tier meant";
    EXPECT_EQ(FetchAndCheck(identity, acquired, request), shape.keep);
    ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, FiveShapesTest,
                         ::testing::Combine(::testing::Range<size_t>(0, 4),
                                            ::testing::Values(Where::kRam, Where::kSsd,
                                                              Where::kRestarted)));

using FeatureTest = CacheTest;

// S1-10: the slice has the format of the entry, in the answer as in the bytes.
TEST_F(FeatureTest, OfTwoHundredEightyTokensInEightBitsFortyFourAreTheirBytesWithBitsAndGroup) {
  Open(RamOnly());
  const auto identity = Heads64({{Eight(), Eight()}});
  const auto space = OpenSpace(identity);
  const Tokens stored = RandomTokens(1, 280);
  ASSERT_TRUE(Store(identity, space, stored).ok());
  const Tokens request(stored.begin(), stored.begin() + 44);
  const auto acquired = Acquire(space, request);
  ASSERT_EQ(acquired.match.restorable_tokens, 44u);
  Collector got;
  ASSERT_TRUE(cache_
                  ->Fetch(session_, {.lease = acquired.lease, .groups = {}, .from_token = 0},
                          In(20000), &got)
                  .ok());
  for (const block::LeasedPage& page : acquired.pages) {
    const block::LayerGroup& group = identity.groups[page.group];
    EXPECT_EQ(page.tokens, 44u);
    EXPECT_EQ(group.ladder[page.rung].key.bits, 8);
    EXPECT_EQ(group.ladder[page.rung].key.group_size, 64);
    EXPECT_EQ(group.ladder[page.rung].value.bits, 8);
    EXPECT_EQ(group.ladder[page.rung].value.group_size, 64);
    // 8.5 bits a number: 2 layers, K and V, 2 heads of 64.
    EXPECT_EQ(block::LayoutOfPage(group, page.rung, 44).payload_bytes, 44u * 2 * 2 * 2 * 68);
    const std::vector<std::byte> whole = MakePage(group, page.rung, stored, 0, 64);
    std::vector<std::byte> cut(block::LayoutOfPage(group, page.rung, 44).page_bytes);
    block::CutPage(group, page.rung, whole.data(), 64, 44, cut.data());
    EXPECT_TRUE((got.pages[{page.group, 0}] == cut)) << "group " << page.group;
  }
  EXPECT_EQ(got.pages.size(), identity.groups.size());
}

// S1-42
TEST_F(FeatureTest, OnlyTheGroupsThatAreAskedForAreSent) {
  Open(RamOnly());
  const auto identity = SmallIdentity(16, 6);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 40);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  Collector got;
  ASSERT_TRUE(cache_
                  ->Fetch(session_, {.lease = acquired.lease, .groups = {1}, .from_token = 0},
                          In(20000), &got)
                  .ok());
  EXPECT_EQ(got.pages.size(), 3u) << "its three blocks";
  for (const auto& [place, page] : got.pages) EXPECT_EQ(place.first, 1u);
}

// S1-48, S1-09: what is said to be held is what the tree of all that was stored holds, to the byte.
TEST_F(FeatureTest, TheGaugeIsTheSumOfPayloadsAfterTenThousandRandomOperations) {
  Open(RamOnly(uint64_t{256} << 20));
  const auto identity = SmallIdentity(16, 2);
  const auto space = OpenSpace(identity);
  std::mt19937_64 random(7);
  std::vector<Tokens> all;
  for (int i = 0; i < 10'000; ++i) {
    Tokens tokens(1 + random() % 50);
    for (Token& token : tokens) token = static_cast<Token>(random() % 3);
    if (!all.empty() && random() % 2 == 0) {  // goes on behind the start of another
      const Tokens& other = all[random() % all.size()];
      Tokens start(other.begin(), other.begin() + static_cast<ptrdiff_t>(random() % other.size()));
      start.insert(start.end(), tokens.begin(), tokens.end());
      tokens = start;
    }
    if (random() % 3 != 0 || all.size() > 2'000) {
      const auto acquired = Acquire(space, tokens);
      if (acquired.lease) {
        ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
      }
    } else {
      ASSERT_TRUE(Store(identity, space, tokens).ok());
      all.push_back(tokens);
    }
  }
  // Blocks by the tokens up to their end; a partial one goes where a sibling goes on behind it.
  std::map<Tokens, std::set<Tokens>> blocks;
  for (const Tokens& tokens : all) {
    for (size_t first = 0; first < tokens.size(); first += 16) {
      const auto begin = tokens.begin() + static_cast<ptrdiff_t>(first);
      const auto end = tokens.begin() + static_cast<ptrdiff_t>(std::min(first + 16, tokens.size()));
      blocks[Tokens(tokens.begin(), begin)].insert(Tokens(begin, end));
    }
  }
  uint64_t held = 0;
  for (const auto& [parent, siblings] : blocks) {
    for (auto it = siblings.begin(); it != siblings.end(); ++it) {
      const auto next = std::next(it);  // in token order a longer one follows its start
      const bool superseded = next != siblings.end() && next->size() > it->size() &&
                              std::equal(it->begin(), it->end(), next->begin());
      if (!superseded) held += it->size();
    }
  }
  EXPECT_EQ(Summary().stored_tokens, held);
  EXPECT_EQ(Summary().ram_payload_bytes, held * block::PayloadBytesPerToken(identity));
}

// S4-15: of its second request 10,240 tokens were cached, five blocks of 2,048. Matching to the
// token finds all that both share. A2
TEST_F(FeatureTest, TheReplayOfElevenThousandTokensMatchesAllThatIsShared) {
  Open(RamOnly(uint64_t{256} << 20));
  const auto identity = Heads64({{Four(), Four()}});
  const auto space = OpenSpace(identity);
  const Tokens first = RandomTokens(1, 11'422);
  ASSERT_TRUE(Store(identity, space, first).ok());
  Tokens second(first.begin(), first.begin() + 11'405);
  for (Token token : RandomTokens(2, 11'493 - 11'405)) second.push_back(60'000 + token);
  const auto begun = std::chrono::steady_clock::now();
  const auto acquired = Acquire(space, second);
  const auto took = std::chrono::steady_clock::now() - begun;
  EXPECT_GE(acquired.match.matched_tokens, 11'400u);
  EXPECT_EQ(acquired.match.restorable_tokens, 11'405u);
  EXPECT_LT(took, std::chrono::milliseconds(536)) << "a hundredth of the 53.6 s that were saved";
}

// Pages whose bytes do not matter, committed as they come: 32 blocks at a time.
absl::Status StoreZeros(cache::Cache* cache, block::SessionId session,
                        const block::SpaceIdentity& identity, block::SpaceHandle space,
                        const Tokens& tokens) {
  auto plan = cache->Reserve(
      session, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
  if (!plan.ok()) return plan.status();
  std::vector<std::byte> page;
  for (size_t i = 0; i < plan->blocks.size(); ++i) {
    const block::BlockPlan& block = plan->blocks[i];
    for (uint32_t g = 0; g < identity.groups.size(); ++g) {
      page.resize(block::LayoutOfPage(identity.groups[g], 0, block.tokens).page_bytes);
      absl::Status put = cache->PutPage(session, plan->reservation,
                                        {.group = g,
                                         .first_token = block.first_token,
                                         .tokens = block.tokens,
                                         .rung = 0,
                                         .page_bytes = page.size(),
                                         .offset = 0,
                                         .xxh3 = base::Xxh3(page),
                                         .data = page},
                                        In(20000));
      if (!put.ok()) return put;
    }
    const bool last = i + 1 == plan->blocks.size();
    if (!last && i % 32 != 31) continue;
    const auto committed = cache->Commit(session, {.reservation = plan->reservation,
                                                   .tokens = block.first_token + block.tokens,
                                                   .sequence_end = last,
                                                   .ends = {}});
    if (!committed.ok()) return committed.status();
  }
  return absl::OkStatus();
}

// S4-01, S4-02, S0-06: several contexts of 47,000 tokens, of which RAM holds about one. 12,000 of
// one survived where this comes from.
TEST_F(FeatureTest, LongContextsStayWithinTheBudgetAndSurviveUntilTheNextRequest) {
  Open(WithSsd(uint64_t{32} << 20));
  auto identity = SmallIdentity(
      128, 2, {quant::RawFormat(quant::Dtype::kF16), quant::RawFormat(quant::Dtype::kF16)});
  const auto space = OpenSpace(identity);
  constexpr uint32_t kTokens = 47'000;
  for (uint64_t i = 0; i < 4; ++i) {
    const absl::Status stored =
        StoreZeros(cache_.get(), session_, identity, space, RandomTokens(i, kTokens));
    ASSERT_TRUE(stored.ok()) << stored;
    const block::Stats stats = cache_->GetStats();
    uint64_t parts = 0;
    for (const block::NamedCount& part : stats.ram_parts) parts += part.value;
    EXPECT_LE(parts, stats.ram_budget_bytes) << "after " << i;
  }
  for (uint64_t i = 0; i < 4; ++i) {
    cache::Request request;
    request.space = space;
    request.tokens = RandomTokens(i, kTokens);
    const auto match = cache_->Match(session_, request);
    ASSERT_TRUE(match.ok()) << match.status();
    EXPECT_GE(match->restorable_tokens, kTokens * 9 / 10) << i;
  }
  EXPECT_EQ(Counter("pages.dropped"), 0u);
}

// S0-03, S3-03: a writer keeps the first tokens raw and quantizes from there on.
TEST_F(FeatureTest, RawBlocksBeforeAStartAndQuantizedOnesBehindItAreOneSequence) {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const auto identity = Heads64({{raw, raw}, {Eight(), Eight()}, {Eight(), Four()}});
  Open(WithSsd());
  auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 300);
  auto plan = cache_->Reserve(
      session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok());
  for (block::BlockPlan block : plan->blocks) {
    for (uint32_t& rung : block.rungs) rung = block.first_token < 128 ? 0 : 1;
    ASSERT_TRUE(PutBlock(session_, identity, plan->reservation, tokens, block).ok());
  }
  ASSERT_TRUE(
      cache_
          ->Commit(
              session_,
              {.reservation = plan->reservation, .tokens = 300, .sequence_end = true, .ends = {}})
          .ok());
  for (const bool restarted : {false, true}) {
    if (restarted) {
      cache_->Flush(In(20000));
      Open(WithSsd());
      space = OpenSpace(identity);
    }
    const auto acquired = Acquire(space, tokens);
    ASSERT_EQ(FetchAndCheck(identity, acquired, tokens), 300u);
    for (const block::LeasedPage& page : acquired.pages)
      EXPECT_EQ(page.rung, page.first_token < 128 ? 0u : 1u);
  }
}

// A bad block of a chain in three formats ends the match there; who comes next stores it again in a
// format of its own, and the others stay as they are.
TEST_F(FeatureTest, ABadBlockOfAMixedChainIsReplacedByTheNextWriterAndTheChainHeals) {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const auto identity = Heads64({{raw, raw}, {Eight(), Eight()}, {Four(), Four()}});
  const Tokens tokens = RandomTokens(1, 640);
  const auto store = [&](block::SpaceHandle space, auto rung_of) {
    const auto plan = cache_->Reserve(
        session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    uint32_t missing = 0;
    for (block::BlockPlan block : plan->blocks) {
      if (block.state == block::BlockState::kPresent) continue;
      ++missing;
      for (uint32_t& rung : block.rungs) {
        if (rung != block::kNoLimit) rung = rung_of(block.first_token);
      }
      ASSERT_TRUE(PutBlock(session_, identity, plan->reservation, tokens, block).ok());
    }
    EXPECT_GT(missing, 0u);
    const auto committed = cache_->Commit(
        session_,
        {.reservation = plan->reservation, .tokens = 640, .sequence_end = true, .ends = {}});
    ASSERT_TRUE(committed.ok()) << committed.status();
  };
  Open(WithSsd());
  store(OpenSpace(identity), [](uint32_t first) { return first / 64 % 3; });
  cache_->Flush(In(20000));
  cache_.reset();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".sst" || entry.file_size() < 100000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
    file.seekg(middle);
    const char byte = static_cast<char>(file.peek() ^ 0x10);
    file.seekp(middle);
    file.put(byte);
  }
  Open(WithSsd());
  const auto space = OpenSpace(identity);
  const uint32_t usable = ReadBack(identity, space, tokens);  // compares every byte
  ASSERT_LT(usable, 640u) << "nothing was hit";
  store(space, [](uint32_t) { return 2; });
  EXPECT_EQ(ReadBack(identity, space, tokens), 640u);
  const auto healed = Acquire(space, tokens);
  for (const block::LeasedPage& page : healed.pages) {
    if (page.first_token < usable) {
      EXPECT_EQ(page.rung, page.first_token / 64 % 3) << "stored tokens are never quantized again";
    }
  }
}

}  // namespace
}  // namespace prefixd::testing
