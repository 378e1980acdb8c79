// The raw loops that the shared tier's client is held against move the same bytes as it does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/remote/bundles.h"
#include "bench/remote/loopback.h"
#include "bench/remote/raw_redis.h"
#include "bench/remote/redis_process.h"
#include "bench/remote/veth.h"

namespace prefixd::bench {
namespace {

base::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(10); }

TEST(RawRedisTest, AnAnswerHasTheBytesOfItsStripesAndOfWhatStandsBetweenThem) {
  EXPECT_EQ(RawAnswerBytes({5, 100}),
            std::string("*2\r\n$5\r\n12345\r\n$100\r\n\r\n").size() + 100);
}

TEST(LoopbackPeerTest, BytesGoBothWays) {
  const auto peer = LoopbackPeer::Start((3 << 20) + 5);
  ASSERT_NE(peer, nullptr);
  const std::unique_ptr<LoopbackSocket> connection = peer->Connect();
  const LoopbackSocket& socket = *connection;
  std::vector<std::byte> bytes((5 << 20) + 7);  // more than the peer's memory, and no whole piece
  EXPECT_TRUE(LoopbackPeer::ReceiveAll(socket, bytes));
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{1}),
            static_cast<ptrdiff_t>(bytes.size()));
  EXPECT_TRUE(LoopbackPeer::SendAll(socket, bytes));
  EXPECT_FALSE(LoopbackSocket(FreePort()).Answers());
}

TEST(VethTest, APeerInAnotherNamespaceSendsItsBytes) {
  const std::string log = ::testing::TempDir() + "/veth.log";
  const auto veth = Veth::Make(log);
  if (!veth.ok()) GTEST_SKIP() << veth.status();
  const auto peer = LoopbackPeer::Start(1 << 20, (*veth)->place());
  ASSERT_NE(peer, nullptr);
  std::vector<std::byte> bytes(1 << 20);
  EXPECT_TRUE(LoopbackPeer::ReceiveAll(*peer->Connect(), bytes));
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{1}), 1 << 20);
}

class RemoteBenchTest : public ::testing::TestWithParam<remote::Seal> {
 protected:
  void SetUp() override {
    if (FindRedisServer().empty()) GTEST_SKIP() << "redis-server is not in PATH";
    folder_ = std::filesystem::temp_directory_path().string() + "/remote-bench-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    auto redis = RedisProcess::Start(folder_);
    ASSERT_TRUE(redis.ok()) << redis.status();
    redis_ = *std::move(redis);
    auto store = redis_->OpenStore();
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void TearDown() override {
    store_ = nullptr;
    redis_ = nullptr;
    std::filesystem::remove_all(folder_);
  }

  std::string folder_;
  std::unique_ptr<RedisProcess> redis_;
  std::shared_ptr<remote::RedisStore> store_;
};

TEST_P(RemoteBenchTest, WhatTheClientStoredTheRawLoopReads) {
  Bundles bundles(2, GetParam());
  ASSERT_TRUE(bundles.Prepare(*store_).ok());
  std::vector<std::byte> pages(bundles.page_bytes());
  ASSERT_TRUE(bundles.Load(*store_, 1, pages, true).ok());
  EXPECT_TRUE(bundles.Matches(1, pages));
  EXPECT_FALSE(bundles.Matches(0, pages));
  const std::unique_ptr<LoopbackSocket> connection = redis_->Connect();
  const LoopbackSocket& socket = *connection;
  std::vector<std::byte> answer(RawAnswerBytes(bundles.StripeBytes()));
  ASSERT_TRUE(RawLoad(socket, bundles.key(0), bundles.StripeBytes(), answer));
  const auto stripe = bundles.ready().stripes.back();
  if (GetParam() == remote::Seal::kChecks) {
    EXPECT_TRUE(std::equal(stripe.begin(), stripe.end(),
                           answer.end() - 2 - static_cast<ptrdiff_t>(stripe.size())));
  }
  EXPECT_EQ(answer.back(), std::byte{'\n'});
  EXPECT_TRUE(socket.Answers()) << "something of the answer was not read";
}

TEST_P(RemoteBenchTest, WhatTheRawLoopStoredTheClientReads) {
  Bundles bundles(1, GetParam());
  ASSERT_TRUE(bundles.Prepare(*store_).ok());
  const std::unique_ptr<LoopbackSocket> connection = redis_->Connect();
  const LoopbackSocket& socket = *connection;
  ASSERT_TRUE(RawStore(socket, "raw", bundles.ready().stripes.size(), RawFields(bundles.ready())));
  const auto found = store_->Find(std::vector<std::string>{"raw"}, Soon());
  EXPECT_EQ(found[0].record, bundles.ready().record);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<remote::Runs> stripes;
  for (const size_t length : bundles.StripeBytes()) bytes.emplace_back(length);
  for (std::vector<std::byte>& stripe : bytes) stripes.push_back({stripe});
  EXPECT_TRUE(store_->Load("raw", stripes, Soon()).ok());
  EXPECT_TRUE(std::ranges::equal(bytes.back(), bundles.ready().stripes.back()));
  ASSERT_TRUE(bundles.StoreReady(*store_, 0).ok());
  ASSERT_TRUE(bundles.SealAndStore(*store_, 0).ok());
  std::vector<std::byte> pages(bundles.page_bytes());
  EXPECT_TRUE(bundles.Load(*store_, 0, pages, true).ok()) << "storing changed what is loaded";
}

INSTANTIATE_TEST_SUITE_P(Seals, RemoteBenchTest,
                         ::testing::Values(remote::Seal::kAes256Gcm, remote::Seal::kChecks),
                         [](const auto& seal) {
                           return seal.param == remote::Seal::kChecks ? "Checks" : "Sealed";
                         });

}  // namespace
}  // namespace prefixd::bench
