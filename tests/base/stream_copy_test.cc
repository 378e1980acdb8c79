#include "base/stream_copy.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

constexpr std::byte kUntouched{0xee};

class StreamCopyTest : public testing::Test {
 protected:
  StreamCopyTest() : from_(9000), to_(9000) {
    for (size_t i = 0; i < from_.size(); ++i) from_[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  }
  std::byte* Line(size_t shift) {
    std::fill(to_.begin(), to_.end(), kUntouched);
    std::byte* line = to_.data() + kLineBytes;
    while (!IsLine(line)) ++line;
    return line + shift;
  }
  // `bytes` of from_ from `shift` on stand at `at`, and nothing else was written.
  bool Holds(const std::byte* at, size_t shift, size_t bytes) const {
    for (const std::byte& byte : to_) {
      const bool inside = &byte >= at && &byte < at + bytes;
      if (byte != (inside ? from_[shift + static_cast<size_t>(&byte - at)] : kUntouched)) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::byte> from_, to_;
};

TEST_F(StreamCopyTest, ARunIsCopiedBetweenAnyAddresses) {
  for (const size_t bytes : {0u, 1u, 511u, 512u, 513u, 575u, 576u, 639u, 4096u, 8191u}) {
    for (const size_t to_shift : {0u, 1u, 16u, 63u}) {
      for (const size_t from_shift : {0u, 1u, 63u}) {
        std::byte* to = Line(to_shift);
        StreamRun(to, from_.data() + from_shift, bytes);
        StreamFence();
        EXPECT_TRUE(Holds(to, from_shift, bytes)) << bytes << " " << to_shift << " " << from_shift;
      }
    }
  }
}

TEST_F(StreamCopyTest, LinesAreCopiedWithWhatIsBehindThem) {
  for (const size_t bytes : {0u, 1u, 63u, 64u, 65u, 127u, 4096u, 4100u}) {
    for (const size_t from_shift : {0u, 1u, 63u}) {
      std::byte* to = Line(0);
      StreamLines(to, from_.data() + from_shift, bytes);
      StreamFence();
      EXPECT_TRUE(Holds(to, from_shift, bytes)) << bytes << " " << from_shift;
    }
  }
}

}  // namespace
}  // namespace prefixd::base
