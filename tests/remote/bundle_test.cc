#include "remote/bundle.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "remote/bundle_cipher.h"
#include "remote/record.h"
#include "tests/remote/samples.h"

namespace prefixd::remote {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

// The block, and the bytes, that golden_bundles.py makes.
std::vector<std::byte> GoldenPage(uint32_t group, size_t bytes) {
  std::vector<std::byte> page(bytes);
  for (size_t i = 0; i < bytes; ++i) page[i] = static_cast<std::byte>(group * 91 + i * 7);
  return page;
}

Sample GoldenSample() {
  Sample sample;
  BundleRecord& record = sample.record;
  for (size_t i = 0; i < record.space.size(); ++i) record.space[i] = static_cast<std::byte>(i);
  record.generation = 0x0000000500000007;
  EXPECT_TRUE(base::FromHex("43a7897959b77a6abb75f9c3484ef764", record.name));
  EXPECT_TRUE(base::FromHex("659637b8d826630382f687614f679ed0", record.parent));
  record.first_token = 64;
  record.formats = "s";
  record.tokens.resize(16);
  std::iota(record.tokens.begin(), record.tokens.end(), 1000);
  record.content = {{.start = 4,
                     .item_offset = 60,
                     .length = 9,
                     .digest = base::Sha256(base::AsBytes("an image"))}};
  record.ends = {3, 16};
  record.pages = {{.group = 0, .rung = 16, .page_bytes = 5},
                  {.group = 2, .rung = 7, .page_bytes = 19}};
  sample.groups = {StateGroup(5), StateGroup(8), StateGroup(19)};
  sample.pages = {GoldenPage(0, 5), GoldenPage(2, 19)};
  return sample;
}

std::string Bytes(std::string_view hex) {
  std::string bytes(hex.size() / 2, '\0');
  EXPECT_TRUE(base::FromHex(hex, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
  return bytes;
}

Stored GoldenSealed() {
  Stored stored;
  stored.record = Bytes(
      "564b42310101f9000000c8c9cacbcccdcecfd0d1d2d3d4d5d6d7246a12d9744f07e914234c73ddfdc559e706658e"
      "d21d66a106a5b1706ac890741c341d204c9b53a64cb476e319c59f85c6b13c672ec164978016341f81bf16140ace"
      "48a4234fe21c06cec9c87a7264e473d207e427740488a5b35042b013461c7d2f1c8e0bf88ec4d637fa50d6d96966"
      "80f658b6829bb02003024a842c89cda077531ed550e62c438581a23d31fa8a671e18180d66743ca601ffcd26222a"
      "d2ab308277649162e16768dfa804afeef3f0e8aa556222e1dabc66ddbca196734fcd1c6441ac6a8806b0d87ca479"
      "5243026f1b0ee43d0ab27033e1fc2d243779facd9b701c7d31aa7db06660fa609f94ba7fa571978c1953fdc126ef"
      "b91f49e3d5aec6fa46db20c9b1a4d4");
  stored.stripes = {
      Bytes("163b20a0af948be86cc6a0106c992146132a072ee0b6d40f5c32bfe91dadbd5beaaaf65791609a40")};
  return stored;
}

TEST(BundleTest, TheGoldenBundleIsRead) {
  const Sample golden = GoldenSample();
  const ReadBundle read = Read(SomeKeys(), golden.wanted(), GoldenSealed());
  ASSERT_EQ(read.outcome, "served");
  EXPECT_EQ(read.opened.record, golden.record);
  EXPECT_EQ(read.pages, golden.pages);
}

TEST(BundleTest, ABundleWithChecksHasTheGoldenBytes) {
  const Sample golden = GoldenSample();
  const Stored stored = StoredOf(SomeKeys(), Seal::kChecks, golden);
  EXPECT_EQ(base::ToHex(base::AsBytes(stored.record)),
            "564b4231010001010000000000000000000000000000000000000700000005000000000102030405060708"
            "090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f43a7897959b77a6abb75f9c3484ef764659637b8"
            "d826630382f687614f679ed040000000010000007310000000e8030000e9030000ea030000eb030000ec03"
            "0000ed030000ee030000ef030000f0030000f1030000f2030000f3030000f4030000f5030000f6030000f7"
            "03000001000000040000003c00000009000000a5df3fde7b200c3fa2791144c7e05c5c2bced4c6ad863d3a"
            "4cf76c972c1712f90200000003000000100000000200000000000000100000000500000000000000020000"
            "0007000000130000000000000001000000c31b8c2f09927f0de5196b070f31a998");
  EXPECT_THAT(stored.stripes, ElementsAre(std::string(base::AsText(golden.pages[0])) +
                                          std::string(base::AsText(golden.pages[1]))));
}

TEST(BundleTest, ThreeStripesHaveTheGoldenSealsAndSums) {
  Sample sample = GoldenSample();
  sample.pages = {GoldenPage(0, 300'001), GoldenPage(2, 300'001)};
  const Stored checked = StoredOf(SomeKeys(), Seal::kChecks, sample);
  std::string all, sealed;
  for (const std::string& stripe : checked.stripes) all += stripe;
  Salt salt;
  std::iota(reinterpret_cast<uint8_t*>(salt.begin()), reinterpret_cast<uint8_t*>(salt.end()), 200);
  const std::string bound = Bytes(
      "564b42310101c8c9cacbcccdcecfd0d1d2d3d4d5d6d743a7897959b77a6abb75f9c3484ef7640100000073");
  BundleCipher cipher(SomeKeys(), salt, bound, BundleCipher::Use::kSeal);
  std::vector<std::string> sums;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::span<const std::byte> stripe = base::AsBytes(checked.stripes[i]);
    std::vector<std::byte> to(stripe.size());
    const Tag tag = cipher.Seal(StripePart(i, 3), {&stripe, 1}, to.data());
    sealed += std::string(base::AsText(to)) + std::string(base::AsText(tag));
    const uint64_t sum = base::Xxh3(stripe);
    // The record ends with the sums, and its own.
    EXPECT_EQ(checked.record.substr(checked.record.size() - 32 + 8 * i, 8),
              base::AsText(base::AsBytes(&sum, 1)));
    sums.push_back(absl::StrCat(absl::Hex(sum)));
  }
  EXPECT_THAT(sums, ElementsAre("279e05ddae8cf6e5", "2ab357df09a3d8ba", "7d6a2c4b9517ff89"));
  EXPECT_EQ(base::ToHex(base::Sha256(base::AsBytes(sealed))),
            "5cd150bf249810a958fa39c94fbb7f040ddf9fb6e11ff518fddaf63fb4e13039");
}

void ExpectComesBack(Seal seal, const Sample& sample) {
  const Stored stored = StoredOf(SomeKeys(), seal, sample);
  for (const std::string& stripe : stored.stripes) EXPECT_LE(stripe.size(), kStripeBytes);
  EXPECT_LE(stored.record.size(), kMaxRecordBytes);
  Wanted wanted = sample.wanted();
  wanted.least = seal;
  const ReadBundle read = Read(SomeKeys(), wanted, stored);
  ASSERT_EQ(read.outcome, "served");
  EXPECT_EQ(read.opened.record, sample.record);
  EXPECT_EQ(read.opened.seal, seal);
  EXPECT_EQ(read.pages, sample.pages);
}

TEST(BundleTest, BlocksOfAnyShapeComeBackAsTheyWere) {
  SampleMaker make(20261124);
  for (int i = 0; i < 150; ++i) {
    const Sample sample = make.Any(SomeKeys(), 1 << 20);
    for (const block::LayerGroup& group : sample.groups) ASSERT_TRUE(Validate(group).ok());
    ExpectComesBack(Seal::kAes256Gcm, sample);
    ExpectComesBack(Seal::kChecks, sample);
  }
}

TEST(BundleTest, PagesOfAnySizeAroundTheStripesComeBack) {
  SampleMaker make(7);
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{17}, uint64_t{kStripePayloadBytes - 1},
        uint64_t{kStripePayloadBytes}, uint64_t{kStripePayloadBytes + 1},
        uint64_t{2 * kStripePayloadBytes}, uint64_t{8} << 20}) {
    ExpectComesBack(Seal::kAes256Gcm, make.State(SomeKeys(), bytes));
    ExpectComesBack(Seal::kChecks, make.State(SomeKeys(), bytes));
  }
}

