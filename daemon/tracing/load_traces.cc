#include "daemon/tracing/load_traces.h"

#include <algorithm>
#include <utility>

namespace prefixd::daemon {

void LoadTraces::Begin(block::LeaseId lease, std::vector<uint32_t> groups, TraceTime begin,
                       Span span) {
  Spans done;
  {
    const base::MutexLock lock(mutex_);
    if (loads_.size() == kMostLoads) loads_.pop_front();
    loads_.push_back(
        {.lease = lease, .groups = std::move(groups), .begin = begin, .span = std::move(span)});
    for (const Event& event : early_) {
      if (event.lease == lease && done.empty()) done = Apply(event);
    }
    under_way_ = loads_.size();
  }
  if (!done.empty()) take_(std::move(done));
}

void LoadTraces::Note(const cache::SessionEvent& event) {
  if (acquires_ == 0 && under_way_ == 0) return;
  Spans done;
  {
    const base::MutexLock lock(mutex_);
    const Event noted{.lease = event.lease,
                      .group = event.group,
                      .failed = event.kind == cache::SessionEvent::Kind::kLeaseFailed,
                      .at = std::chrono::steady_clock::now()};
    done = Apply(noted);
    if (acquires_ == 0) early_.clear();
    if (acquires_ > 0 && done.empty()) early_.push_back(noted);
    if (early_.size() > kMostEarly) early_.pop_front();
    under_way_ = loads_.size();
  }
  if (!done.empty()) take_(std::move(done));
}

Spans LoadTraces::Apply(const Event& event) {
  const auto load = std::ranges::find(loads_, event.lease, &Load::lease);
  if (load == loads_.end()) return {};
  std::erase(load->groups, event.group);
  if (!load->groups.empty() && !event.failed) return {};
  const auto took = std::max(event.at - load->begin, TraceTime::duration::zero());
  load->span.end_ns =
      load->span.begin_ns + std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  load->span.failed = event.failed;
  if (event.failed) load->span.error = "a page did not come: the lease is shorter";
  Spans done;
  done.push_back(std::move(load->span));
  loads_.erase(load);
  return done;
}

}  // namespace prefixd::daemon
