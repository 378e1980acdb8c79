#include "cache/store/dropper.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::seconds kPatience(10);  // for the files of one segment to go

}  // namespace

void Dropper::Add(const ssd::SegmentInfo& segment) {
  {
    base::MutexLock lock(mutex_);
    going_.push_back(segment);
  }
  wake_.NotifyAll();
}

std::vector<ssd::SegmentInfo> Dropper::Staying() const {
  // In this order: one that is removed in between is in neither.
  std::deque<ssd::SegmentInfo> going;
  {
    base::MutexLock lock(mutex_);
    going = going_;
  }
  std::vector<ssd::SegmentInfo> segments = context_->store->Segments();
  std::erase_if(segments, [&going](const ssd::SegmentInfo& segment) {
    return std::ranges::any_of(going, [&segment](const ssd::SegmentInfo& other) {
      return other.first_sequence == segment.first_sequence;
    });
  });
  return segments;
}

uint64_t Dropper::BytesGoing() const {
  base::MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const ssd::SegmentInfo& segment : going_) bytes += segment.file_bytes;
  return bytes;
}

uint64_t Dropper::ended() const {
  base::MutexLock lock(mutex_);
  return ended_;
}

bool Dropper::WaitBeyond(uint64_t seen) {
  if (!runs_) return ended() > seen || Step();
  const base::Deadline deadline = std::chrono::steady_clock::now() + kPatience;
  base::MutexLock lock(mutex_);
  while (ended_ == seen && !stopped_) {
    if (going_.empty() || !done_.WaitUntil(mutex_, deadline)) return false;
  }
  return !stopped_;
}

bool Dropper::Step() {
  base::MutexLock one(step_mutex_);
  ssd::SegmentInfo oldest;
  {
    base::MutexLock lock(mutex_);
    if (going_.empty()) return false;
    oldest = going_.front();
  }
  const absl::Status status = context_->store->DropSegment(oldest);
  if (!status.ok()) {
    ++failed_;
    context_->Log(LogLevel::kWarning, absl::StrCat("ssd: cannot remove the files of a segment: ",
                                                   std::string(status.message())));
  }
  context_->counters.Add(status.ok() ? "segments.dropped" : "segments.drop_errors");
  base::MutexLock lock(mutex_);
  going_.pop_front();
  ++ended_;
  done_.NotifyAll();
  return true;
}

void Dropper::Run() {
  runs_ = true;
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      while (going_.empty() && !stopped_) wake_.Wait(mutex_);
      if (stopped_) return;
    }
    Step();
  }
}

void Dropper::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  wake_.NotifyAll();
  done_.NotifyAll();
}

}  // namespace prefixd::cache
