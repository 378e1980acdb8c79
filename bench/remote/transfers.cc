// Load and Store of RedisStore, by one thread and by three, as prefixd's fetchers are. The server's
// own limit is what the loops of raw commands reach.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/page_store.h"
#include "bench/common/reference_loops.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/timing.h"
#include "bench/remote/bundles.h"
#include "bench/remote/raw_redis.h"
#include "bench/remote/redis_process.h"
#include "bench/remote/remote.h"

namespace prefixd::bench {
namespace {

constexpr size_t kThreads = 3;

// One way of moving a bundle. False: it failed.
struct Way {
  std::string name;
  std::function<bool(size_t thread, size_t bundle)> move;
};

// Moves all bundles, a share for each thread, in every way by turns. Returns times and CPU of this
// process by way.
MovedRounds MoveInTurns(Bench& bench, const std::vector<Way>& ways, size_t threads, size_t bundles,
                        uint64_t bytes, uint64_t rounds) {
  MovedRounds seen;
  seen.bytes.resize(ways.size());
  seen.samples.resize(ways.size());
  seen.cpu_us.resize(ways.size());
  for (uint64_t round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const size_t way = (i + round) % ways.size();
      std::atomic<bool> good{true};
      const auto work = [&](size_t thread) {
        for (size_t at = thread; at < bundles && good; at += threads) {
          if (!ways[way].move(thread, at)) good = false;
        }
      };
      const double cpu = OwnCpuMicros(), start = NowMicros();
      std::vector<std::thread> others;
      for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
      work(0);
      for (std::thread& other : others) other.join();
      // The first round finds cold memory: it does not count.
      if (round > 0) seen.Add(way, bytes, NowMicros() - start, OwnCpuMicros() - cpu);
      bench.Check(good, absl::StrCat(ways[way].name, " failed"));
    }
  }
  return seen;
}

class Transfers {
 public:
  // `where`: follows the name of every line.
  Transfers(Bench& bench, std::string where, const RedisProcess& redis, const LoopbackPeer& peer,
            std::shared_ptr<remote::RedisStore> store, uint64_t count, uint64_t rounds)
      : bench_(bench),
        where_(std::move(where)),
        redis_(redis),
        store_(std::move(store)),
        count_(count),
        rounds_(rounds),
        sealed_(count, remote::Seal::kAes256Gcm),
        checked_(count, remote::Seal::kChecks),
        page_bytes_(sealed_.page_bytes()) {
    for (size_t i = 0; i < kThreads; ++i) {
      raw_.push_back(peer.Connect());
      commands_.push_back(redis.Connect());
    }
  }

  // Stores everything, and compares what comes back.
  bool Prepare() {
    for (Bundles* const bundles : {&sealed_, &checked_}) {
      const absl::Status prepared = bundles->Prepare(*store_);
      if (!bench_.Check(prepared.ok(), prepared.ToString())) return false;
      for (size_t i = 0; i < count_; ++i) {
        const absl::Status loaded = bundles->Load(*store_, i, Place(0, i), true);
        if (!bench_.Check(loaded.ok(), loaded.ToString()) ||
            !bench_.Check(bundles->Matches(i, Place(0, i)), "other bytes came back")) {
          return false;
        }
      }
    }
    return true;
  }

  void Load(size_t threads) {
    const auto load = [this](const Bundles& bundles, bool open) {
      return [this, &bundles, open](size_t thread, size_t i) {
        return bundles.Load(*store_, i, Place(thread, i), open).ok();
      };
    };
    const std::vector<size_t> stripes = sealed_.StripeBytes();
    const std::vector<Way> ways = {
        {"load", load(checked_, false)},
        {"raw TCP",
         [this](size_t thread, size_t i) {
           return LoopbackPeer::ReceiveAll(*raw_[thread], Place(thread, i));
         }},
        {"raw HMGET",
         [this, &stripes](size_t thread, size_t i) {
           return RawLoad(*commands_[thread], sealed_.key(i), stripes, Room(thread, i));
         }},
        {"load and check", load(checked_, true)},
        {"load and unseal", load(sealed_, true)}};
    Report("load", ways, threads);
  }

  void Store(size_t threads) {
    const std::string fields = RawFields(sealed_.ready());
    const size_t stripes = sealed_.ready().stripes.size();
    const auto seal = [this](const Bundles& bundles) {
      return [this, &bundles](size_t, size_t i) { return bundles.SealAndStore(*store_, i).ok(); };
    };
    const std::vector<Way> ways = {
        {"store", [this](size_t, size_t i) { return sealed_.StoreReady(*store_, i).ok(); }},
        {"raw TCP",
         [this](size_t thread, size_t i) {
           return LoopbackPeer::SendAll(*raw_[thread], Place(thread, i));
         }},
        {"raw HSET",
         [this, &fields, stripes](size_t thread, size_t i) {
           return RawStore(*commands_[thread], sealed_.write_key(i), stripes, fields);
         }},
        {"check and store", seal(checked_)},
        {"seal and store", seal(sealed_)}};
    Report("store", ways, threads);
  }

