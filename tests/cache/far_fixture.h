// A host with the far tier. "Another host" is a cache that was opened anew, with nothing but the
// store in common.
#pragma once
#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "tests/cache/mixed_fixture.h"
#include "tests/support/fake_remote_store.h"

namespace prefixd::testing {

class FarTest : public CacheTest {
 protected:
  ~FarTest() override { cache_.reset(); }  // before its clock

  cache::Options WithRemote(const std::string& tenant = "t") {
    cache::Options options = RamOnly();
    options.clock = &clock_;
    options.remote.store = store_;
    const std::string secret(32, 'k');
    options.remote.keys = remote::DeriveKeys(std::as_bytes(std::span(secret)), tenant);
    return options;
  }
  void OpenHost(cache::Options options) {
    Open(std::move(options));
    space_ = OpenSpace(identity_);
  }
  void OpenHost() { OpenHost(WithRemote()); }
  cache::Options Roomy() {
    cache::Options options = WithRemote();
    options.ram_budget_bytes = uint64_t{512} << 20;
    return options;
  }
  void StoreAndWrite(const Tokens& tokens) {
    ASSERT_TRUE(Store(identity_, space_, tokens).ok());
    ASSERT_TRUE(cache_->WaitRemote(In(20000)));
  }
  uint32_t Bring(const Tokens& tokens, double rate = 0) {
    cache::Request request;
    request.space = space_;
    request.tokens = tokens;
    request.prefill_tokens_per_s = rate;
    const auto brought = cache_->Bring(session_, request);
    EXPECT_TRUE(brought.ok()) << brought.status();
    return brought.value_or(0);
  }

  // Hosts tell of their spaces behind their workers' backs.
  bool IsTold(uint64_t posts) {
    const base::Deadline deadline = In(10000);
    while (store_->posted < posts && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return store_->posted == posts;
  }
  // Loads go on when a hit was cut.
  bool Reaches(const std::string& counter, uint64_t value) {
    const base::Deadline deadline = In(10000);
    while (Counter(counter) < value && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return Counter(counter) == value;
  }

  base::FakeClock clock_;
  std::shared_ptr<FakeRemoteStore> store_ = std::make_shared<FakeRemoteStore>();
  block::SpaceIdentity identity_ = SmallIdentity();
  block::SpaceHandle space_;
  const Tokens tokens_ = RandomTokens(1, 100);
};

}  // namespace prefixd::testing
