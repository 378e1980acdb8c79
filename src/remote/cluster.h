// Which server has which key: Redis Cluster's slots (redis.io/docs/reference/cluster-spec), or one
// server that has them all.
//
// Thread-safe. A thread of its own learns the slots, anew every kRefresh and when it is asked to,
// probes servers that are given up, and looks at the servers' settings. Calls use what is known and
// never wait for it.
#pragma once
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "remote/node.h"
#include "remote/redis_options.h"

namespace prefixd::remote {

inline constexpr uint32_t kSlots = 16'384;
// CRC16 (XMODEM) of the key, or of what is in its first braces, modulo kSlots.
uint32_t SlotOf(std::string_view key);

class Cluster {
 public:
  static constexpr std::chrono::seconds kRefresh{30};
  static constexpr std::chrono::milliseconds kLeastBetween{100};  // two refreshes
  static constexpr std::chrono::minutes kSettings{5};

  Cluster(const RedisOptions* options, std::shared_ptr<TlsContext> tls);
  ~Cluster();  // stops the thread
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Null: it is not known which server has the slot, or none has.
  NodePtr NodeOf(std::string_view key) const PREFIXD_EXCLUDES(mutex_);
  // The server at an address that another one named.
  NodePtr NodeAt(const Endpoint& endpoint) PREFIXD_EXCLUDES(mutex_);
  void AskToRefresh() PREFIXD_EXCLUDES(mutex_);
  bool WaitKnown(base::Deadline deadline) const PREFIXD_EXCLUDES(mutex_);
  // What Status() of a store says of servers; `tls` and sums are the store's to fill.
  RemoteStatus Status() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Slots {
    std::vector<NodePtr> primaries;
    std::array<uint16_t, kSlots> of{};  // number in `primaries`, kNone
    bool cluster = false;
  };
  static constexpr uint16_t kNone = 0xffff;

  void Run();
  void Refresh();
  // Asks one server. Null: it does not say.
  std::shared_ptr<Slots> Learn(Node& from);
  std::shared_ptr<Slots> ReadSlots(const Reply& reply, const Endpoint& asked);
  void ProbeAll();
  void LookAtSettings();
  std::vector<NodePtr> Known() const PREFIXD_EXCLUDES(mutex_);  // primaries, then seeds

  const RedisOptions* const options_;
  const std::shared_ptr<TlsContext> tls_;
  mutable base::Mutex mutex_;
  mutable base::CondVar changed_;
  std::map<Endpoint, NodePtr> nodes_ PREFIXD_GUARDED_BY(mutex_);
  std::shared_ptr<const Slots> slots_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ PREFIXD_GUARDED_BY(mutex_);
  std::string said_ PREFIXD_GUARDED_BY(mutex_);  // the last failure that was logged
  bool wanted_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace prefixd::remote