TEST(BundleTest, StripesThatStraddlePagesOfOddSizesComeBack) {
  SampleMaker make(8);
  Sample sample = make.State(SomeKeys(), 7);
  for (const uint64_t bytes : {100'003, 1, 262'063, 300'007, 13}) {
    sample.groups.push_back(StateGroup(bytes));
    sample.AddPage(static_cast<uint32_t>(sample.groups.size() - 1), 1, bytes);
  }
  ExpectComesBack(Seal::kAes256Gcm, sample);
  ExpectComesBack(Seal::kChecks, sample);
}

TEST(BundleTest, StripesFillTheirSizeClass) {
  SampleMaker make(9);
  const Stored stored =
      StoredOf(SomeKeys(), Seal::kAes256Gcm, make.State(SomeKeys(), 3 * kStripePayloadBytes));
  EXPECT_THAT(stored.stripes, SizeIs(3));
  EXPECT_THAT(stored.stripes, Each(SizeIs(kStripeBytes)));
}

// What a host compares, one thing at a time. Sealed, a record of another name does not open.
struct Difference {
  const char* what;
  BadBundle sealed, checked;
  void (*change)(Sample* sample);  // what the writer wrote, under the name that the reader wants
};

TEST(BundleTest, TheFirstThingThatDiffersIsNamed) {
  const Difference differences[] = {
      {"space", BadBundle::kSpace, BadBundle::kSpace,
       [](Sample* sample) { sample->record.space[0] ^= std::byte{1}; }},
      {"generation", BadBundle::kGeneration, BadBundle::kGeneration,
       [](Sample* sample) { ++sample->record.generation; }},
      {"name", BadBundle::kSeal, BadBundle::kName,
       [](Sample* sample) { sample->record.name[15] ^= std::byte{1}; }},
      {"formats", BadBundle::kSeal, BadBundle::kName,
       [](Sample* sample) { sample->record.formats += "1"; }},
      {"parent", BadBundle::kName, BadBundle::kName,
       [](Sample* sample) { sample->record.parent[0] ^= std::byte{1}; }},
      {"place", BadBundle::kTokens, BadBundle::kTokens,
       [](Sample* sample) { ++sample->record.first_token; }},
      {"token", BadBundle::kTokens, BadBundle::kTokens,
       [](Sample* sample) { ++sample->record.tokens.back(); }},
      {"one token less", BadBundle::kTokens, BadBundle::kTokens,
       [](Sample* sample) { sample->record.tokens.pop_back(); }},
      {"an end at 0", BadBundle::kTokens, BadBundle::kTokens,
       [](Sample* sample) { sample->record.ends = {0}; }},
      {"an end outside", BadBundle::kTokens, BadBundle::kTokens,
       [](Sample* sample) { sample->record.ends = {17}; }},
      {"ends out of order", BadBundle::kTokens, BadBundle::kTokens,
       [](Sample* sample) {
         sample->record.ends = {5, 5};
       }},
      {"content", BadBundle::kContent, BadBundle::kContent,
       [](Sample* sample) { sample->record.content[0].digest[7] ^= std::byte{1}; }},
      {"no content", BadBundle::kContent, BadBundle::kContent,
       [](Sample* sample) { sample->record.content.clear(); }},
      {"no pages", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) {
         sample->record.pages.clear();
         sample->pages.clear();
       }},
      {"a group too many", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) { sample->record.pages[1].group = 3; }},
      {"an offset outside", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) { sample->record.pages[1].rung = 17; }},
      {"an offset of 0", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) { sample->record.pages[0].rung = 0; }},
      {"a page of another size", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) {
         ++sample->record.pages[1].page_bytes;
         sample->pages[1].push_back({});
       }},
      {"a page twice", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) {
         sample->record.pages[1] = sample->record.pages[0];
         sample->pages[1] = sample->pages[0];
       }},
      {"pages out of order", BadBundle::kLayout, BadBundle::kLayout,
       [](Sample* sample) {
         std::swap(sample->record.pages[0], sample->record.pages[1]);
         std::swap(sample->pages[0], sample->pages[1]);
       }},
      {"fewer stripes than pages fill", BadBundle::kShort, BadBundle::kShort,
       [](Sample* sample) { sample->pages.clear(); }},
  };
  const Sample golden = GoldenSample();
  Wanted wanted = golden.wanted();
  wanted.least = Seal::kChecks;
  for (const Difference& difference : differences) {
    Sample other = golden;
    difference.change(&other);
    const auto outcome = [&](Seal seal) {
      return Read(SomeKeys(), wanted, StoredOf(SomeKeys(), seal, other)).outcome;
    };
    EXPECT_EQ(outcome(Seal::kAes256Gcm), NameOf(difference.sealed)) << difference.what;
    EXPECT_EQ(outcome(Seal::kChecks), NameOf(difference.checked)) << difference.what;
  }
}

