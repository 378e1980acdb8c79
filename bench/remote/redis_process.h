// A redis-server of this machine as a child process, on a free port, without a disk.
//
// One thread. The destructor kills it.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "bench/remote/loopback.h"
#include "remote/redis_store.h"

namespace prefixd::bench {

// The path of redis-server; empty if there is none in PATH.
std::string FindRedisServer();

class RedisProcess {
 public:
  // Returns once it answers. NotFound: there is no redis-server in PATH. Internal: it does not come
  // up. `directory` exists.
  static absl::StatusOr<std::unique_ptr<RedisProcess>> Start(const std::string& directory,
                                                             const Place& place = {});
  ~RedisProcess();
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  pid_t pid() const { return pid_; }
  std::unique_ptr<LoopbackSocket> Connect() const {
    return std::make_unique<LoopbackSocket>(port_, place_.address);
  }
  void Pause() const;  // SIGSTOP: it keeps its connections and says nothing
  void Resume() const;

  // A store on it that knows the server. Unavailable if it does not get to know it.
  absl::StatusOr<std::shared_ptr<remote::RedisStore>> OpenStore() const;

 private:
  RedisProcess(pid_t pid, uint16_t port, Place place)
      : pid_(pid), port_(port), place_(std::move(place)) {}

  bool WaitAnswering();

  pid_t pid_;  // -1 once it has ended
  const uint16_t port_;
  const Place place_;
};

}  // namespace prefixd::bench
