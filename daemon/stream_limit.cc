#include "daemon/stream_limit.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/mutex.h"
#include "daemon/call.h"
#include "grpc/grpc.h"

namespace prefixd::daemon {

void StreamAlarm::Arm(std::chrono::milliseconds in, std::function<void()> ring) {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(std::chrono::system_clock::now() + in, [ring = std::move(ring)](bool expired) {
    if (expired) ring();
  });
}

// TryCancel would say CANCELLED. While a message waits to be read, no status can be sent behind it;
// this one goes in the message's place.
void EndStream(grpc::ServerContextBase* context, const grpc::Status& status) {
  grpc_call_cancel_with_status(context->c_call(),
                               static_cast<grpc_status_code>(status.error_code()),
                               status.error_message().c_str(), nullptr);
}

struct StreamLimit::Shared {
  base::Mutex mutex;
  grpc::ServerContextBase* context PREFIXD_GUARDED_BY(mutex) = nullptr;
};

StreamLimit::StreamLimit(grpc::ServerContextBase* context) : shared_(std::make_shared<Shared>()) {
  {
    base::MutexLock lock(shared_->mutex);
    shared_->context = context;
  }
  const auto in = std::chrono::ceil<std::chrono::milliseconds>(DeadlineOf(*context, kMaxStream) -
                                                               std::chrono::steady_clock::now());
  alarm_.Arm(in, [shared = shared_, in] {
    base::MutexLock lock(shared->mutex);
    if (shared->context == nullptr) return;
    EndStream(shared->context,
              {grpc::StatusCode::DEADLINE_EXCEEDED,
               absl::StrCat("prefixd: a stream may last ", in.count() / 1000, " s")});
  });
}

StreamLimit::~StreamLimit() {
  base::MutexLock lock(shared_->mutex);
  shared_->context = nullptr;
}

}  // namespace prefixd::daemon
