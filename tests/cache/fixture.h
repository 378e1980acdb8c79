// A cache over a temporary directory, and the moves that tests make: store a sequence, acquire it,
// fetch and check every byte.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <random>

#include "cache/cache.h"
#include "tests/support/direct_reads.h"
#include "tests/support/kv_pages.h"

namespace prefixd::testing {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

using block::Token;
using Tokens = std::vector<Token>;

inline base::Deadline In(int ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

inline Tokens RandomTokens(uint64_t seed, size_t count, uint32_t alphabet = 50000) {
  std::mt19937_64 random(seed);
  Tokens tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random() % alphabet);
  return tokens;
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "prefixd_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Collects what Fetch sends, whole pages by (group, first token).
class Collector : public cache::FetchSink {
 public:
  bool Page(const cache::PagePiece& piece) override {
    std::vector<std::byte>& page = pages[{piece.group, piece.first_token}];
    EXPECT_EQ(page.size(), piece.offset);
    EXPECT_EQ(base::Xxh3(piece.data, piece.sum_seed), piece.xxh3);
    seeded += piece.sum_seed != 0;
    page.insert(page.end(), piece.data.begin(), piece.data.end());
    tokens[{piece.group, piece.first_token}] = piece.tokens;
    return true;
  }
  bool Ready(const cache::GroupReady& r) override {
    ready.push_back(r);
    return true;
  }
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> pages;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> tokens;
  std::vector<cache::GroupReady> ready;
  int seeded = 0;  // pieces with a sum that has a seed
};

class CacheTest : public ::testing::Test {
 protected:
  void Open(cache::Options options = {}) {
    cache_.reset();
    if (!options.log)
      options.log = [](cache::LogLevel level, const std::string& line) {
        if (level != cache::LogLevel::kInfo) std::cerr << line << "\n";
      };
    if (options.directory.empty()) options.directory = dir_.path() + "/ssd";
    options.ssd_reads_directly = ssd::TestsReadDirectly();
    auto opened = cache::Cache::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    cache_ = *std::move(opened);
    session_ = cache_->BeginSession("test");
  }
  static cache::Options WithSsd(uint64_t ram = uint64_t{64} << 20) {
    cache::Options options;
    options.ram_budget_bytes = ram;
    options.ssd_budget_bytes = uint64_t{4} << 30;
    return options;
  }
  static cache::Options RamOnly(uint64_t ram = uint64_t{64} << 20) {
    cache::Options options;
    options.ram_budget_bytes = ram;
    return options;
  }
  block::SpaceHandle OpenSpace(const block::SpaceIdentity& identity) {
    auto opened = cache_->OpenSpace(session_, identity);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? opened->space : block::SpaceHandle{};
  }

  // Another session that opened the space too.
  block::SessionId SessionWith(const block::SpaceIdentity& identity, const std::string& worker) {
    const block::SessionId session = cache_->BeginSession(worker);
    EXPECT_TRUE(cache_->OpenSpace(session, identity).ok());
    return session;
  }

  absl::Status PutBlock(block::SessionId session, const block::SpaceIdentity& identity,
                        block::ReservationId reservation, const Tokens& tokens,
                        const block::BlockPlan& plan) {
    for (uint32_t g = 0; g < identity.groups.size(); ++g) {
      if (plan.rungs[g] == block::kNoLimit) continue;  // there already
      const std::vector<std::byte> page =
          MakePage(identity.groups[g], plan.rungs[g], tokens, plan.first_token, plan.tokens);
      absl::Status put = cache_->PutPage(session, reservation,
                                         {.group = g,
                                          .first_token = plan.first_token,
                                          .tokens = plan.tokens,
                                          .rung = plan.rungs[g],
                                          .page_bytes = page.size(),
                                          .offset = 0,
                                          .xxh3 = base::Xxh3(page),
                                          .data = page},
                                         In(10000));
      if (!put.ok()) return put;
    }
    return absl::OkStatus();
  }
  // Reserve, Put what is not present, Commit with an end.
  absl::StatusOr<block::CommitAnswer> Store(const block::SpaceIdentity& identity,
                                            block::SpaceHandle space, const Tokens& tokens,
                                            block::SessionId session = {}) {
    if (!session) session = session_;
    auto plan = cache_->Reserve(
        session, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    if (!plan.ok()) return plan.status();
    for (const block::BlockPlan& block : plan->blocks) {
      if (block.state == block::BlockState::kPresent) continue;
      if (absl::Status put = PutBlock(session, identity, plan->reservation, tokens, block);
          !put.ok()) {
        cache_->Abandon(session, plan->reservation).IgnoreError();
        return put;
      }
    }
    return cache_->Commit(session, {.reservation = plan->reservation,
                                    .tokens = static_cast<uint32_t>(tokens.size()),
                                    .sequence_end = true,
                                    .ends = {}});
  }
  cache::Acquired Acquire(block::SpaceHandle space, const Tokens& tokens,
                          uint32_t max_tokens = block::kNoLimit) {
    cache::Request request;
    request.space = space;
    request.tokens = tokens;
    request.max_tokens = max_tokens;
    auto acquired = cache_->Acquire(session_, request, In(10000));
    EXPECT_TRUE(acquired.ok()) << acquired.status();
    return acquired.ok() ? *acquired : cache::Acquired{};
  }
  // Fetches the lease and compares every byte with what the tokens make. Returns the usable tokens.
  uint32_t FetchAndCheck(const block::SpaceIdentity& identity, const cache::Acquired& acquired,
                         const Tokens& tokens) {
    if (!acquired.lease) return 0;
    Collector got;
    const absl::Status fetched = cache_->Fetch(
        session_, {.lease = acquired.lease, .groups = {}, .from_token = 0}, In(20000), &got);
    EXPECT_TRUE(fetched.ok()) << fetched;
    uint32_t usable = acquired.match.restorable_tokens;
    for (const cache::GroupReady& ready : got.ready) usable = std::min(usable, ready.usable_tokens);
    for (const block::LeasedPage& page : acquired.pages) {
      if (page.absent()) {
        EXPECT_FALSE(got.pages.contains({page.group, page.first_token}));
        continue;
      }
      if (page.first_token + page.tokens > usable) continue;
      const auto found = got.pages.find({page.group, page.first_token});
      if (found == got.pages.end()) {
        if (usable < acquired.match.restorable_tokens)
          continue;  // the stream ended at the bad page
        ADD_FAILURE() << "page of group " << page.group << " at " << page.first_token
                      << " never came";
        continue;
      }
      EXPECT_TRUE(found->second == MakePage(identity.groups[page.group], page.rung, tokens,
                                            page.first_token, page.tokens))
          << "wrong bytes in group " << page.group << " at token " << page.first_token;
    }
    return usable;
  }
  // Acquire, fetch, check, release; again with fewer tokens when a page turned out bad, as a worker
  // does. Returns the tokens that came back right.
  uint32_t ReadBack(const block::SpaceIdentity& identity, block::SpaceHandle space,
                    const Tokens& tokens) {
    uint32_t limit = block::kNoLimit;
    while (true) {
      const cache::Acquired acquired = Acquire(space, tokens, limit);
      const uint32_t usable = FetchAndCheck(identity, acquired, tokens);
      if (acquired.lease) {
        EXPECT_TRUE(
            cache_->Release(session_, {.lease = acquired.lease, .used_tokens = usable}).ok());
      }
      if (usable == acquired.match.restorable_tokens) return usable;
      limit = usable;
      if (limit == 0) return 0;
    }
  }
  block::SpaceSummary Summary() {
    auto spaces = cache_->ListSpaces();
    EXPECT_EQ(spaces.size(), 1u);
    return spaces.empty() ? block::SpaceSummary{} : spaces[0];
  }
  uint64_t Counter(const std::string& name) {
    for (const block::NamedCount& count : cache_->GetStats().counters) {
      if (count.name == name) return count.value;
    }
    return 0;
  }

  TempDir dir_;
  std::unique_ptr<cache::Cache> cache_;
  block::SessionId session_;
};

inline block::SpaceIdentity Qwen3Identity() {
  block::SpaceIdentity identity = SmallIdentity(64, 0);
  identity.model = "qwen3-0.6b";
  std::vector<block::LayerGroup> groups;
  for (uint32_t g = 0; g < 4; ++g) {
    block::LayerGroup group;
    group.name = "full." + std::to_string(g);
    for (uint32_t l = 0; l < 7; ++l) group.layers.push_back(g * 7 + l);
    group.kv_heads = 8;
    group.key_dim = group.value_dim = 128;
    const quant::TensorFormat eight = quant::MlxAffineFormat(8, 64, quant::Dtype::kF16);
    group.ladder = {{eight, eight}};
    groups.push_back(group);
  }
  identity.groups = groups;
  return identity;
}

}  // namespace prefixd::testing
