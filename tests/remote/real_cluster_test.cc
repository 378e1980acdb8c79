// RedisStore on a real cluster: a primary that dies and slots that move, under load.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "remote/redis_store.h"
#include "remote/slots.h"
#include "tests/remote/redis_server.h"

namespace prefixd::remote {
namespace {

using testing::Bundle;
using testing::In;
using testing::Patiently;
using testing::RedisCluster;
using Outcome = FoundRecord::Outcome;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string Name(int number) { return "pd1:{name-" + std::to_string(number) + "}:0"; }

std::shared_ptr<RedisStore> Open(const RedisCluster& cluster) {
  RedisOptions options;
  options.seeds = cluster.seeds();
  options.seed = 1;
  return RedisStore::Open(std::move(options)).value();
}

// Threads that store, find and load bundles whose bytes their names tell.
class Traffic {
 public:
  static constexpr int kNames = 48;
  static constexpr auto kPatience = milliseconds(250);
  static constexpr auto kSlack = std::chrono::seconds(10);  // of a machine that does other things

  explicit Traffic(RedisStore* store) : store_(store) {
    for (int t = 0; t < 3; ++t) {
      threads_.emplace_back([this, t] {
        for (int i = t; !stop_; ++i) Turn(i % kNames, i / kNames % 3 == 0);
      });
    }
  }
  ~Traffic() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::atomic<int> calls{0}, loaded{0}, wrong{0}, late_returns{0}, failures{0};

 private:
  static constexpr size_t kSizes[] = {70'000, 30'000, 5};
  void Turn(int number, bool write) {
    const std::string name = Name(number);
    Bundle bundle({std::begin(kSizes), std::end(kSizes)}, static_cast<uint64_t>(number));
    const base::Deadline deadline = In(kPatience);
    if (write) {
      failures += !store_->Store(name, base::AsBytes(name), bundle.out(), deadline).ok();
    } else {
      const FoundRecord found = store_->Find(std::vector<std::string>{name}, deadline)[0];
      wrong += found.outcome == Outcome::kFound && found.record != name;
      const absl::Status status = store_->Load(name, bundle.in(), deadline);
      wrong += status.ok() && !bundle.arrived();
      wrong += status.code() == absl::StatusCode::kDataLoss;
      loaded += status.ok();
      failures += !status.ok() && status.code() != absl::StatusCode::kNotFound;
    }
    ++calls;
    late_returns += steady_clock::now() > deadline + kSlack;
  }

