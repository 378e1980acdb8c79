#include "block/tokens.h"

#include <algorithm>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "block/block_hash.h"

namespace prefixd::block {
namespace {

using ::testing::HasSubstr;

base::Digest256 Item(uint8_t id) {
  base::Digest256 digest{};
  digest[31] = static_cast<std::byte>(id);
  return digest;
}

struct Sequence {
  std::vector<Token> tokens;
  std::vector<ContentKey> content;
  SequenceView view() const { return {tokens, content}; }
};

// What stands at one position, written out: the oracle for everything in this file.
using Position = std::tuple<Token, bool, base::Digest256, uint64_t>;
std::vector<Position> Spell(const Sequence& sequence) {
  std::vector<Position> positions;
  for (uint32_t i = 0; i < sequence.tokens.size(); ++i) {
    Position position = {sequence.tokens[i], false, {}, 0};
    for (const ContentKey& key : sequence.content) {
      if (key.start <= i && i - key.start < key.length) {
        position = {sequence.tokens[i], true, key.digest,
                    uint64_t{key.item_offset} + i - key.start};
      }
    }
    positions.push_back(position);
  }
  return positions;
}

uint32_t CommonOf(const std::vector<Position>& a, const std::vector<Position>& b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<uint32_t>(ends.first - a.begin());
}

uint32_t Below(std::mt19937& random, size_t limit) {
  return static_cast<uint32_t>(random() % limit);
}

// Few different tokens and items, so that sequences share much and differ in every way.
Sequence RandomSequence(std::mt19937& random, uint32_t max_tokens) {
  Sequence sequence;
  sequence.tokens.resize(Below(random, max_tokens + 1));
  for (Token& token : sequence.tokens) token = random() % 64 == 0 ? 0x80000001 : 5;
  for (uint32_t at = Below(random, 40); at < sequence.tokens.size() && random() % 4 != 0;) {
    const uint32_t room = static_cast<uint32_t>(sequence.tokens.size()) - at;
    const ContentKey key = {.start = at,
                            .item_offset = Below(random, 2),
                            .length = 1 + Below(random, std::min(room, 9u)),
                            .digest = Item(static_cast<uint8_t>(Below(random, 2)))};
    sequence.content.push_back(key);
    at += key.length + Below(random, 3);
  }
  return sequence;
}

TEST(TokensTest, CommonPrefixFindsTheFirstDifferenceAtEveryPlaceAndLength) {
  for (uint32_t count = 0; count <= 200; ++count) {
    std::vector<Token> a(count), b;
    for (uint32_t i = 0; i < count; ++i) a[i] = i * 2654435761u;
    b = a;
    EXPECT_EQ(CommonPrefix({a, {}}, {b, {}}), count);
    EXPECT_EQ(Compare({a, {}}, {b, {}}), std::strong_ordering::equal);
    for (uint32_t i = 0; i < count; ++i) {
      b[i] ^= 1u << (i % 32);
      ASSERT_EQ(CommonPrefix({a, {}}, {b, {}}), i) << count;
      ASSERT_EQ(Compare({a, {}}, {b, {}}), a[i] <=> b[i]) << count;
      b[i] = a[i];
    }
  }
}

TEST(TokensTest, TokensCompareAsUnsignedNumbersNotAsBytes) {
  const std::vector<Token> small = {0x000000FF}, large = {0x00000100}, top = {0x80000000};
  EXPECT_EQ(Compare({small, {}}, {large, {}}), std::strong_ordering::less);
  EXPECT_EQ(Compare({large, {}}, {top, {}}), std::strong_ordering::less);
}

TEST(TokensTest, AProperPrefixComesFirst) {
  const std::vector<Token> longer = {1, 2, 3};
  const std::span<const Token> shorter = std::span(longer).first(2);
  EXPECT_EQ(Compare({shorter, {}}, {longer, {}}), std::strong_ordering::less);
  EXPECT_EQ(Compare({longer, {}}, {shorter, {}}), std::strong_ordering::greater);
  EXPECT_EQ(CommonPrefix({shorter, {}}, {longer, {}}), 2u);
}

TEST(TokensTest, RandomSequencesCompareAsTheirSpelledOutPositions) {
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const Sequence a = RandomSequence(random, 150);
    Sequence b = random() % 2 == 0 ? RandomSequence(random, 150) : a;
    if (!b.content.empty() && random() % 2 == 0) b.content.back().digest = Item(2);
    if (!b.tokens.empty() && random() % 2 == 0) b.tokens[random() % b.tokens.size()] += 1;
    const std::vector<Position> spelled_a = Spell(a), spelled_b = Spell(b);
    ASSERT_EQ(CommonPrefix(a.view(), b.view()), CommonOf(spelled_a, spelled_b));
    ASSERT_EQ(Compare(a.view(), b.view()), spelled_a <=> spelled_b);
  }
}

TEST(TokensTest, TheSequenceSharingTheMostIsANeighbourInTheOrder) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<Sequence> sequences(20);
    for (Sequence& sequence : sequences) sequence = RandomSequence(random, 100);
    const auto less = [](const Sequence& a, const Sequence& b) {
      return Compare(a.view(), b.view()) < 0;
    };
    std::sort(sequences.begin(), sequences.end(), less);
    const Sequence wanted = RandomSequence(random, 100);
    uint32_t best = 0, nearest = 0;
    for (const Sequence& s : sequences)
      best = std::max(best, CommonPrefix(s.view(), wanted.view()));
    const auto after = std::lower_bound(sequences.begin(), sequences.end(), wanted, less);
    if (after != sequences.end()) nearest = CommonPrefix(after->view(), wanted.view());
    if (after != sequences.begin()) {
      nearest = std::max(nearest, CommonPrefix((after - 1)->view(), wanted.view()));
    }
    ASSERT_EQ(nearest, best);
  }
}

