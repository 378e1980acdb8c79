#include "cache/cache.h"

#include <algorithm>

#include "base/random.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

// Two reads of 1 MiB saturate the disks measured; meanwhile the third thread copies and checks.
constexpr int kPromotionThreads = 3;

}  // namespace

Core::Core(const Options& opts)
    : options(opts),
      epoch(base::RandomWord()),
      lease_base(epoch >> 2 & ~((uint64_t{1} << 40) - 1)),
      name_key{base::RandomWord(), base::RandomWord()},
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
  load_stop = true;
  tier_bell.Stop();
  if (tier_thread.joinable()) tier_thread.join();
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
                                    .lock_wait = LockWait(),
                                    .key_id = IdOf(hash_key)});
    if (opened.ok()) {
      // Without it this file is replaced at the next start, and nothing worse.
      if (absl::Status kept = KeepHashKey(KeyPlaces().arena, hash_key); !kept.ok()) {
        counters.Add("arena.key_not_kept");
        Log(LogLevel::kWarning,
            absl::StrCat("pages in RAM will not survive a crash: ", std::string(kept.message())));
      }
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

HashKeyPlaces Core::KeyPlaces() const {
  HashKeyPlaces places;
  if (options.ssd_budget_bytes > 0) places.store = options.directory + "/prefixd.key";
  if (!options.arena_path.empty()) places.arena = options.arena_path + ".key";
  return places;
}

absl::Status Core::Start() {
  PREFIXD_ASSIGN_OR_RETURN(hash_key, FindHashKey(KeyPlaces(), [this](const std::string& why) {
                             Log(LogLevel::kWarning, why);
                           }));
  hasher = block::BlockHasher(hash_key, options.hash_bits);
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
      .max_ghosts = static_cast<uint32_t>(std::min<uint64_t>(65536, shares.index_bytes / 512)),
      .hasher = hasher});
  const bool has_ssd = options.ssd_budget_bytes > 0;
  if (has_ssd) PREFIXD_RETURN_IF_ERROR(StartTier());
  if (arena->shared()) AdoptSpaces();
  PREFIXD_RETURN_IF_ERROR(StartLoading(FindLegacy()));
  if (has_ssd) {  // also for a tier that opens later, when the system may give no thread
    threads.emplace_back([this] { SpillLoop(); });
    threads.emplace_back([this] { DropLoop(); });
  }
  if (store != nullptr) LetTierWork();
  if (has_ssd || arena->shared()) {
    for (int i = 0; i < kPromotionThreads; ++i) threads.emplace_back([this] { PromotionLoop(); });
  }
  if (arena->shared()) {
    threads.emplace_back([this] { WatchLoop(); });
    threads.emplace_back([this] { ReapLoop(); });
    threads.emplace_back([this] { SlabLoop(); });
  }
  if (has_ssd) tier_thread = std::thread([this] { TierLoop(); });
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
