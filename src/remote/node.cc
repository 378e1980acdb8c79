#include "remote/node.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/status.h"

namespace prefixd::remote {

bool Gate::Enter(uint64_t bytes, base::Deadline deadline) {
  const base::MutexLock lock(mutex_);
  while (bytes_ > 0 && bytes_ + bytes > most_) {
    if (!left_.WaitUntil(mutex_, deadline)) return false;
  }
  bytes_ += bytes;
  return true;
}

void Gate::Leave(uint64_t bytes) {
  {
    const base::MutexLock lock(mutex_);
    bytes_ -= bytes;
  }
  left_.NotifyAll();
}

uint64_t Gate::bytes() const {
  const base::MutexLock lock(mutex_);
  return bytes_;
}

bool Breaker::open() const {
  const base::MutexLock lock(mutex_);
  return wait_us_ > 0;
}

bool Breaker::TakeProbe() {
  const base::MutexLock lock(mutex_);
  if (wait_us_ == 0 || clock_->MonotonicMicros() < next_try_us_) return false;
  next_try_us_ = clock_->MonotonicMicros() + wait_us_;
  return true;
}

void Breaker::Worked() {
  const base::MutexLock lock(mutex_);
  failures_ = 0;
  wait_us_ = 0;
}

void Breaker::Failed(const std::string& why) {
  const base::MutexLock lock(mutex_);
  why_ = why;
  failed_us_ = clock_->MonotonicMicros();
  if (++failures_ < kFailures) return;
  wait_us_ = wait_us_ == 0 ? kFirstUs : std::min(2 * wait_us_, kLongestUs);
  random_ ^= random_ << 13;  // xorshift64
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  const auto jitter = static_cast<int64_t>(random_ % static_cast<uint64_t>(wait_us_ / 4 + 1));
  next_try_us_ = failed_us_ + wait_us_ - jitter;
}

void Breaker::Describe(NodeStatus* status) const {
  const base::MutexLock lock(mutex_);
  status->open = wait_us_ > 0;
  status->why = why_;
  status->failed_us = failed_us_;
  status->next_try_us = next_try_us_;
}

Node::Node(Endpoint endpoint, const RedisOptions* options, std::shared_ptr<TlsContext> tls)
    : breaker(options->clock, options->seed ^ std::hash<std::string>()(TextOf(endpoint))),
      gate(options->node_bytes),
      endpoint_(std::move(endpoint)),
      options_(options),
      tls_(std::move(tls)) {}

absl::StatusOr<std::unique_ptr<Connection>> Node::Take(base::Deadline deadline) {
  for (;;) {
    std::unique_ptr<Connection> idle;
    {
      const base::MutexLock lock(mutex_);
      if (idle_.empty()) break;
      idle = std::move(idle_.back());
      idle_.pop_back();
    }
    if (idle->stale()) continue;
    idle->SetDeadline(deadline);
    return idle;
  }
  return Connection::Open(
      endpoint_, *options_, tls_,
      std::min(deadline, std::chrono::steady_clock::now() + options_->connect_patience));
}

void Node::GiveBack(std::unique_ptr<Connection> connection) {
  const base::MutexLock lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

void Node::Probe() {
  if (!breaker.TakeProbe()) return;
  {
    const base::MutexLock lock(mutex_);
    idle_.clear();
  }
  const base::Deadline until = std::chrono::steady_clock::now() + options_->connect_patience;
  absl::StatusOr<std::unique_ptr<Connection>> connection = Take(until);
  absl::Status status = connection.status();
  if (status.ok()) {
    (*connection)->SetDeadline(until);
    status = (*connection)->Ask(Command(1).Add("PING")).status();
  }
  if (!status.ok()) return breaker.Failed(std::string(status.message()));
  breaker.Worked();
  GiveBack(*std::move(connection));
}

NodeStatus Node::Status() const {
  NodeStatus status{.address = TextOf(endpoint_), .why = {}};
  breaker.Describe(&status);
  status.in_flight_bytes = gate.bytes();
  return status;
}

}  // namespace prefixd::remote
