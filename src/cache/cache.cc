#include "cache/cache.h"

#include <algorithm>
#include <random>

#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

// Two reads of 1 MiB saturate the disks measured; meanwhile the third thread copies and checks.
constexpr int kPromotionThreads = 3;

uint64_t RandomEpoch() {
  std::random_device device;
  uint64_t epoch = 0;
  while (epoch == 0) epoch = (uint64_t{device()} << 32) | device();
  return epoch;
}

}  // namespace

Core::Core(const Options& opts)
    : options(opts),
      epoch(RandomEpoch()),
      lease_base(epoch >> 2 & ~((uint64_t{1} << 40) - 1)),
      started_us(opts.clock->MonotonicMicros()),
      format_advice({.on_misses = opts.tighten_on_misses, .tighten_above = opts.tighten_above}),
      write_budget({.bytes_per_s = opts.ssd_write_bytes_per_s,
                    .window = opts.ssd_write_window,
                    .share = opts.ssd_write_share},
                   opts.clock) {
  ram_budget_bytes = opts.ram_budget_bytes;
  ssd_budget_bytes = opts.ssd_budget_bytes;
}

Core::~Core() {
  {
    base::MutexLock lock(promote_mutex);
    promote_stop = true;
  }
  promote_wake.NotifyAll();
  {
    base::MutexLock lock(spill_mutex);
    spill_stop = true;
  }
  spill_wake.NotifyAll();
  spill_done.NotifyAll();
  {
    base::MutexLock lock(drop_mutex);
    drop_stop = true;
  }
  drop_wake.NotifyAll();
  drop_done.NotifyAll();
  load_stop = true;
  for (Bell* bell : {&watch_bell, &reap_bell, &slab_bell}) bell->Stop();
  for (std::thread& thread : threads) thread.join();
  stopping = true;
}

base::LockWait Core::LockWait() {
  return {.limit = options.lock_wait, .say = [this](const std::string& line) {
            counters.Add("locks.waited");
            Log(LogLevel::kWarning, line);
          }};
}

// Private memory when the file cannot be used: pages then travel by Fetch and Put.
absl::Status Core::OpenArena() {
  const bool has_ssd = options.ssd_budget_bytes > 0;
  if (!options.arena_path.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(shares, CutBudget(options.ram_budget_bytes, has_ssd, true));
    auto opened = ram::Arena::Open({.capacity_bytes = shares.arena_bytes,
                                    .path = options.arena_path,
                                    .epoch = epoch,
                                    .lock_wait = LockWait()});
    if (opened.ok()) {
      arena = *std::move(opened);
      slots = std::make_unique<ram::Slots>(arena.get());
      staging = std::make_unique<ram::StagingPool>(shares.staging_bytes);
      if (!arena->replaced_why().empty()) {
        counters.Add("arena.replaced");
        Log(LogLevel::kWarning, "the arena that was there is replaced: " + arena->replaced_why());
      }
      return absl::OkStatus();
    }
    counters.Add("arena.unusable");
    arena_held = absl::IsUnavailable(opened.status());
    Log(LogLevel::kWarning, absl::StrCat("no shared arena, pages travel by copy: ",
                                         std::string(opened.status().message())));
  }
  PREFIXD_ASSIGN_OR_RETURN(shares, CutBudget(options.ram_budget_bytes, has_ssd, false));
  PREFIXD_ASSIGN_OR_RETURN(arena, ram::Arena::Open({.capacity_bytes = shares.arena_bytes}));
  return absl::OkStatus();
}

