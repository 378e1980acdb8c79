#include "remote/names.h"

#include <numeric>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/bytes.h"
#include "remote/hmac.h"

namespace prefixd::remote {
namespace {

using ::testing::ContainsRegex;

TenantKeys KeysOf(std::string_view secret, const std::string& tenant) {
  return DeriveKeys(base::AsBytes(secret), tenant);
}

// What golden_bundles.py calls so.
TenantKeys GoldenKeys() { return KeysOf("the bytes of a key file", "team a"); }
block::SpaceId GoldenSpace() {
  block::SpaceId space;
  for (size_t i = 0; i < space.size(); ++i) space[i] = static_cast<std::byte>(i);
  return space;
}

TEST(HmacTest, AgreesWithTheVectorsOfRfc4231) {
  const auto mac = [](uint8_t fill, size_t bytes, std::string_view message) {
    Key256 key{};
    std::fill_n(key.begin(), bytes, static_cast<std::byte>(fill));
    return base::ToHex(Hmac(key).Of(base::AsBytes(message)));
  };
  EXPECT_EQ(mac(0x0b, 20, "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac(0xaa, 20, std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  Key256 jefe{};
  std::ranges::copy(base::AsBytes("Jefe"), jefe.begin());
  EXPECT_EQ(base::ToHex(Hmac(jefe).Of(base::AsBytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(HmacTest, DerivesTheKeyOfRfc5869) {
  const std::vector<std::byte> secret(22, std::byte{0x0b});
  std::array<std::byte, 13> salt;
  ASSERT_TRUE(base::FromHex("000102030405060708090a0b0c", salt));
  EXPECT_EQ(base::ToHex(Hkdf(secret, salt, "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9")),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

TEST(NamesTest, KeysAreTheGoldenOnes) {
  const TenantKeys keys = GoldenKeys();
  EXPECT_EQ(base::ToHex(keys.naming),
            "4ec02a1a187707e8375878dd77da0388d2f9a478df51055078cdb1b678dffc20");
  EXPECT_EQ(base::ToHex(keys.sealing),
            "5eaab42f73e0bffa05d1977af202f6c5a348c7c7f980745c8dd4b2dd43a86d71");
}

TEST(NamesTest, NamesAreTheGoldenOnes) {
  const Namer namer(GoldenKeys(), 0x0000000500000007, GoldenSpace());
  std::vector<block::Token> tokens;
  for (uint32_t i = 0; i < 64; ++i) tokens.push_back(i * i + 1);
  const ChainName first = namer.Next({}, {tokens, {}});
  EXPECT_EQ(KeyOf(first, "0"), "pd1:{ZZY3uNgmYwOC9odhT2ee0A}:0");

  tokens.resize(16);
  std::iota(tokens.begin(), tokens.end(), 1000);
  const block::ContentKey image{.start = 4,
                                .item_offset = 60,
                                .length = 9,
                                .digest = base::Sha256(base::AsBytes("an image"))};
  const ChainName second = namer.Next(first, {tokens, {&image, 1}});
  EXPECT_EQ(KeyOf(second, "s"), "pd1:{Q6eJeVm3emq7dfnDSE73ZA}:s");

  tokens.resize(128);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<block::ContentKey> many;  // more than the 1 KiB that a message usually has
  for (uint32_t i = 0; i < 21; ++i) {
    many.push_back({.start = i * 6,
                    .item_offset = i,
                    .length = 5,
                    .digest = base::Sha256(base::AsBytes(&i, 1))});
  }
  EXPECT_EQ(base::ToHex(namer.Next(second, {tokens, many})), "1b1dc8707224b143deab4666ad871108");
  EXPECT_EQ(base::ToHex(Namer(GoldenKeys(), 0, {}).Next({}, {})),
            "98f0eecbf3842716e2cc0ec9fe3f29a4");
}

TEST(NamesTest, EverythingThatANameIsMadeOfMakesAnother) {
  const std::vector<block::Token> tokens{1, 2, 3, 4};
  const block::ContentKey image{.start = 1, .length = 2, .digest = GoldenSpace()};
  block::ContentKey moved = image;
  moved.item_offset = 1;
  block::SpaceId other_space = GoldenSpace();
  other_space[31] ^= std::byte{1};
  ChainName parent{};
  parent[15] = std::byte{1};
  const Namer namer(GoldenKeys(), 1, GoldenSpace());
  std::set<ChainName> names;
  const auto expect_new = [&names](const ChainName& name) {
    EXPECT_TRUE(names.insert(name).second) << base::ToHex(name);
  };
  expect_new(namer.Next({}, {tokens, {}}));
  expect_new(namer.Next(parent, {tokens, {}}));
  expect_new(namer.Next({}, {tokens, {&image, 1}}));
  expect_new(namer.Next({}, {tokens, {&moved, 1}}));
  expect_new(namer.Next({}, {std::span(tokens).first(3), {}}));
  expect_new(Namer(GoldenKeys(), 2, GoldenSpace()).Next({}, {tokens, {}}));
  expect_new(Namer(GoldenKeys(), 1, other_space).Next({}, {tokens, {}}));
  for (const char* tenant : {"", "team b", "team a "}) {
    const TenantKeys keys = KeysOf("the bytes of a key file", tenant);
    expect_new(Namer(keys, 1, GoldenSpace()).Next({}, {tokens, {}}));
  }
  const TenantKeys rotated = KeysOf("the bytes of a key filf", "team a");
  expect_new(Namer(rotated, 1, GoldenSpace()).Next({}, {tokens, {}}));
}

TEST(NamesTest, TenantsThatDifferByZeroBytesHaveOtherKeys) {
  std::set<Key256> keys;
  for (const std::string& tenant : {std::string("a"), std::string("a\0", 2),
                                    std::string("a\0\0", 3), std::string(), std::string("\0", 1)}) {
    const TenantKeys of_tenant = KeysOf("secret", tenant);
    EXPECT_TRUE(keys.insert(of_tenant.naming).second);
    EXPECT_TRUE(keys.insert(of_tenant.sealing).second);
  }
}

TEST(NamesTest, R9TenantsAndGenerationsNeverShareAName) {
  std::mt19937_64 random(20261124);
  const Namer namers[] = {{KeysOf("secret", "a"), 0, GoldenSpace()},
                          {KeysOf("secret", "a"), 1, GoldenSpace()},
                          {KeysOf("secret", "b"), 0, GoldenSpace()},
                          {KeysOf("secret", "b"), 1, GoldenSpace()},
                          {KeysOf("other secret", "a"), 0, GoldenSpace()}};
  std::set<ChainName> names;
  size_t made = 0;
  for (int sequence = 0; sequence < 200; ++sequence) {
    ChainName parents[std::size(namers)] = {};
    for (int block = 0; block < 20; ++block) {
      std::vector<block::Token> tokens(16);
      for (block::Token& token : tokens) token = static_cast<block::Token>(random());
      for (size_t i = 0; i < std::size(namers); ++i, ++made) {
        parents[i] = namers[i].Next(parents[i], {tokens, {}});
        names.insert(parents[i]);
      }
    }
  }
  EXPECT_EQ(names.size(), made);
}

TEST(NamesTest, AKeyHasTheNameInBracesAndSafeCharactersOnly) {
  std::mt19937_64 random(1);
  std::set<std::string> keys;
  for (int i = 0; i < 1000; ++i) {
    ChainName name;
    for (std::byte& byte : name) byte = static_cast<std::byte>(random());
    const std::string key = KeyOf(name, "0");
    EXPECT_THAT(key, ContainsRegex("^pd1:\\{[A-Za-z0-9_-]{22}\\}:0$"));
    keys.insert(key);
  }
  EXPECT_EQ(keys.size(), 1000u);
}

}  // namespace
}  // namespace prefixd::remote
