#include "daemon/long_requests.h"

#include <memory>
#include <utility>

namespace prefixd::daemon {

void LongRequests::Post(uint64_t bytes, Work work) {
  base::MutexLock lock(mutex_);
  waiting_.push_back({.bytes = bytes, .work = std::move(work)});
  StartWhatFits();
}

void LongRequests::StartWhatFits() {
  while (!waiting_.empty() && bytes_ + waiting_.front().bytes <= most_bytes_) {
    bytes_ += waiting_.front().bytes;
    const auto request = std::make_shared<const Request>(std::move(waiting_.front()));
    waiting_.pop_front();
    threads_.Post([this, request] { Run(*request); });
  }
}

void LongRequests::Run(const Request& request) {
  request.work();
  base::MutexLock lock(mutex_);
  bytes_ -= request.bytes;
  StartWhatFits();
}

}  // namespace prefixd::daemon
