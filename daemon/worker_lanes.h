// The gRPC servers of workers: a process has one to itself, its lane. gRPC cancels calls when it
// holds more of messages than it may, whosever they are: with a lane each, who sends too much loses
// its own calls and nobody else's.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "grpcpp/resource_quota.h"
#include "grpcpp/server.h"

#include "base/mutex.h"
#include "base/peer.h"
#include "base/process.h"

namespace prefixd::daemon {

// Thread-safe.
class WorkerLanes {
 public:
  // A started server of this quota that listens nowhere; nullptr: gRPC refused.
  using MakeServer = std::function<std::unique_ptr<grpc::Server>(const grpc::ResourceQuota&)>;

  // All lanes together may hold `message_bytes` of messages on their way in, in equal parts for
  // those in use. There are as many as can have 4 MiB, at most 64: further processes share them.
  WorkerLanes(uint64_t message_bytes, MakeServer make);

  // The first one. False: gRPC refused.
  bool Open() PREFIXD_EXCLUDES(mutex_);
  // Owns `fd`, a connected unix socket.
  void Take(int fd) PREFIXD_EXCLUDES(mutex_);
  void StopServing() PREFIXD_EXCLUDES(mutex_);  // health says NOT_SERVING
  // Nothing is taken any more; calls in flight get until `end`.
  void Shutdown(std::chrono::system_clock::time_point end) PREFIXD_EXCLUDES(mutex_);

 private:
  struct Process {
    base::Peer peer;
    base::ProcessName name;  // nobody where the pid is not seen from here
    bool operator==(const Process&) const = default;
  };
  struct Lane {
    grpc::ResourceQuota messages{"prefixd"};
    std::unique_ptr<grpc::Server> server;
    std::vector<Process> processes;
  };

  Lane* LaneOf(const Process& process) PREFIXD_REQUIRES(mutex_);
  void ForgetTheGone() PREFIXD_REQUIRES(mutex_);
  Lane* AddLane() PREFIXD_REQUIRES(mutex_);
  void ShareMessages() PREFIXD_REQUIRES(mutex_);

  const uint64_t message_bytes_;
  const size_t most_;
  const MakeServer make_;
  base::Mutex mutex_;
  bool serving_ PREFIXD_GUARDED_BY(mutex_) = true;
  bool open_ PREFIXD_GUARDED_BY(mutex_) = false;
  // Never fewer: connections of processes that are gone may be on their way out.
  std::vector<std::unique_ptr<Lane>> lanes_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::daemon