  RedisStore* const store_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

int PrimaryOfFirstSlots(RedisCluster& cluster, size_t of_any) {
  const auto slots = ReadSlots(cluster.server(of_any).Say({"CLUSTER", "SLOTS"}), "127.0.0.1");
  for (size_t i = 0; slots.ok() && i < cluster.size(); ++i) {
    for (const SlotRange& range : *slots) {
      if (range.first == 0 && range.primary == cluster.server(i).endpoint())
        return static_cast<int>(i);
    }
  }
  return -1;
}

std::string NameOfFirstThird() {
  for (int i = 0;; ++i) {
    if (SlotOf(Name(i)) < 5000) return Name(i);
  }
}

TEST(RealClusterTest, R2AKilledPrimaryIsReplacedAndNoWrongByteIsServed) {
  PREFIXD_NEEDS_REDIS();
  RedisCluster cluster(/*replicas=*/1);
  ASSERT_TRUE(cluster.WaitReady());
  const auto store = Open(cluster);
  ASSERT_TRUE(store->WaitKnown(Patiently()));
  EXPECT_TRUE(store->Status().cluster);
  EXPECT_EQ(store->Status().nodes.size(), 3u);
  Traffic traffic(store.get());
  const char* const asked = std::getenv("PREFIXD_KILLS");
  const int kills = asked == nullptr ? 2 : std::atoi(asked);
  double longest_s = 0;
  for (int i = 0; i < kills; ++i) {
    ASSERT_TRUE(RedisCluster::Wait([&] { return traffic.loaded > 50 * (i + 1); }));
    const int victim = PrimaryOfFirstSlots(cluster, 1);
    ASSERT_TRUE(victim == 0 || victim == 3) << victim;
    cluster.server(static_cast<size_t>(victim)).Kill();
    const auto killed = steady_clock::now();
    const Bundle bundle({10}, 1);
    ASSERT_TRUE(RedisCluster::Wait([&] {
      return store->Store(NameOfFirstThird() + "x", {}, bundle.out(), In(Traffic::kPatience)).ok();
    }));
    longest_s =
        std::max(longest_s, std::chrono::duration<double>(steady_clock::now() - killed).count());
    ASSERT_TRUE(cluster.server(static_cast<size_t>(victim)).Start());
    ASSERT_TRUE(RedisCluster::Wait([&] {
      return cluster.server(static_cast<size_t>(victim)).Info("master_link_status") == "up";
    }));
  }
  traffic.Stop();
  std::printf(
      "R2: %d kills, %d calls, %d loaded, %d failed in time, slots served again within %.2f s\n",
      kills, traffic.calls.load(), traffic.loaded.load(), traffic.failures.load(), longest_s);
  EXPECT_EQ(traffic.wrong, 0);
  EXPECT_EQ(traffic.late_returns, 0);
  EXPECT_GT(traffic.loaded, 0);
}

TEST(RealClusterTest, R2SlotsMoveUnderLoadAndNothingIsLostOrWrong) {
  PREFIXD_NEEDS_REDIS();
  RedisCluster cluster(/*replicas=*/0);
  ASSERT_TRUE(cluster.WaitReady());
  const auto store = Open(cluster);
  ASSERT_TRUE(store->WaitKnown(Patiently()));
  Traffic traffic(store.get());
  ASSERT_TRUE(RedisCluster::Wait([&] { return traffic.loaded > 100; }));
  const std::string ids[] = {cluster.IdOf(0), cluster.IdOf(1), cluster.IdOf(2)};
  for (int i = 0; i < Traffic::kNames; ++i) {
    ASSERT_TRUE(RedisCluster::Wait([&] { return cluster.Settled(); }));
    const std::string slot = std::to_string(SlotOf(Name(i)));
    const size_t from = SlotOf(Name(i)) * 3 / kSlots, to = (from + 1) % 3;
    testing::RedisServer &source = cluster.server(from), &target = cluster.server(to);
    ASSERT_EQ(target.Say({"CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]}).text, "OK");
    ASSERT_EQ(source.Say({"CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]}).text, "OK");
    // Calls meet a slot that is half here and half there.
    const int before = traffic.calls;
    ASSERT_TRUE(RedisCluster::Wait([&] { return traffic.calls > before + 5; }));
    for (;;) {
      const Reply keys = source.Say({"CLUSTER", "GETKEYSINSLOT", slot, "10"});
      if (keys.items.empty()) break;
      for (const Reply& key : keys.items) {
        source.Say({"MIGRATE", "127.0.0.1", std::to_string(target.endpoint().port), key.text, "0",
                    "5000"});
      }
    }
    for (size_t server : {to, from, 3 - from - to}) {
      ASSERT_EQ(cluster.server(server).Say({"CLUSTER", "SETSLOT", slot, "NODE", ids[to]}).text,
                "OK");
    }
  }
  const int loaded = traffic.loaded;
  ASSERT_TRUE(RedisCluster::Wait([&] { return traffic.loaded > loaded + 100; }));
  traffic.Stop();
  std::printf("R2: 48 slots moved, %d calls, %d loaded, %d failed\n", traffic.calls.load(),
              traffic.loaded.load(), traffic.failures.load());
  EXPECT_EQ(traffic.wrong, 0);
  EXPECT_EQ(traffic.late_returns, 0);
  // Servers may disagree for a moment about who has a slot.
  for (int i = 0; i < Traffic::kNames; ++i) {
    absl::StatusOr<std::vector<bool>> there;
    ASSERT_TRUE(RedisCluster::Wait([&] {
      there = store->Touch(std::vector<std::string>{Name(i)}, Patiently());
      return there.ok();
    })) << there.status();
    EXPECT_TRUE((*there)[0]) << i;
  }
}

TEST(RealClusterTest, ManyNamesAreFoundOverAllServersInOneCall) {
  PREFIXD_NEEDS_REDIS();
  RedisCluster cluster(/*replicas=*/0);
  ASSERT_TRUE(cluster.WaitReady());
  const auto store = Open(cluster);
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) {
    names.push_back(Name(i));
    if (i % 2 != 0) continue;
    ASSERT_TRUE(store->Store(names.back(), base::AsBytes(names.back()), {}, Patiently()).ok());
  }
  const auto found = store->Find(names, Patiently());
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(found[i].outcome, i % 2 == 0 ? Outcome::kFound : Outcome::kAbsent) << i;
    ASSERT_EQ(found[i].record, i % 2 == 0 ? names[i] : "");
  }
}

}  // namespace
}  // namespace prefixd::remote