absl::Status Core::Start() {
  PREFIXD_RETURN_IF_ERROR(OpenArena());
  index_share_bytes = shares.index_bytes;
  in_flight_share_bytes = shares.in_flight_bytes;
  history = std::make_unique<History>(shares.history_bytes);
  const uint64_t arena_bytes = arena->stats().capacity_bytes;
  index = std::make_unique<index::PrefixIndex>(index::PrefixIndex::Options{
      .session_lease_bytes = arena_bytes / 2,
      .total_lease_bytes = arena_bytes / 10 * 8,
      .memory_limit_bytes = shares.index_bytes,
      .snapshot_bytes = SnapshotShare(arena_bytes),
      // An eighth of the index's share, at about 64 bytes each.
      .max_ghosts = static_cast<uint32_t>(std::min<uint64_t>(65536, shares.index_bytes / 512))});
  if (options.ssd_budget_bytes > 0) {
    PREFIXD_ASSIGN_OR_RETURN(store,
                             ssd::SegmentStore::Open({.directory = options.directory,
                                                      .direct_io = options.direct_io,
                                                      .block_cache_bytes = shares.ssd_bytes / 4,
                                                      .files = options.ssd_files,
                                                      .lock_wait = LockWait()}));
    if (!store->reclaimed_why().empty()) {
      counters.Add("ssd.reclaimed");
      Log(LogLevel::kWarning, absl::StrCat("ssd: what was in ", options.directory,
                                           " is thrown away: ", store->reclaimed_why()));
    }
    if (options.direct_io && !store->direct_io()) {
      counters.Add("ssd.buffered");
      Log(LogLevel::kWarning,
          absl::StrCat("ssd: the filesystem of ", options.directory,
                       " refuses direct I/O: buffered, the page cache told to let go"));
    }
    PREFIXD_RETURN_IF_ERROR(RecoverSpaces());
    base::MutexLock segment(segment_mutex);
    write_budget.SaveUpTo(SsdBudget());
    write_budget.Add(SsdBudget() - std::min(SsdBudget(), store->FileBytes()));
    may_write_bytes = write_budget.left_bytes();
  }
  if (arena->shared()) AdoptSpaces();
  if (store != nullptr) PREFIXD_RETURN_IF_ERROR(LoadLimits());
  PREFIXD_RETURN_IF_ERROR(StartLoading(FindLegacy()));
  if (store != nullptr) {
    threads.emplace_back([this] { SpillLoop(); });
    threads.emplace_back([this] { DropLoop(); });
  }
  if (store != nullptr || arena->shared()) {
    for (int i = 0; i < kPromotionThreads; ++i) threads.emplace_back([this] { PromotionLoop(); });
  }
  if (arena->shared()) {
    threads.emplace_back([this] { WatchLoop(); });
    threads.emplace_back([this] { ReapLoop(); });
    threads.emplace_back([this] { SlabLoop(); });
  }
  return absl::OkStatus();
}

Cache::Cache(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Cache::~Cache() = default;

absl::StatusOr<std::unique_ptr<Cache>> Cache::Open(const Options& options) {
  if (options.ssd_budget_bytes > 0 && options.ssd_budget_bytes < 2 * options.segment_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache: an SSD budget of ", base::FormatBytes(options.ssd_budget_bytes),
        " is too small, two segments are ", base::FormatBytes(2 * options.segment_bytes)));
  }
  auto core = std::make_unique<Core>(options);
  PREFIXD_RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<Cache>(new Cache(std::move(core)));
}

std::string Cache::StoreInstance(const std::string& directory) {
  return ssd::ReadInstance(directory);
}

bool Cache::WaitLoaded(base::Deadline deadline) { return core_->WaitLoaded(deadline); }

uint64_t Cache::epoch() const { return core_->epoch; }

void Cache::Count(const char* counter, uint64_t by) { core_->counters.Add(counter, by); }

void Cache::CountLatency(const char* name, uint64_t us) { core_->counters.Time(name, us); }

const char* ToString(block::MatchKind kind) {
  switch (kind) {
    case block::MatchKind::kExact:
      return "exact";
    case block::MatchKind::kSupersequence:
      return "supersequence";
    case block::MatchKind::kPrefix:
      return "prefix";
    case block::MatchKind::kLcp:
      return "lcp";
    case block::MatchKind::kNone:
      break;
  }
  return "none";
}

const char* ToString(block::ShortenReason reason) {
  static constexpr const char* kNames[] = {
      "unspecified",   "evicted",    "no_state_snapshot",   "window_gone",
      "corrupt",       "format",     "atomic_content",      "ram_full",
      "lease_quota",   "deadline",   "slower_than_prefill", "io_error",
      "index_loading", "max_tokens", "common_length"};
  return kNames[static_cast<size_t>(reason)];
}

const char* ToString(block::EndReason reason) {
  static constexpr const char* kNames[] = {"unspecified", "request_ended", "diverged",
                                           "evicted",     "never_stored",  "index_loading"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace prefixd::cache
