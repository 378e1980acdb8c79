#include "cached_pages.h"

#include <algorithm>

namespace prefixd::client {

void LoadProgress::Close(uint32_t group, uint32_t usable_tokens, base::Deadline asked) {
  if (closed_ || done_[group]) return;
  done_[group] = true;
  Shorten(usable_tokens);
  if (--open_ == 0 && usable_tokens_ == tokens_) {
    duration_ = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::steady_clock::now() - asked);
  }
}

void LoadProgress::Shorten(uint32_t usable_tokens) {
  if (all_or_nothing_ && usable_tokens < tokens_) usable_tokens = 0;
  usable_tokens_ = std::min(usable_tokens_, usable_tokens);
}

void LoadProgress::CloseAll() {
  if (open_ > 0) Shorten(0);
  done_.assign(done_.size(), true);
  open_ = 0;
  closed_ = true;
}

}  // namespace prefixd::client
