#include "cache/parts.h"

#include <utility>

#include "base/status.h"

namespace prefixd::cache {

Parts::Parts(std::unique_ptr<Context> opened)
    : owned_(std::move(opened)),
      context(*owned_),
      tables(&context),
      spill_demand(&context),
      records(&context, &tables.spaces),
      room(&context, &tables, &records, &spill_demand),
      watcher(&context, &refused),
      loader(&context, &tables.spaces, &room, &records, &refused, &watcher.changed()),
      far(&context),
      space_board(&context, &far),
      finder(&context, &far),
      fetcher(&context, &far, &room, &records, &refused, &loader.model, &watcher.changed()),
      writer(&context, &far, &space_board),
      dropper(&context),
      segments(&context, &tables.spaces, &tables.limited, &spill_demand, &dropper),
      spiller(&context, &segments, &spill_demand),
      tier(&context, &tables.spaces, &tables.limited, &segments, &spiller, &spill_demand),
      index_loader(&context, &tables.sessions, &tables.spaces, &room, &segments, &loader),
      verifier(&context, &segments, &dropper) {}

absl::Status Parts::Start() {
  const bool has_ssd = context.has_ssd(), shared = context.arena->shared();
  if (has_ssd) PREFIXD_RETURN_IF_ERROR(tier.Start());
  PREFIXD_RETURN_IF_ERROR(index_loader.Start());
  if (has_ssd) {  // also for a tier that opens later, when the system may give no thread
    threads_.emplace_back([this] { spiller.Run(); });
    threads_.emplace_back([this] { dropper.Run(); });
    if (context.store != nullptr) spiller.LetWork();
  }
  if (has_ssd || shared) {
    for (int i = 0; i < Loader::kThreads; ++i) threads_.emplace_back([this] { loader.Run(); });
  }
  if (far.on()) {
    for (int i = 0; i < Fetcher::kThreads; ++i) threads_.emplace_back([this] { fetcher.Run(); });
    threads_.emplace_back([this] { writer.Run(); });
  }
  if (shared) {
    threads_.emplace_back([this] { watcher.Run(); });
    threads_.emplace_back([this] { tables.sessions.Run(); });
    threads_.emplace_back([this] { room.Run(); });
  }
  if (has_ssd) {
    tier_thread_ = std::thread(
        [this] { tier.Run([this](const auto& take) { return index_loader.LoadLate(take); }); });
  }
  return absl::OkStatus();
}

Parts::~Parts() {
  tier.Stop();
  index_loader.Stop();
  if (tier_thread_.joinable()) tier_thread_.join();
  writer.Stop();
  fetcher.Stop();
  loader.Stop();
  spiller.Stop();
  dropper.Stop();
  watcher.Stop();
  tables.sessions.Stop();
  room.Stop();
  for (std::thread& thread : threads_) thread.join();
  context.stopping = true;
}

}  // namespace prefixd::cache
