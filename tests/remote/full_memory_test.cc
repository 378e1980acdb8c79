// R8: what hosts have on its way does not push out what a server stores.
//
// Eight hosts, each with 64 MiB on its way at most and 4 MiB from one server, read all they may and
// stand still now and then, so that answers lie in the server's buffers. Here they read from one
// server with 160 MiB, as from one of sixteen: a sixteenth of the whole. PREFIXD_R8_SERVERS=16 is
// the whole: 512 MiB on their way from a cluster of 2.5 GiB.
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

#include "remote/redis_store.h"
#include "tests/remote/redis_server.h"

namespace prefixd::remote {
namespace {

using testing::Bundle;
using testing::Patiently;

constexpr size_t kHosts = 8;
constexpr size_t kMostOfHost = size_t{4} << 20;  // on its way from one server
constexpr size_t kServerBytes = size_t{160} << 20;
constexpr size_t kConnections = size_t{4} << 20;  // what these take beside
constexpr int kRounds = 20;                       // of standing still
const std::vector<size_t> kStripes(16, kStripeBytes);

std::string Name(size_t number) { return "pd1:{" + std::to_string(number) + "}:0"; }

uint64_t Number(const testing::RedisServer& server, const std::string& name) {
  const std::string text = server.Info(name);
  return text.empty() ? 0 : std::stoull(text);
}

// What a host counts, in memory that it shares with the test.
struct Counts {
  std::atomic<uint64_t> loads, gone, wrong;
};

// A process that loads the bundles 0 to `bundles` - 1, as many at a time as it can, until it is
// killed.
class Host {
 public:
  Host(const std::vector<Endpoint>& seeds, size_t bundles, size_t threads, Counts* counts)
      : pid_(fork()) {
    if (pid_ == 0) Run(seeds, bundles, threads, counts);
  }
  ~Host() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void StandStill() {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void GoOn() { kill(pid_, SIGCONT); }

 private:
  [[noreturn]] static void Run(const std::vector<Endpoint>& seeds, size_t bundles, size_t threads,
                               Counts* counts) {
    RedisOptions options;
    options.seeds = seeds;
    const auto store = RedisStore::Open(options).value();
    store->WaitKnown(Patiently());
    std::vector<std::thread> all;
    for (size_t i = 0; i < threads; ++i) {
      all.emplace_back([&, i] {
        Bundle bundle(kStripes, 1);
        for (size_t number = i * 7;; number = (number + 5) % bundles) {
          const absl::Status loaded = store->Load(Name(number % bundles), bundle.in(), Patiently());
          if (loaded.ok()) ++counts->loads;
          if (absl::IsNotFound(loaded)) ++counts->gone;
          if (loaded.ok() && !bundle.arrived()) ++counts->wrong;
        }
      });
    }
    for (std::thread& thread : all) thread.join();
    _exit(0);
  }

  const pid_t pid_;
};

class Servers {
 public:
  explicit Servers(size_t count)
      : cluster_({.primaries = count,
                  .arguments = {"--maxmemory", std::to_string(kServerBytes), "--maxmemory-policy",
                                "allkeys-lru", "--maxmemory-clients", "50%"}}) {}
  bool Ready() { return cluster_.WaitReady(); }
  std::vector<Endpoint> seeds() const { return cluster_.seeds(); }
  uint64_t Sum(const std::string& name) {
    uint64_t sum = 0;
    for (size_t i = 0; i < cluster_.size(); ++i) sum += Number(cluster_.server(i), name);
    return sum;
  }
  // Whether each server has room for what the hosts may have on its way and one bundle more.
  bool HaveRoom() {
    for (size_t i = 0; i < cluster_.size(); ++i) {
      const uint64_t used = Number(cluster_.server(i), "used_memory");
      if (used + kMostOfHost * (kHosts + 1) + kConnections > kServerBytes) return false;
    }
    return true;
  }

 private:
  testing::RedisCluster cluster_;
};

TEST(FullMemoryTest, R8WhatEightHostsHaveOnItsWayPushesNoKeyOut) {
  PREFIXD_NEEDS_REDIS();
  const char* const said = std::getenv("PREFIXD_R8_SERVERS");
  const size_t count = said == nullptr ? 1 : std::stoul(said);
  Servers servers(count);
  ASSERT_TRUE(servers.Ready());
  size_t bundles = 0;
  {
    RedisOptions options;
    options.seeds = servers.seeds();
    const auto store = RedisStore::Open(options).value();
    Bundle bundle(kStripes, 1);
    for (; servers.HaveRoom(); ++bundles) {
      ASSERT_TRUE(store->Store(Name(bundles), {}, bundle.out(), Patiently()).ok());
    }
  }
  ASSERT_GT(bundles, 10 * count);
  auto* const counts = static_cast<Counts*>(
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(counts, MAP_FAILED);
  uint64_t most_in_buffers = 0;
  {
    std::vector<std::unique_ptr<Host>> hosts;
    for (size_t i = 0; i < kHosts; ++i) {
      hosts.push_back(std::make_unique<Host>(servers.seeds(), bundles, 4 * count, counts));
    }
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t goal = counts->loads + kHosts;
      ASSERT_TRUE(testing::RedisCluster::Wait([&] { return counts->loads >= goal; }));
      for (const auto& host : hosts) host->StandStill();
      for (int look = 0; look < 10; ++look) {  // the server writes what it can, and keeps the rest
        most_in_buffers = std::max(most_in_buffers, servers.Sum("mem_clients_normal"));
      }
      for (const auto& host : hosts) host->GoOn();
    }
  }
  EXPECT_EQ(servers.Sum("evicted_keys"), 0u);
  EXPECT_EQ(servers.Sum("evicted_clients"), 0u);
  EXPECT_EQ(counts->gone, 0u);
  EXPECT_EQ(counts->wrong, 0u);
  EXPECT_LE(most_in_buffers, count * (kHosts * kMostOfHost + kConnections));
  std::cerr << "R8: " << bundles << " bundles of 4 MiB on " << count << " servers, "
            << counts->loads << " loads by " << kHosts << " hosts, at most " << most_in_buffers
            << " bytes in the servers' buffers, " << servers.Sum("evicted_keys")
            << " keys evicted\n";
  munmap(counts, sizeof(Counts));
}

}  // namespace
}  // namespace prefixd::remote
