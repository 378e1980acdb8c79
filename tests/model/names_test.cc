// The whole life of a cache whose block hashes are cut to 8 bits, so that most blocks share theirs
// with others: store, spill, age out, purge, kill, restart, adopt. What comes back is byte for byte
// what the tokens make; PREFIXD_NAME_OPERATIONS sets how many operations.
#define XXH_INLINE_ALL
#include "tests/cache/shared_fixture.h"
#include "xxhash.h"

namespace prefixd::testing {
namespace {

// What the lives of one cache came to.
struct Sums {
  uint64_t operations = 0, hit_tokens = 0, wrong = 0;
  uint64_t adopted = 0, restored = 0, aged_out = 0, promoted = 0, orphans = 0;

  std::string Text() const {
    return std::string(reinterpret_cast<const char*>(this), sizeof(*this));
  }
  void Add(const std::string& text) {
    ASSERT_EQ(text.size(), sizeof(Sums));
    Sums other;
    std::memcpy(&other, text.data(), sizeof(other));
    operations += other.operations;
    hit_tokens += other.hit_tokens;
    wrong += other.wrong;
    adopted += other.adopted;
    restored += other.restored;
    aged_out += other.aged_out;
    promoted += other.promoted;
    orphans += other.orphans;
  }
};

class NamesTest : public SharedCacheTest {
 protected:
  static constexpr size_t kSpaces = 3;

  NamesTest() {
    for (size_t i = 0; i < kSpaces; ++i) {
      block::SpaceIdentity identity = SmallIdentity(16, 1);
      identity.model = "names " + std::to_string(i);
      block::LayerGroup& group = identity.groups[0];
      group.kv_heads = 1;
      group.key_dim = group.value_dim = 32;
      identities_.push_back(identity);
    }
    options_ = SharedWithSsd(uint64_t{32} << 20);
    options_.ssd_budget_bytes = uint64_t{6} << 20;
    options_.segment_bytes = uint64_t{256} << 10;
    options_.hash_bits = 8;
    options_.ssd_write_bytes_per_s = 0;
    options_.log = [](cache::LogLevel level, const std::string& line) {
      if (level == cache::LogLevel::kError) std::cerr << line << "\n";
    };
  }

  // Of a few thousand: lives share them, and each is often stored anew after it was given up.
  Tokens Sequence(std::mt19937_64& random) {
    Tokens tokens;
    const uint64_t pick = random() % 4000;
    std::mt19937_64 fixed(pick / 8);  // eight begin alike
    const size_t shared = 16 * (1 + fixed() % 5) - fixed() % 3;
    for (size_t i = 0; i < shared; ++i) tokens.push_back(static_cast<Token>(fixed() % 3));
    std::mt19937_64 own(pick);
    for (size_t i = 0; i < 8 + own() % 60; ++i) tokens.push_back(static_cast<Token>(own() % 3));
    return tokens;
  }

  // Of a hit every byte is what its own tokens make.
  uint32_t Read(size_t which, const Tokens& tokens, Sums* sums) {
    const cache::Acquired acquired = Acquire(spaces_[which], tokens);
    if (!acquired.lease) return 0;
    Collector got;
    EXPECT_TRUE(cache_
                    ->Fetch(session_, {.lease = acquired.lease, .groups = {}, .from_token = 0},
                            In(20000), &got)
                    .ok());
    for (const auto& [key, page] : got.pages) {
      const std::vector<std::byte> want =
          MakePage(identities_[which].groups[0], 0, tokens, key.second, got.tokens.at(key));
      sums->wrong += page == want ? 0 : 1;
      sums->hit_tokens += got.tokens.at(key);
    }
    EXPECT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
    return acquired.match.restorable_tokens;
  }

  void PurgeOne(size_t which) {
    const block::SpaceId id = block::IdOf(identities_[which]);
    uint64_t cursor = 0;
    do {
      const auto progress = cache_->Purge(&id, cursor);
      ASSERT_TRUE(progress.ok()) << progress.status();
      cursor = progress->next;
    } while (cursor != 0);
  }

  void Step(std::mt19937_64& random, Sums* sums) {
    const uint64_t dice = random() % 10000;
    const size_t which = random() % kSpaces;
    if (dice < 4500) {
      const Tokens tokens = Sequence(random);
      const auto stored = Store(identities_[which], spaces_[which], tokens);
      ASSERT_TRUE(stored.ok()) << stored.status();
    } else if (dice < 9985) {
      Read(which, Sequence(random), sums);
    } else if (dice < 9996) {
      cache_->Flush(In(20000));
    } else {
      PurgeOne(which);
    }
    ++sums->operations;
  }

