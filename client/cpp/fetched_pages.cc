#include "fetched_pages.h"

#include <algorithm>
#include <utility>

#include "raw_stream.h"

namespace prefixd::client {

FetchedPages::FetchedPages(std::shared_ptr<Connection> connection,
                           std::shared_ptr<const SpaceState> space, const LoadPlan& plan,
                           std::vector<std::vector<ExpectedPage>> pages)
    : connection_(std::move(connection)),
      space_(std::move(space)),
      plan_(plan),
      progress_(pages.size(), plan.tokens, !space_->regular()) {
  for (size_t group = 0; group < pages.size(); ++group) {
    receivers_.emplace_back(space_->groups()[group], plan_.block_tokens, plan_.tokens,
                            std::move(pages[group]));
  }
}

void FetchedPages::Run() {
  while (FetchOnce()) {
  }
  base::MutexLock lock(mutex_);
  for (uint32_t group = 0; group < progress_.groups(); ++group) {
    Close(group, receivers_[group].tokens());  // what a broken stream left open
  }
}

void FetchedPages::Cancel() {
  base::MutexLock lock(mutex_);
  if (fetching_with_ != nullptr) fetching_with_->TryCancel();
  progress_.CloseAll();
  changed_.NotifyAll();
}

uint32_t FetchedPages::Wait(uint32_t group, base::Deadline until) {
  until = std::min(until, plan_.deadline);
  base::MutexLock lock(mutex_);
  while (!progress_.done(group)) {
    // The stream ends at its deadline by itself; a load that never got a thread ends here.
    if (!changed_.WaitUntil(mutex_, until) && !progress_.done(group)) progress_.CloseAll();
  }
  return progress_.usable_tokens();
}

uint32_t FetchedPages::usable_tokens() const {
  base::MutexLock lock(mutex_);
  return progress_.usable_tokens();
}

CachedPage FetchedPages::page(uint32_t group, uint32_t block) const {
  const LoadedPage* page = receivers_[group].page(block);
  if (page == nullptr) return {.page_tokens = plan_.block_tokens};
  return {.bytes = page->bytes.get(), .page_tokens = page->page_tokens, .rung = page->rung};
}

std::chrono::microseconds FetchedPages::duration() const {
  base::MutexLock lock(mutex_);
  return progress_.duration();
}

std::vector<uint32_t> FetchedPages::OpenGroups() const {
  base::MutexLock lock(mutex_);
  std::vector<uint32_t> open;
  for (uint32_t group = 0; group < progress_.groups(); ++group) {
    if (!progress_.done(group)) open.push_back(group);
  }
  return open;
}

bool FetchedPages::FetchOnce() {
  const std::vector<uint32_t> groups = OpenGroups();
  if (groups.empty()) return false;
  v1::FetchRequest request;
  request.set_session(plan_.session.id);
  request.set_lease(plan_.lease.value);
  request.mutable_groups()->Add(groups.begin(), groups.end());
  request.set_seeded_sums(true);
  grpc::ClientContext context;
  context.set_deadline(WallClock(plan_.deadline));
  CarryTrace(&context);
  {
    base::MutexLock lock(mutex_);
    if (progress_.closed()) return false;
    for (uint32_t group : groups) receivers_[group].Reset();
    fetching_with_ = &context;
  }
  {
    RawStream stream(connection_->page_channel(), "/prefixd.v1.PrefixCache/Fetch", &context);
    stream.Write(Serialize(request), /*last=*/true);
    FetchedChunk chunk;
    bool wanted = true;
    // Reads to the end: Finish() waits for unread messages.
    for (grpc::ByteBuffer message; stream.Read(&message);) {
      if (!wanted || (chunk.Parse(message) && OnChunk(chunk))) continue;
      wanted = false;
      context.TryCancel();
    }
    stream.Finish();
  }
  base::MutexLock lock(mutex_);
  fetching_with_ = nullptr;
  // Every further stream closes at least one group, so this ends.
  return progress_.usable_tokens() > 0 && progress_.open_groups() > 0 &&
         progress_.open_groups() < groups.size();
}

bool FetchedPages::OnChunk(const FetchedChunk& chunk) {
  const uint32_t group = chunk.is_page() ? chunk.piece().group : chunk.ready().group();
  uint32_t limit = 0;
  {
    base::MutexLock lock(mutex_);
    if (progress_.closed() || group >= progress_.groups() || progress_.done(group)) return false;
    limit = progress_.usable_tokens();
  }
  if (chunk.is_page()) {
    const absl::Status status = receivers_[group].Take(chunk, limit);
    if (status.ok()) return true;
    base::MutexLock lock(mutex_);
    Close(group, receivers_[group].tokens());
    return false;
  }
  base::MutexLock lock(mutex_);
  Close(group, std::min(chunk.ready().usable_tokens(), receivers_[group].tokens()));
  return true;
}

void FetchedPages::Close(uint32_t group, uint32_t usable_tokens) {
  progress_.Close(group, usable_tokens, plan_.asked);
  changed_.NotifyAll();
}

}  // namespace prefixd::client
