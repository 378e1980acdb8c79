#include "page_load.h"

#include <algorithm>
#include <utility>

namespace prefixd::client {

PageLoad::PageLoad(std::shared_ptr<Connection> connection, std::shared_ptr<const SpaceState> space,
                   LoadPlan plan)
    : connection_(std::move(connection)),
      space_(std::move(space)),
      plan_(std::move(plan)),
      done_(plan_.rungs.size(), false),
      open_groups_(plan_.rungs.size()),
      usable_tokens_(plan_.tokens) {
  for (size_t group = 0; group < plan_.rungs.size(); ++group) {
    receivers_.emplace_back(space_->groups()[group], plan_.block_tokens, plan_.tokens,
                            plan_.rungs[group]);
  }
}

void PageLoad::Run() {
  while (FetchOnce()) {
  }
  base::MutexLock lock(mutex_);
  for (uint32_t group = 0; group < done_.size(); ++group) {
    CloseGroup(group, receivers_[group].tokens());  // of a stream that broke
  }
}

void PageLoad::Cancel() {
  base::MutexLock lock(mutex_);
  if (fetching_with_ != nullptr) fetching_with_->TryCancel();
  CloseAll();
}

uint32_t PageLoad::Wait(uint32_t group) {
  base::MutexLock lock(mutex_);
  while (!done_[group]) {
    // The stream ends at the deadline by itself; a load that never got a thread ends here.
    if (!changed_.WaitUntil(mutex_, plan_.deadline) && !done_[group]) CloseAll();
  }
  return usable_tokens_;
}

uint32_t PageLoad::usable_tokens() const {
  base::MutexLock lock(mutex_);
  return usable_tokens_;
}

std::chrono::microseconds PageLoad::duration() const {
  base::MutexLock lock(mutex_);
  return duration_;
}

std::vector<uint32_t> PageLoad::OpenGroups() const {
  base::MutexLock lock(mutex_);
  std::vector<uint32_t> open;
  for (uint32_t group = 0; group < done_.size(); ++group) {
    if (!done_[group]) open.push_back(group);
  }
  return open;
}

bool PageLoad::FetchOnce() {
  const std::vector<uint32_t> groups = OpenGroups();
  if (groups.empty()) return false;
  v1::FetchRequest request;
  request.set_session(plan_.session.id);
  request.set_lease(plan_.lease.value);
  request.mutable_groups()->Add(groups.begin(), groups.end());
  grpc::ClientContext context;
  context.set_deadline(WallClock(plan_.deadline));
  {
    base::MutexLock lock(mutex_);
    if (closed_) return false;
    for (uint32_t group : groups) receivers_[group].Reset();
    fetching_with_ = &context;
  }
  const auto stream = connection_->stub().Fetch(&context, request);
  bool wanted = true;
  for (v1::FetchChunk chunk; stream->Read(&chunk);) {  // to the end: Finish() waits for unread ones
    if (!wanted || OnChunk(chunk)) continue;
    wanted = false;
    context.TryCancel();
  }
  stream->Finish();
  base::MutexLock lock(mutex_);
  fetching_with_ = nullptr;
  // Every further stream closes a group at least, so this ends.
  return usable_tokens_ > 0 && open_groups_ > 0 && open_groups_ < groups.size();
}

bool PageLoad::OnChunk(const v1::FetchChunk& chunk) {
  const uint32_t group = chunk.has_page() ? chunk.page().group() : chunk.ready().group();
  uint32_t limit = 0;
  {
    base::MutexLock lock(mutex_);
    if (closed_ || group >= done_.size() || done_[group]) return false;
    limit = usable_tokens_;
  }
  if (chunk.has_page()) {
    const absl::Status status = receivers_[group].Take(chunk.page(), limit);
    if (status.ok()) return true;
    base::MutexLock lock(mutex_);
    CloseGroup(group, receivers_[group].tokens());
    return false;
  }
  base::MutexLock lock(mutex_);
  CloseGroup(group, std::min(chunk.ready().usable_tokens(), receivers_[group].tokens()));
  return true;
}

void PageLoad::CloseGroup(uint32_t group, uint32_t usable_tokens) {
  if (closed_ || done_[group]) return;
  done_[group] = true;
  usable_tokens_ = std::min(usable_tokens_, usable_tokens);
  if (--open_groups_ == 0 && usable_tokens_ == plan_.tokens) {
    duration_ = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::steady_clock::now() - plan_.asked);
  }
  changed_.NotifyAll();
}

void PageLoad::CloseAll() {
  // A group that is not done has nothing that may be read: its receiver may be at work.
  for (uint32_t group = 0; group < done_.size(); ++group) CloseGroup(group, 0);
  closed_ = true;
}

}  // namespace prefixd::client
