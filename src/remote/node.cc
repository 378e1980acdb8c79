#include "remote/node.h"

#include <utility>

namespace prefixd::remote {

std::unique_ptr<Connection> Node::Take() {
  for (;;) {
    std::unique_ptr<Connection> connection;
    {
      const base::MutexLock lock(mutex_);
      if (idle_.empty()) break;
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    if (connection->StillGood()) return connection;
  }
  return std::make_unique<Connection>(address_, *login_, resolver_);
}

void Node::Give(std::unique_ptr<Connection> connection) {
  const base::MutexLock lock(mutex_);
  if (!open_ && idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

void Node::Succeeded() {
  const base::MutexLock lock(mutex_);
  breaker_.Succeeded();
}

void Node::Failed(const std::string& why) {
  const base::MutexLock lock(mutex_);
  breaker_.Failed(why);
  Note();
}

bool Node::TakeProbe() {
  const base::MutexLock lock(mutex_);
  return breaker_.TakeProbe();
}

void Node::Probed(bool well, const std::string& why) {
  const base::MutexLock lock(mutex_);
  breaker_.Probed(well, why);
  Note();
}

int64_t Node::next_try_us() const {
  const base::MutexLock lock(mutex_);
  return breaker_.next_try_us();
}

NodeStatus Node::Status() const {
  const base::MutexLock lock(mutex_);
  return {.address = TextOf(address_),
          .open = breaker_.open(),
          .why = breaker_.why(),
          .failed_us = breaker_.failed_us(),
          .next_try_us = breaker_.open() ? breaker_.next_try_us() : 0};
}

// Connections of a server that is given up are closed.
void Node::Note() {
  open_ = breaker_.open();
  if (open_) idle_.clear();
}

}  // namespace prefixd::remote
