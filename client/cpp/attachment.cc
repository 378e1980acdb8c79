#include "attachment.h"

#include <utility>

namespace prefixd::client {

Attachment::~Attachment() {
  base::MutexLock lock(mutex_);
  if (next_ && next_->resumed_lease()) release_(next_->session(), next_->resumed_lease());
}

void Attachment::ContinuedBy(std::shared_ptr<Attachment> next) {
  base::MutexLock lock(mutex_);
  next_ = std::move(next);
}

}  // namespace prefixd::client