TEST(TokensTest, EqualTokensUnderDifferentContentAreDifferentPrefixes) {
  const std::vector<Token> tokens(100, 9);
  const std::vector<ContentKey> image = {{.start = 70, .length = 20, .digest = Item(1)}};
  std::vector<ContentKey> other = image;
  other[0].digest = Item(2);
  EXPECT_EQ(CommonPrefix({tokens, image}, {tokens, other}), 70u);
  EXPECT_EQ(CommonPrefix({tokens, image}, {tokens, {}}), 70u);
  EXPECT_EQ(Compare({tokens, {}}, {tokens, image}), std::strong_ordering::less);
  other = image;
  other[0].item_offset = 1;
  EXPECT_EQ(CommonPrefix({tokens, image}, {tokens, other}), 70u);
  other = image;
  other[0].length = 15;
  EXPECT_EQ(CommonPrefix({tokens, image}, {tokens, other}), 85u);
}

TEST(TokensTest, ASplitKeyIsRefusedButComparesAsTheWhole) {
  const std::vector<Token> tokens(32, 1);
  const std::vector<ContentKey> whole = {
      {.start = 4, .item_offset = 3, .length = 20, .digest = Item(1)}};
  const std::vector<ContentKey> split = {
      {.start = 4, .item_offset = 3, .length = 8, .digest = Item(1)},
      {.start = 12, .item_offset = 11, .length = 12, .digest = Item(1)}};
  EXPECT_EQ(CommonPrefix({tokens, whole}, {tokens, split}), 32u);
  EXPECT_EQ(Compare({tokens, whole}, {tokens, split}), std::strong_ordering::equal);
  EXPECT_TRUE(ValidateContent({tokens, whole}).ok());
  const absl::Status refused = ValidateContent({tokens, split});
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(refused.ToString(), HasSubstr("key 1"));
  EXPECT_THAT(refused.ToString(), HasSubstr("continues the key before it"));
}

TEST(TokensTest, AdjacentKeysOfDifferentPlacesAreAllowed) {
  const std::vector<Token> tokens(32, 1);
  EXPECT_TRUE(
      ValidateContent({tokens, std::vector<ContentKey>{{0, 0, 8, Item(1)}, {8, 0, 8, Item(1)}}})
          .ok());
  EXPECT_TRUE(
      ValidateContent({tokens, std::vector<ContentKey>{{0, 0, 8, Item(1)}, {8, 8, 8, Item(2)}}})
          .ok());
  EXPECT_TRUE(ValidateContent({tokens, std::vector<ContentKey>{{24, 0, 8, Item(1)}}}).ok());
}

TEST(TokensTest, BadContentIsRefusedByName) {
  const std::vector<Token> tokens(32, 1);
  const auto refusal = [&](std::vector<ContentKey> content) {
    const absl::Status status = ValidateContent({tokens, content});
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return status.ToString();
  };
  EXPECT_THAT(refusal({{0, 0, 0, Item(1)}}),
              HasSubstr("key 0 (start 0, item_offset 0, length 0) is empty"));
  EXPECT_THAT(refusal({{0, 0, 8, Item(1)}, {7, 0, 8, Item(2)}}), HasSubstr("overlaps or precedes"));
  EXPECT_THAT(refusal({{8, 0, 8, Item(1)}, {0, 0, 8, Item(2)}}), HasSubstr("key 1"));
  EXPECT_THAT(refusal({{25, 0, 8, Item(1)}}), HasSubstr("past the 32 tokens"));
  EXPECT_THAT(refusal({{0xFFFFFFFF, 0, 0xFFFFFFFF, Item(1)}}), HasSubstr("past the 32 tokens"));
  EXPECT_THAT(refusal({{0, 0xFFFFFFFF, 8, Item(1)}}), HasSubstr("item position"));
}

TEST(TokensTest, CutContentSpellsTheSamePositionsAndStaysValid) {
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const Sequence whole = RandomSequence(random, 120);
    if (!ValidateContent(whole.view()).ok()) continue;
    const uint32_t size = static_cast<uint32_t>(whole.tokens.size());
    const uint32_t begin = Below(random, size + 1), end = begin + Below(random, size - begin + 1);
    Sequence cut = {{whole.tokens.begin() + begin, whole.tokens.begin() + end},
                    CutContent(whole.content, begin, end)};
    const std::vector<Position> spelled = Spell(whole);
    ASSERT_EQ(Spell(cut), std::vector<Position>(spelled.begin() + begin, spelled.begin() + end));
    ASSERT_TRUE(ValidateContent(cut.view()).ok());
  }
}

// What makes the hash a name: valid blocks that compare equal are the same bytes.
TEST(TokensTest, ValidBlocksHashEqualExactlyWhenTheyCompareEqual) {
  std::mt19937 random(5);
  std::vector<Sequence> valid;
  while (valid.size() < 400) {
    Sequence sequence = RandomSequence(random, 6);
    if (ValidateContent(sequence.view()).ok()) valid.push_back(sequence);
  }
  int equal = 0;
  for (const Sequence& a : valid) {
    for (const Sequence& b : valid) {
      const bool same = Compare(a.view(), b.view()) == 0;
      equal += same;
      ASSERT_EQ(BlockHasher().Hash({}, a.view()) == BlockHasher().Hash({}, b.view()), same);
    }
  }
  EXPECT_GT(equal, 1000);
}

}  // namespace
}  // namespace prefixd::block
