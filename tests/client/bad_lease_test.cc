// A lease whose pages come late, damaged or not at all: fewer tokens, and those are right.
#include <chrono>

#include "tests/client/packed_cache.h"
#include "tests/client/played_daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class BadLeaseTest : public testing::Test {
 protected:
  Lease Acquire() {
    client_.emplace(ClientOptions{.address = directory_.address()});
    space_ = client_->OpenSpace(spec_);
    EXPECT_TRUE(space_.ok()) << space_.status.message;
    return space_.value().Acquire(tokens_, {.load_deadline = milliseconds(60'000)});
  }

  TempDirectory directory_;
  PlayedDaemon daemon_{directory_.address()};
  std::optional<Client> client_;
  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(192, 1);
};

TEST_F(BadLeaseTest, ADamagedPageShortensEveryLayerToTheTokensBeforeIt) {
  daemon_.change_page = [](v1::PageBytes* page) {
    if (page->group() == 1 && page->first_token() == 64) (*page->mutable_data())[5] ^= 1;
    return true;
  };
  Lease lease = Acquire();
  EXPECT_EQ(lease.match().restorable_tokens, 192u);
  ASSERT_EQ(lease.WaitAll(), 64u);
  EXPECT_EQ(lease.restorable_tokens(), 64u);
  for (int layer = 0; layer < 3; ++layer) {
    const LayerSpec& shape = spec_.layers[static_cast<size_t>(layer)];
    Packed key(shape.formats[0].key, shape.kv_heads, shape.key_dim, 64);
    Packed value(shape.formats[0].value, shape.kv_heads, shape.value_dim, 64);
    ASSERT_TRUE(lease.Gather(layer, 0, 64, key.view(), value.view()).ok());
    const std::vector<std::byte> right(key.codes.size(),
                                       std::byte{static_cast<uint8_t>(1 + layer % 2 * 16)});
    EXPECT_EQ(key.codes, right) << layer;
    EXPECT_EQ(lease.Gather(layer, 64, 1, key.view(), value.view()).code,
              StatusCode::kFailedPrecondition);
    EXPECT_EQ(lease.block_table(layer).size(), 1u);
  }
}

TEST_F(BadLeaseTest, AWaitEndsAtItsOwnDeadlineAndTheLoadWithIt) {
  daemon_.hang_on_fetch = true;
  Lease lease = Acquire();
  const auto asked = steady_clock::now();
  EXPECT_EQ(lease.WaitAll(milliseconds(20)), 0u);
  EXPECT_EQ(lease.WaitAll(), 0u) << "for good";
  EXPECT_LT(steady_clock::now() - asked, milliseconds(30'000));
  daemon_.LetGo();
}

TEST_F(BadLeaseTest, AStreamThatBreaksOffLeavesWhatIsWhole) {
  daemon_.change_page = [](v1::PageBytes* page) {
    return page->group() == 0 || page->first_token() < 128;
  };
  Lease lease = Acquire();
  EXPECT_EQ(lease.WaitAll(), 128u);
  EXPECT_EQ(lease.block_table(1).size(), 2u);
}

}  // namespace
}  // namespace prefixd
