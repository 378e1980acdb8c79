#include "base/nearest.h"

#include <array>

#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

const std::array<std::string, 5> kKnown = {"ram", "ssd", "ssd-floor", "ssd-write-rate", "arena"};

TEST(NearestTest, AMistypedNameFindsTheOneThatWasMeant) {
  EXPECT_EQ(Nearest("ramm", kKnown), "ram");
  EXPECT_EQ(Nearest("sdd", kKnown), "ssd");
  EXPECT_EQ(Nearest("ssd_floor", kKnown), "ssd-floor");
  EXPECT_EQ(Nearest("ssd-write-raet", kKnown), "ssd-write-rate");
  EXPECT_EQ(Nearest("floor", kKnown), "ssd-floor");
  EXPECT_EQ(DidYouMean("ramm", kKnown, "--"), "; did you mean --ram?");
}

TEST(NearestTest, ANameThatIsLikeNoneFindsNone) {
  EXPECT_EQ(Nearest("serve", kKnown), "");
  EXPECT_EQ(Nearest("x", kKnown), "");
  EXPECT_EQ(Nearest("", kKnown), "");
  EXPECT_EQ(DidYouMean("port-of-call", kKnown), "");
}

TEST(NearestTest, EditsAreCountedByLetter) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("ab", "ba"), 1u);
  EXPECT_EQ(EditDistance("same", "same"), 0u);
}

}  // namespace
}  // namespace prefixd::base
