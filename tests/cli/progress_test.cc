// The line of a long command.
#include "client/cli/progress.h"

#include <sstream>

#include "gtest/gtest.h"

namespace prefixd::cli {
namespace {

class ProgressTest : public ::testing::Test {
 protected:
  // What a terminal shows after all that was written: each line over the one before.
  std::string Shown() const {
    const std::string text = out_.str();
    return text.substr(text.rfind('\r') + 1);
  }
  double now_s_ = 100;
  std::ostringstream out_;
};

TEST_F(ProgressTest, TheTimeLeftIsThatOfTheSpeedSoFar) {
  Progress progress(&out_, [this] { return now_s_; });
  progress.Show(10, 100, "1.0 GiB");
  EXPECT_EQ(Shown(), "[##------------------] 10.0 %  1.0 GiB") << "too early to tell";
  now_s_ += 14;
  progress.Show(25, 100, "2.5 GiB");
  EXPECT_EQ(Shown(), "[#####---------------] 25.0 %, 42 s left  2.5 GiB");
  now_s_ += 7 * 3600;
  progress.Show(50, 100, "");
  EXPECT_EQ(Shown(), "[##########----------] 50.0 %, 7 h 0 min left    ");
}

TEST_F(ProgressTest, AShorterLineLeavesNothingOfALongerOne) {
  Progress progress(&out_, [this] { return now_s_; });
  progress.Show(1, 2, "a long detail");
  progress.Show(2, 2, "end");
  EXPECT_EQ(Shown(), "[####################] 100.0 %  end         ");
}

TEST_F(ProgressTest, MoreThanAllIsAllAndNothingOfNothingIsNoTime) {
  Progress progress(&out_, [this] { return now_s_; });
  now_s_ += 5;
  progress.Show(300, 200, "");
  EXPECT_EQ(Shown(), "[####################] 100.0 %  ");
  progress.Show(0, 0, "");
  EXPECT_EQ(Shown().find("left"), std::string::npos);
}

TEST_F(ProgressTest, TheLineEndsWithTheCommandIfThereWasOne) {
  { const Progress unused(&out_); }
  EXPECT_EQ(out_.str(), "");
  { Progress(&out_).Show(1, 2, ""); }
  EXPECT_EQ(out_.str().back(), '\n');
  Progress(nullptr).Show(1, 2, "");
}

}  // namespace
}  // namespace prefixd::cli