TEST(BundleTest, ARungThatTheLadderLacksIsNoLayout) {
  SampleMaker make(10);
  Sample sample = make.Any(SomeKeys(), 1000);
  while (sample.groups.back().kind == block::LayerKind::kState ||
         sample.record.pages.back().group + 1 != sample.groups.size()) {
    sample = make.Any(SomeKeys(), 1000);
  }
  EXPECT_EQ(
      Read(SomeKeys(), sample.wanted(), StoredOf(SomeKeys(), Seal::kAes256Gcm, sample)).outcome,
      "served");
  sample.record.pages.back().rung = 3;
  EXPECT_EQ(
      Read(SomeKeys(), sample.wanted(), StoredOf(SomeKeys(), Seal::kAes256Gcm, sample)).outcome,
      "layout");
}

// What OpenRecord says of a record with checks alone that has this body.
BadBundle OpenBody(const std::string& body) {
  const Sample golden = GoldenSample();
  Wanted wanted = golden.wanted();
  wanted.least = Seal::kChecks;
  base::ByteWriter record;
  record.Raw(base::AsBytes(EncodeHeader({.seal = Seal::kChecks}, body.size()) + body));
  record.Fixed(base::Xxh3(base::AsBytes(record.bytes())));
  OpenedRecord opened;
  return OpenRecord(SomeKeys(), base::AsBytes(record.bytes()), wanted, &opened);
}