 private:
  // Where a thread's bundle goes, and the same with room for what Redis puts between stripes.
  std::span<std::byte> Place(size_t thread, size_t bundle) const {
    return Room(thread, bundle).first(page_bytes_);
  }
  std::span<std::byte> Room(size_t thread, size_t bundle) const {
    const size_t place = thread * kPlaces + bundle % kPlaces;
    return {memory_.data() + place * kPlaceBytes, kPlaceBytes};
  }

  void Report(const std::string& what, const std::vector<Way>& ways, size_t threads) {
    const double server = CpuMicros(redis_.pid());
    const MovedRounds seen =
        MoveInTurns(bench_, ways, threads, count_, count_ * page_bytes_, rounds_);
    const double server_us = CpuMicros(redis_.pid()) - server;
    const std::string name =
        absl::StrCat(what, where_, ", ", threads, threads == 1 ? " thread" : " threads");
    for (size_t way = 0; way < ways.size(); ++way) {
      bench_.Add({absl::StrCat(name, ": ", ways[way].name),
                  {{"rate_bytes_per_s", seen.bytes_per_s(way)},
                   {"client_CPU_s_a_GB", seen.CpuSecondsPerGb(way)},
                   {"of_raw_TCP_ratio", seen.RateRatio(way, 1)}}});
    }
    // Four of five ways ask it for the same bytes, also in the round that does not count.
    const double asked =
        static_cast<double>(count_ * page_bytes_ * (ways.size() - 1) * (rounds_ + 1));
    bench_.Add({name + ": the server", {{"CPU_s_a_GB", server_us * 1e3 / asked}}});
    // Several connections beside several raw ones would measure that redis-server has one thread.
    if (threads == 1) JudgeBeside(name, ways, seen, 1, 0.6);
    JudgeBeside(name, ways, seen, 2, 0.9);
    JudgeCpu(name + ", not sealed", seen, 3, 0.35);
    JudgeCpu(name + ", sealed", seen, 4, 0.70);
  }

  void JudgeBeside(const std::string& name, const std::vector<Way>& ways, const MovedRounds& seen,
                   size_t way, double at_least) {
    JudgeRate(bench_, seen,
              {.name = absl::StrCat("R3 ", name, ", beside ", ways[way].name),
               .at_least = at_least,
               .reference = ways[way].name,
               .reference_side = way});
  }

  void JudgeCpu(const std::string& name, const MovedRounds& seen, size_t way, double at_most) {
    bench_.Judge({.name = "R3 " + name,
                  .ours = RateText(seen.bytes_per_s(way), 1e6),
                  .measure = "client",
                  .seen = seen.CpuSecondsPerGb(way),
                  .limit = at_most,
                  .unit = " CPU s/GB",
                  .runs = seen.cpu_us[way].size(),
                  .spread_percent = SpreadPercent(seen.cpu_us[way])});
  }

  static constexpr size_t kPlaces = 64;  // of a thread: more than caches hold
  static constexpr size_t kPlaceBytes = kMiB;

  Bench& bench_;
  const std::string where_;
  const RedisProcess& redis_;
  const std::shared_ptr<remote::RedisStore> store_;
  const size_t count_;
  const uint64_t rounds_;
  Bundles sealed_, checked_;
  const uint64_t page_bytes_;
  const HugeBytes memory_{kThreads * kPlaces * kPlaceBytes};
  std::vector<std::unique_ptr<LoopbackSocket>> raw_, commands_;
};

}  // namespace

void RemoteTransfers(Bench& bench, const std::string& where, const LoopbackPeer& peer) {
  const uint64_t count = bench.Parameter("bundles", 6, 120, 240);
  const uint64_t rounds = bench.Parameter("rounds", 1, 9, 15);
  const auto redis = RedisProcess::Start(bench.directory() + "/transfers", peer.place());
  if (!bench.Check(redis.ok(), redis.status().ToString())) return;
  auto store = (*redis)->OpenStore();
  if (!bench.Check(store.ok(), store.status().ToString())) return;
  Transfers transfers(bench, where, **redis, peer, *std::move(store), count, rounds);
  if (!transfers.Prepare()) return;
  for (const size_t threads : {size_t{1}, kThreads}) {
    if (bench.Wants("load")) transfers.Load(threads);
    if (bench.Wants("store")) transfers.Store(threads);
  }
}

}  // namespace prefixd::bench
