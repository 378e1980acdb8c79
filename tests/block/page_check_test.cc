#include "block/page_check.h"

#include <cstring>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/bytes.h"

namespace prefixd::block {
namespace {

using ::testing::HasSubstr;

struct Stored {
  PageName name;
  std::vector<std::byte> page;
  uint64_t check = 0;
  PageHeader header;
};

// golden_hashes.py builds the same page.
Stored GoldenPage() {
  Stored stored;
  for (size_t i = 0; i < 32; ++i) stored.name.space[i] = static_cast<std::byte>(i);
  EXPECT_TRUE(base::FromHex("5d839c1bc30f7674a589a5b05b7a98fd", stored.name.block));
  stored.name.group = 3;
  stored.name.part = 1;
  stored.name.rung = 2;
  stored.name.tokens = 64;
  stored.page.resize(1024);
  for (size_t i = 0; i < 1024; ++i) stored.page[i] = static_cast<std::byte>(i * 7 % 256);
  stored.check = PageCheck(stored.name, stored.page);
  stored.header = MakePageHeader(stored.name, stored.page, stored.check);
  return stored;
}

TEST(PageCheckTest, CheckAndHeaderAreTheGoldenBytes) {
  const Stored stored = GoldenPage();
  EXPECT_EQ(stored.check, 0x8712ad9007a4f2ceu);
  EXPECT_EQ(base::ToHex(base::AsBytes(&stored.header, 1)),
            "564b50310100030001000200400000000004000000000000000102030405060708090a0b0c0d0e0f"
            "5d839c1bc30f7674a589a5b05b7a98fdcef2a40790ad1287");
}

TEST(PageCheckTest, AWholePageUnderItsNameVerifies) {
  const Stored stored = GoldenPage();
  EXPECT_TRUE(VerifyPage(stored.header, stored.name, stored.check, stored.page).ok());
  const PageHeader empty = MakePageHeader(stored.name, {}, PageCheck(stored.name, {}));
  EXPECT_TRUE(VerifyPage(empty, stored.name, empty.check, {}).ok());
}

TEST(PageCheckTest, EveryFlippedBitOfTheHeaderIsFound) {
  const Stored stored = GoldenPage();
  for (size_t bit = 0; bit < 8 * sizeof(PageHeader); ++bit) {
    std::byte raw[sizeof(PageHeader)];
    std::memcpy(raw, &stored.header, sizeof(raw));
    raw[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    PageHeader flipped;
    std::memcpy(&flipped, raw, sizeof(raw));
    EXPECT_TRUE(absl::IsDataLoss(VerifyPage(flipped, stored.name, stored.check, stored.page)))
        << "bit " << bit;
  }
}

TEST(PageCheckTest, EveryFlippedBitOfThePageIsFound) {
  Stored stored = GoldenPage();
  for (size_t bit = 0; bit < 8 * stored.page.size(); ++bit) {
    const std::byte mask = static_cast<std::byte>(1 << (bit % 8));
    stored.page[bit / 8] ^= mask;
    EXPECT_TRUE(absl::IsDataLoss(VerifyPage(stored.header, stored.name, stored.check, stored.page)))
        << "bit " << bit;
    stored.page[bit / 8] ^= mask;
  }
}

TEST(PageCheckTest, EveryOtherNameIsNamedAndChangesTheCheck) {
  const Stored stored = GoldenPage();
  struct Change {
    const char* field;
    std::function<void(PageName&)> apply;
  };
  const Change changes[] = {{"space", [](PageName& n) { n.space[0] ^= std::byte{1}; }},
                            {"block", [](PageName& n) { n.block[15] ^= std::byte{128}; }},
                            {"group", [](PageName& n) { n.group ^= 1; }},
                            {"part", [](PageName& n) { n.part ^= 0x8000; }},
                            {"rung", [](PageName& n) { n.rung ^= 1; }},
                            {"tokens", [](PageName& n) { n.tokens ^= 0x80000000; }}};
  for (const Change& change : changes) {
    PageName other = stored.name;
    change.apply(other);
    const absl::Status status = VerifyPage(stored.header, other, stored.check, stored.page);
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_THAT(status.ToString(), HasSubstr(change.field));
    EXPECT_NE(PageCheck(other, stored.page), stored.check) << change.field;
  }
}

// The header keeps half of the space id; the other half is in the check.
TEST(PageCheckTest, ASpaceThatDiffersInItsSecondHalfIsFound) {
  const Stored stored = GoldenPage();
  PageName other = stored.name;
  other.space[31] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(VerifyPage(stored.header, other, stored.check, stored.page)));
}

TEST(PageCheckTest, AShorterOrStalePageIsFound) {
  const Stored stored = GoldenPage();
  EXPECT_TRUE(absl::IsDataLoss(
      VerifyPage(stored.header, stored.name, stored.check, std::span(stored.page).first(1023))));
  // Whole and well named, but not the page that the index knows.
  std::vector<std::byte> stale = stored.page;
  stale[5] ^= std::byte{1};
  const uint64_t stale_check = PageCheck(stored.name, stale);
  const PageHeader stale_header = MakePageHeader(stored.name, stale, stale_check);
  ASSERT_TRUE(VerifyPage(stale_header, stored.name, stale_check, stale).ok());
  EXPECT_TRUE(absl::IsDataLoss(VerifyPage(stale_header, stored.name, stored.check, stale)));
}

}  // namespace
}  // namespace prefixd::block
