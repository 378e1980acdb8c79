// The servers, and which of them has what. One thread of its own learns that, asks servers that
// were given up whether they are back, and reads their settings; callers wait for none of it.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "os/wake.h"
#include "remote/converse.h"
#include "remote/node.h"
#include "remote/redis_options.h"
#include "remote/shares.h"
#include "remote/slots.h"

namespace prefixd::remote {

// Which server has which slot, as it was learned once. Constant.
struct Topology {
  bool cluster = false;                                          // else the only node has all slots
  std::vector<std::shared_ptr<Node>> nodes;                      // primaries, by address
  std::vector<int> node_of_slot = std::vector<int>(kSlots, -1);  // -1: nobody

  // Null: nobody has it.
  std::shared_ptr<Node> Of(uint16_t slot) const {
    return node_of_slot[slot] < 0 ? nullptr : nodes[static_cast<size_t>(node_of_slot[slot])];
  }
};

// Thread-safe.
class Cluster {
 public:
  struct Options {
    std::vector<Endpoint> seeds;  // at least one
    Login login;
    std::chrono::microseconds connect_timeout{1'000'000};  // of a connection and of a probe
    Shares::Most shares;
    const base::Clock* clock = nullptr;  // must outlive the cluster
    uint64_t seed = 0;                   // of the random parts of waiting times
    Newspaper log;                       // called on the cluster's thread; may be empty
  };
  static constexpr int64_t kRefreshUs = 100'000;           // least between two
  static constexpr int64_t kLongestRefreshUs = 2'000'000;  // between two that fail
  static constexpr int64_t kDownRefreshUs = 1'000'000;     // while a server is given up
  static constexpr int64_t kSettingsUs = 300'000'000;

  explicit Cluster(Options options);
  ~Cluster();

  // What is known. If nothing is: waits for the first answer until the deadline, unless the seeds
  // failed lately. Null: `why` says why.
  std::shared_ptr<const Topology> Get(base::Deadline deadline, std::string* why)
      PREFIXD_EXCLUDES(mutex_);
  // Waits until it is known which server has what. False: not before the deadline.
  bool WaitKnown(base::Deadline deadline) const PREFIXD_EXCLUDES(mutex_);
  // Says that what is known may be outdated, or a server that is given up may be back.
  void Doubt(bool topology) PREFIXD_EXCLUDES(mutex_);
  // The server at an address that another one told.
  std::shared_ptr<Node> At(const Endpoint& address) PREFIXD_EXCLUDES(mutex_);

  Shares& shares() { return shares_; }
  const Options& options() const { return options_; }
  int64_t now_us() const { return options_.clock->MonotonicMicros(); }
  // Without the bytes read and written.
  RemoteStatus Status() const PREFIXD_EXCLUDES(mutex_);

 private:
  void Loop() PREFIXD_EXCLUDES(mutex_);
  // Does what is due. Returns when the next is.
  int64_t Step() PREFIXD_EXCLUDES(mutex_);
  void Refresh() PREFIXD_EXCLUDES(mutex_);
  std::vector<Endpoint> WhomToAsk() PREFIXD_EXCLUDES(mutex_);
  void Learn(const Endpoint& from, const std::vector<Reply>& replies) PREFIXD_EXCLUDES(mutex_);
  void Adopt(bool cluster, const std::vector<SlotRange>& ranges) PREFIXD_EXCLUDES(mutex_);
  void Failed(const std::string& why) PREFIXD_EXCLUDES(mutex_);
  void Probe(const std::vector<std::shared_ptr<Node>>& nodes);
  void CheckSettings(const std::vector<std::shared_ptr<Node>>& nodes) PREFIXD_EXCLUDES(mutex_);
  void LogChanges(const std::vector<std::shared_ptr<Node>>& nodes);
  std::shared_ptr<Node> AtLocked(const Endpoint& address) PREFIXD_REQUIRES(mutex_);
  int64_t Jittered(int64_t us) {
    return us + std::uniform_int_distribution<int64_t>(0, us / 2)(random_);
  }
  base::Deadline Soon() const {
    return std::chrono::steady_clock::now() + options_.connect_timeout;
  }
  void Log(News news, const std::string& line) const {
    if (options_.log) options_.log(news, line);
  }

  const Options options_;
  Shares shares_;
  Resolver resolver_;
  const os::Wake stop_;  // set: the thread ends
  mutable base::Mutex mutex_;
  base::CondVar wake_;
  mutable base::CondVar known_;
  std::shared_ptr<const Topology> topology_ PREFIXD_GUARDED_BY(mutex_);
  std::map<Endpoint, std::shared_ptr<Node>> nodes_ PREFIXD_GUARDED_BY(mutex_);
  bool failed_ PREFIXD_GUARDED_BY(mutex_) = false;  // the last attempt to learn
  std::string why_ PREFIXD_GUARDED_BY(mutex_);
  bool doubted_ PREFIXD_GUARDED_BY(mutex_) = true;
  bool woken_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::vector<std::string>> warnings_ PREFIXD_GUARDED_BY(mutex_);
  std::string seeds_warning_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t next_seed_ PREFIXD_GUARDED_BY(mutex_);
  std::atomic<bool> stopped_{false};

  // The thread alone uses these.
  std::mt19937_64 random_;
  int64_t next_refresh_us_ = 0, refresh_wait_us_ = kRefreshUs, next_settings_us_ = 0;
  std::map<std::string, bool> logged_open_;
  std::thread thread_;
};

}  // namespace prefixd::remote
