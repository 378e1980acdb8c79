#include "daemon/stream_deadline.h"

#include "base/mutex.h"
#include "daemon/call.h"

namespace prefixd::daemon {

struct StreamDeadline::Shared {
  base::Mutex mutex;
  grpc::ServerContextBase* context PREFIXD_GUARDED_BY(mutex) = nullptr;
};

StreamDeadline::StreamDeadline(grpc::ServerContextBase* context) {
  if (context->deadline() != std::chrono::system_clock::time_point::max()) return;
  shared_ = std::make_shared<Shared>();
  {
    base::MutexLock lock(shared_->mutex);
    shared_->context = context;
  }
  alarm_.Set(std::chrono::system_clock::now() + kDefaultDeadline, [shared = shared_](bool expired) {
    base::MutexLock lock(shared->mutex);
    if (expired && shared->context != nullptr) shared->context->TryCancel();
  });
}

StreamDeadline::~StreamDeadline() {
  if (shared_ == nullptr) return;
  base::MutexLock lock(shared_->mutex);
  shared_->context = nullptr;
}

}  // namespace prefixd::daemon
