#include "daemon/worker_lanes.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_posix.h"

namespace prefixd::daemon {
namespace {

constexpr uint64_t kLaneBytes = uint64_t{4} << 20;  // some pages on their way
constexpr uint64_t kMostLanes = 64;

}  // namespace

WorkerLanes::WorkerLanes(uint64_t message_bytes, MakeServer make)
    : message_bytes_(message_bytes),
      most_(std::clamp<uint64_t>(message_bytes / kLaneBytes, 1, kMostLanes)),
      make_(std::move(make)) {}

bool WorkerLanes::Open() {
  base::MutexLock lock(mutex_);
  open_ = AddLane() != nullptr;
  ShareMessages();
  return open_;
}

void WorkerLanes::Take(int fd) {
  const base::Peer peer = base::PeerOf(fd).value_or(base::Peer{});
  const Process process{.peer = peer, .name = base::NameOf(peer.pid)};
  base::MutexLock lock(mutex_);
  if (!open_) {
    ::close(fd);
    return;
  }
  grpc::AddInsecureChannelFromFd(LaneOf(process)->server.get(), fd);
}

WorkerLanes::Lane* WorkerLanes::LaneOf(const Process& process) {
  for (const auto& lane : lanes_) {
    if (std::ranges::count(lane->processes, process) > 0) return lane.get();
  }
  ForgetTheGone();
  const auto least = std::ranges::min_element(
      lanes_, {}, [](const std::unique_ptr<Lane>& lane) { return lane->processes.size(); });
  Lane* lane = least->get();
  if (!lane->processes.empty() && lanes_.size() < most_) {
    if (Lane* const more = AddLane(); more != nullptr) lane = more;
  }
  lane->processes.push_back(process);
  ShareMessages();
  return lane;
}

void WorkerLanes::ForgetTheGone() {
  for (const auto& lane : lanes_) {
    std::erase_if(lane->processes, [](const Process& process) {
      return base::LifeOf(process.name) == base::Life::kGone;
    });
  }
}

WorkerLanes::Lane* WorkerLanes::AddLane() {
  auto lane = std::make_unique<Lane>();
  lane->server = make_(lane->messages);
  if (lane->server == nullptr) return nullptr;
  lane->server->GetHealthCheckService()->SetServingStatus(serving_);
  lanes_.push_back(std::move(lane));
  return lanes_.back().get();
}

void WorkerLanes::ShareMessages() {
  const auto used = static_cast<uint64_t>(std::ranges::count_if(
      lanes_, [](const std::unique_ptr<Lane>& lane) { return !lane->processes.empty(); }));
  for (const auto& lane : lanes_) {
    lane->messages.Resize(message_bytes_ / std::max<uint64_t>(used, 1));
  }
}

void WorkerLanes::StopServing() {
  base::MutexLock lock(mutex_);
  serving_ = false;
  for (const auto& lane : lanes_) lane->server->GetHealthCheckService()->SetServingStatus(false);
}

void WorkerLanes::Shutdown(std::chrono::system_clock::time_point end) {
  std::vector<grpc::Server*> servers;
  {
    base::MutexLock lock(mutex_);
    if (!std::exchange(open_, false)) return;
    for (const auto& lane : lanes_) servers.push_back(lane->server.get());
  }
  // Calls that end may wait for others of their session: not under the lock.
  for (grpc::Server* server : servers) server->Shutdown(end);
  for (grpc::Server* server : servers) server->Wait();
}

}  // namespace prefixd::daemon
