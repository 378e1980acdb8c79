#include "store_job.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_layout.h"

namespace prefixd::client {

absl::StatusOr<PageSnapshot> PageSnapshot::Take(const SequencePages& pages, const SpaceState& space,
                                                uint32_t tokens, bool copy_tail) {
  PageSnapshot snapshot;
  const uint32_t block_tokens = snapshot.block_tokens_ = pages.block_tokens();
  const auto groups = static_cast<uint32_t>(space.groups().size());
  const uint32_t blocks = (tokens + block_tokens - 1) / block_tokens;
  snapshot.pages_.resize(groups);
  snapshot.states_ = pages.states(0, tokens);
  for (uint32_t group = 0; group < groups; ++group) {
    snapshot.rungs_used_.push_back(pages.rungs_used(group));
    if (space.IsState(group)) continue;
    for (uint32_t b = 0; b < blocks; ++b) {
      snapshot.pages_[group].push_back(pages.own_page(group, b));
    }
    if (!copy_tail || tokens % block_tokens == 0 || !snapshot.pages_[group].back().memory) continue;
    Page& tail = snapshot.pages_[group].back();
    const uint64_t bytes =
        block::LayoutOfPage(space.groups()[group], tail.rung, block_tokens).page_bytes;
    PageMemory copy = AllocatePage(bytes);  // on the heap: Publish() cuts it into staging anyhow
    if (!copy) return absl::ResourceExhaustedError("commit: no memory for a page");
    std::memcpy(copy.get(), tail.memory.get(), bytes);
    tail.memory = std::move(copy);
  }
  return snapshot;
}

const PageMemory& PageSnapshot::Find(uint32_t group, uint32_t block) const {
  static const PageMemory none;
  return block < pages_[group].size() ? pages_[group][block].memory : none;
}

OwnPages::Page PageSnapshot::own_page(uint32_t group, uint32_t block) const {
  if (!IsOwn(group, block)) return {};
  return pages_[group][block];
}

std::vector<OwnPages::State> PageSnapshot::states(uint32_t begin, uint32_t end) const {
  std::vector<State> among;
  for (const State& state : states_) {
    if (state.tokens > begin && state.tokens <= end) among.push_back(state);
  }
  return among;
}

void StoreJob::Run() {
  const auto run = [&]() -> absl::Status {
    PREFIXD_ASSIGN_OR_RETURN(opened, core->Open(*space, deadline));
    if (opened->space.block_tokens != pages.block_tokens()) {
      return absl::FailedPreconditionError(
          absl::StrCat("commit: the daemon has blocks of ", opened->space.block_tokens,
                       " tokens now, the sequence of ", pages.block_tokens()));
    }
    published = Publish(*core, *space, pages,
                        {.opened = *opened,
                         .sequence = {.tokens = tokens, .content = content},
                         .committed_tokens = committed_tokens,
                         .sequence_end = sequence_end,
                         .ends = ends,
                         .lease = opened->attachment->arena() != nullptr,
                         .durability = durability,
                         .deadline = deadline},
                        &announced);
    return published.status;
  };
  try {
    status = run();
  } catch (const std::bad_alloc&) {  // building the messages of a long sequence
    status = absl::ResourceExhaustedError("commit: out of memory");
  }
}

std::unique_ptr<BackgroundStore> BackgroundStore::Start(const std::shared_ptr<StoreJob>& job) {
  auto store = std::unique_ptr<BackgroundStore>(new BackgroundStore(job));
  // If the task is dropped, its promise goes too and ends the wait.
  auto promise = std::make_shared<std::promise<void>>();
  store->ended_ = promise->get_future();
  const bool begun = job->core->StartStore([job, promise, trace = TraceOfThread()] {
    {
      const TraceScope scope(trace);
      job->Run();
    }
    job->core = nullptr;  // this is one of the core's threads and must not end them
    promise->set_value();
  });
  return begun ? std::move(store) : nullptr;
}

bool BackgroundStore::done() const {
  return ended_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

StoreJob& BackgroundStore::Wait() {
  ended_.wait();
  return *job_;
}

}  // namespace prefixd::client
