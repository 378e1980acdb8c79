#include "block/block_hash.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/bytes.h"

namespace prefixd::block {
namespace {

SpaceId CountingSpace() {
  SpaceId space;
  for (size_t i = 0; i < space.size(); ++i) space[i] = static_cast<std::byte>(i);
  return space;
}

template <typename Value>
std::vector<Token> Tokens(uint32_t count, Value value) {
  std::vector<Token> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(value(i));
  return tokens;
}

BlockHash HashBlock(const BlockHash& parent, const SequenceView& block) {
  HashKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(100 + i);
  return BlockHasher(key).Hash(parent, block);
}

BlockHash FullBlock() {
  return HashBlock(RootHash(CountingSpace()),
                   {Tokens(64, [](uint32_t i) { return i * i + 1; }), {}});
}

std::string HexOf(const BlockHash& hash) { return base::ToHex(hash); }

// The constants come from golden_hashes.py, which shares no code with the room.
TEST(BlockHashTest, RootIsTheGoldenVector) {
  EXPECT_EQ(HexOf(RootHash(CountingSpace())), "a3c60a7184d6987734f7152391fba287");
}

TEST(BlockHashTest, ChainIsTheGoldenVectors) {
  const BlockHash root = RootHash(CountingSpace());
  EXPECT_EQ(HexOf(HashBlock(root, {})), "80edb1b884cfa0844d6b081c211d8099");
  EXPECT_EQ(HexOf(HashBlock(root, {std::vector<Token>{7}, {}})),
            "d68d76e890ac2e77c2e6b6ecefc1ec6d");
  EXPECT_EQ(HexOf(FullBlock()), "5d839c1bc30f7674a589a5b05b7a98fd");
  EXPECT_EQ(
      HexOf(HashBlock(FullBlock(), {Tokens(17, [](uint32_t i) { return 0xFFFFFFFF - i; }), {}})),
      "800a377d0c3c97921acbc8468f689a26");
}

TEST(BlockHashTest, ContentIsTheGoldenVectors) {
  const auto count_up = [](uint32_t i) { return i; };
  const std::vector<ContentKey> one = {{.start = 4,
                                        .item_offset = 60,
                                        .length = 20,
                                        .digest = base::Sha256(base::AsBytes("an image"))}};
  EXPECT_EQ(HexOf(HashBlock(FullBlock(), {Tokens(32, count_up), one})),
            "43cbd07903566d86d2ea3b6c9f8d4271");

  std::vector<ContentKey> many;  // above the size that is encoded on the stack
  for (uint32_t i = 0; i < 21; ++i) {
    many.push_back({.start = i * 6,
                    .item_offset = i,
                    .length = 5,
                    .digest = base::Sha256(base::AsBytes(&i, 1))});
  }
  EXPECT_EQ(HexOf(HashBlock(FullBlock(), {Tokens(128, count_up), many})),
            "f70dc8e8394a9892f186286080eb2d98");
}

TEST(BlockHashTest, T1AnotherKeyNamesEveryBlockAnew) {
  const std::vector<Token> tokens = Tokens(64, [](uint32_t i) { return i; });
  HashKey key;
  std::set<BlockHash> hashes;
  for (size_t i = 0; i < 8 * key.size(); ++i) {
    key = {};
    key[i / 8] = std::byte{1} << static_cast<int>(i % 8);
    EXPECT_TRUE(hashes.insert(BlockHasher(key).Hash({}, {tokens, {}})).second);
  }
}

TEST(BlockHashTest, ACutHashIsTheStartOfTheWholeOne) {
  const std::vector<Token> tokens = Tokens(64, [](uint32_t i) { return i; });
  const BlockHash whole = BlockHasher().Hash({}, {tokens, {}});
  EXPECT_EQ(HexOf(BlockHasher({}, 8).Hash({}, {tokens, {}})),
            HexOf(whole).substr(0, 2) + std::string(30, '0'));
  const BlockHash cut = BlockHasher({}, 12).Hash({}, {tokens, {}});
  EXPECT_EQ(cut[1], whole[1] & std::byte{0xf0});
}

TEST(BlockHashTest, EveryPartOfABlockCounts) {
  const std::vector<Token> tokens = Tokens(16, [](uint32_t i) { return i; });
  const ContentKey key = {.start = 1, .item_offset = 2, .length = 3};
  std::set<BlockHash> hashes;
  const auto add = [&](const BlockHash& parent, const std::vector<Token>& t,
                       const std::vector<ContentKey>& c) {
    EXPECT_TRUE(hashes.insert(HashBlock(parent, {t, c})).second);
  };
  const BlockHash root = RootHash(CountingSpace());
  add(root, tokens, {});
  add(FullBlock(), tokens, {});
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<Token> other = tokens;
    other[i] ^= 0x80000000;
    add(root, other, {});
  }
  add(root, {tokens.begin(), tokens.end() - 1}, {});
  add(root, tokens, {key});
  ContentKey changed = key;
  changed.start = 2;
  add(root, tokens, {changed});
  changed = key;
  changed.item_offset = 3;
  add(root, tokens, {changed});
  changed = key;
  changed.length = 4;
  add(root, tokens, {changed});
  changed = key;
  changed.digest[31] = std::byte{1};
  add(root, tokens, {changed});
}

}  // namespace
}  // namespace prefixd::block