TEST(BundleTest, ABodyHasNothingAfterIt) {
  const std::string body = EncodeBody(GoldenSample().record, 1, std::vector<uint64_t>{5});
  EXPECT_EQ(OpenBody(body), BadBundle::kNone);
  EXPECT_EQ(OpenBody(body + "x"), BadBundle::kShort);
  EXPECT_EQ(OpenBody(body + std::string(8, '\0')), BadBundle::kShort);
}

TEST(BundleTest, CountsThatCannotBeTrueAllocateNothing) {
  const std::string body = EncodeBody(GoldenSample().record, 1, std::vector<uint64_t>{5});
  // The counts of formats, tokens, content, ends, pages and stripes.
  for (const size_t at : {76, 81, 149, 197, 209, 245}) {
    for (const uint32_t count : {0xffffffffu, 0x7fffffffu, 60'000u}) {
      std::string other = body;
      std::memcpy(&other[at], &count, sizeof(count));
      EXPECT_EQ(OpenBody(other), BadBundle::kShort) << at;
    }
  }
}

TEST(BundleTest, ABundleIsSealedAnewEveryTime) {
  SampleMaker make(11);
  const Sample sample = make.State(SomeKeys(), 4096);
  const Stored one = StoredOf(SomeKeys(), Seal::kAes256Gcm, sample);
  const Stored two = StoredOf(SomeKeys(), Seal::kAes256Gcm, sample);
  EXPECT_NE(one.record.substr(10, 16), two.record.substr(10, 16));  // the salts
  size_t equal = 0;
  for (size_t i = 0; i < one.stripes[0].size(); ++i)
    equal += one.stripes[0][i] == two.stripes[0][i];
  EXPECT_LT(equal, 100u);  // one in 256, by chance
}

#ifndef __SANITIZE_THREAD__  // the race is what is tested
TEST(BundleTest, PagesThatChangeWhileTheyAreSealedGiveABundleThatIsWhole) {
  SampleMaker make(12);
  Sample sample = make.State(SomeKeys(), 300'000);
  std::atomic<uint64_t> writes{0};
  std::atomic<bool> done{false};
  std::thread writer([&] {
    auto* const words = reinterpret_cast<uint64_t*>(sample.pages[0].data());
    const size_t count = sample.pages[0].size() / sizeof(uint64_t);
    for (uint64_t i = 1; !done; writes = i++) std::atomic_ref(words[i * 31 % count]).store(i);
  });
  for (const Seal seal : {Seal::kChecks, Seal::kAes256Gcm}) {
    Wanted wanted = sample.wanted();
    wanted.least = seal;
    int raced = 0;
    for (int i = 0; i < 5000 && raced < 50; ++i) {
      const uint64_t before = writes;
      const Stored stored = StoredOf(SomeKeys(), seal, sample);
      if (writes != before) ++raced;
      EXPECT_EQ(Read(SomeKeys(), wanted, stored).outcome, "served");
    }
  }
  done = true;
  writer.join();
}
#endif

TEST(BundleTest, AFailedReadLeavesTheRecordThatWasThere) {
  const Sample golden = GoldenSample();
  OpenedRecord opened;
  opened.stripes = 77;
  EXPECT_EQ(OpenRecord(SomeKeys(), base::AsBytes("no bundle"), golden.wanted(), &opened),
            BadBundle::kShort);
  EXPECT_EQ(opened.stripes, 77u);
}

}  // namespace
}  // namespace prefixd::remote