  std::string Live(uint64_t seed, uint64_t operations) {
    Sums sums;
    EXPECT_TRUE(cache_->WaitLoaded(In(60000)));
    spaces_.clear();
    for (const block::SpaceIdentity& identity : identities_) spaces_.push_back(OpenSpace(identity));
    std::mt19937_64 random(seed);
    while (sums.operations < operations && !HasFatalFailure()) Step(random, &sums);
    sums.adopted = Counter("adopted.pages");
    sums.restored = Counter("recovered.records");
    sums.orphans = Counter("recovered.orphans");
    sums.aged_out = Counter("segments.dropped");
    sums.promoted = Counter("pages.promoted");
    return sums.Text();
  }

  std::vector<block::SpaceIdentity> identities_;
  std::vector<block::SpaceHandle> spaces_;
  cache::Options options_;
};

// Two blocks of 64 tokens that XXH3-128 cannot tell apart, whatever stands before them: three of
// its lanes multiply 32-bit halves, and the sums of the products are equal. Found in half a second.
std::pair<Tokens, Tokens> CollidingBlocks() {
  Tokens a(64), b(64);
  for (Token i = 0; i < 64; ++i) a[i] = b[i] = i + 1;
  a[1] = 36, b[1] = 256, a[2] = b[2] = 719;
  a[17] = 0, b[17] = 950, a[18] = b[18] = 163;
  a[33] = 1199, b[33] = 29, a[34] = b[34] = 109;
  return {a, b};
}

// What block hashes once were made of.
std::array<uint32_t, 70> AsHashedBefore(const Tokens& tokens, uint32_t parent) {
  std::array<uint32_t, 70> words{parent, parent + 1, parent + 2, parent + 3, 64};
  std::ranges::copy(tokens, words.begin() + 5);
  return words;
}

// The life in which the second block got the first one's children, as a child's record named its
// parent by hash alone. With names of no bits every block is of one name, whatever makes it.
TEST_F(NamesTest, T1AChildOfABlockIsNeverServedBehindAnotherOfItsHash) {
  const auto [a, b] = CollidingBlocks();
  ASSERT_NE(a, b);
  for (const uint32_t parent : {0u, 77u}) {
    const auto of_a = AsHashedBefore(a, parent), of_b = AsHashedBefore(b, parent);
    ASSERT_TRUE(XXH128_isEqual(XXH3_128bits(of_a.data(), sizeof(of_a)),
                               XXH3_128bits(of_b.data(), sizeof(of_b))));
  }
  block::SpaceIdentity identity = identities_[0];
  identity.block_tokens = 64;
  Tokens a_child = a, b_child = b;
  for (Token i = 0; i < 64; ++i) {
    a_child.push_back(i);
    b_child.push_back(i);
  }
  for (const uint32_t bits : {128u, 0u}) {
    options_.hash_bits = bits;
    options_.arena_path.clear();
    options_.directory = dir_.path() + "/bits" + std::to_string(bits);
    Open(options_);
    auto space = OpenSpace(identity);
    const auto other = OpenSpace(identities_[1]);
    ASSERT_TRUE(Store(identity, space, a_child).ok());
    ASSERT_TRUE(Store(identities_[1], other, RandomTokens(1, 100)).ok());
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    ASSERT_TRUE(Store(identity, space, b).ok());
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    PurgeOne(1);  // the segment that has A is written again, behind B's
    Open(options_);
    space = OpenSpace(identity);
    EXPECT_EQ(ReadBack(identity, space, b_child), 64u);
    EXPECT_EQ(ReadBack(identity, space, a_child), 128u);
  }
}

uint64_t OperationsWanted() {
  const char* const text = std::getenv("PREFIXD_NAME_OPERATIONS");
  return text == nullptr ? 20'000 : std::strtoull(text, nullptr, 10);
}

TEST_F(NamesTest, T1NoHitIsEverWrongWhereMostBlocksShareTheirHash) {
  const uint64_t wanted = OperationsWanted();
  Sums sums;
  for (uint64_t life = 0; sums.operations < wanted; ++life) {
    // Every third life begins without the arena: from the SSD alone.
    if (life % 3 == 2) std::filesystem::remove(arena_path_);
    sums.Add(LiveAndBeKilled(options_, [&] { return Live(life, 1000 + 397 * (life % 13)); }));
    ASSERT_FALSE(HasFailure()) << "life " << life;
    ASSERT_EQ(sums.wrong, 0u) << "pages, in life " << life;
  }
  EXPECT_GT(sums.hit_tokens, wanted);
  EXPECT_GT(sums.adopted, wanted / 100);
  EXPECT_GT(sums.restored, wanted / 100);
  EXPECT_GT(sums.aged_out, wanted / 10'000);
  EXPECT_GT(sums.promoted, wanted / 1000);
  std::cout << sums.operations << " operations: " << sums.hit_tokens << " hit tokens, "
            << sums.adopted << " pages adopted, " << sums.restored << " records restored, "
            << sums.orphans << " orphans, " << sums.aged_out << " segments aged out, "
            << sums.promoted << " pages promoted\n";
}

}  // namespace
}  // namespace prefixd::testing
