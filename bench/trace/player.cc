#include "bench/trace/player.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "bench/common/mix.h"
#include "bench/common/timing.h"

namespace prefixd::bench {
namespace {

// A prompt may be longer than everything there is room for: its head is then stored, without
// waiting long for room that nobody will make.
constexpr std::chrono::milliseconds kRamPatience(20);
constexpr std::chrono::seconds kSsdPatience(5);
constexpr size_t kBlocksAtOnce = 32;  // published together

// Reads a lease to its end.
class Reader : public cache::FetchSink {
 public:
  bool Page(const cache::PagePiece&) override { return true; }
  bool Ready(const cache::GroupReady& ready) override {
    usable_tokens = std::min(usable_tokens, ready.usable_tokens);
    return true;
  }
  uint32_t usable_tokens = ~uint32_t{0};
};

class InProcess : public TracePlayer {
 public:
  static absl::StatusOr<std::unique_ptr<TracePlayer>> Open(const TraceBudget& budget) {
    auto player = std::unique_ptr<InProcess>(new InProcess(budget));
    cache::Options options;
    options.ram_budget_bytes = budget.ram_bytes;
    options.ssd_budget_bytes = budget.ssd_bytes;
    options.directory = budget.directory;
    options.segment_bytes = budget.segment_bytes;
    options.ssd_write_share = budget.write_share;
    options.ssd_shallow_tokens = budget.shape.shallow_tokens();
    options.clock = &player->clock_;
    PREFIXD_ASSIGN_OR_RETURN(player->cache_, cache::Cache::Open(options));
    player->session_ = player->cache_->BeginSession("trace");
    PREFIXD_ASSIGN_OR_RETURN(const cache::OpenedSpace space,
                             player->cache_->OpenSpace(player->session_, IdentityOf(budget.shape)));
    player->space_ = space.space;
    return player;
  }

  absl::StatusOr<TraceLookUp> Play(std::span<const TraceBlock> path) override {
    cache::Request request;
    request.space = space_;
    request.tokens = TokensOf(shape_, path);
    PREFIXD_ASSIGN_OR_RETURN(cache::Acquired acquired,
                             cache_->Acquire(session_, request, Patience()));
    PREFIXD_ASSIGN_OR_RETURN(const TraceLookUp found, Count(&acquired));
    const absl::Status stored = Store(std::move(request.tokens));
    if (acquired.lease) {
      PREFIXD_RETURN_IF_ERROR(cache_->Release(session_, {.lease = acquired.lease}));
    }
    PREFIXD_RETURN_IF_ERROR(stored);
    return found;
  }
  void PassTime(double ms) override { clock_.Advance(static_cast<int64_t>(ms * 1e3)); }
  absl::StatusOr<TraceWrites> Writes() override {
    TraceWrites writes;
    const block::Stats stats = cache_->GetStats();
    for (const block::NamedCount& count : stats.counters) {
      if (count.name == "bytes.spilled") writes.spilled_bytes = count.value;
      if (count.name == "bytes.rewritten") writes.rewritten_bytes = count.value;
    }
    writes.ssd_file_bytes = stats.ssd_file_bytes;
    return writes;
  }

 private:
  explicit InProcess(const TraceBudget& budget)
      : shape_(budget.shape), has_ssd_(budget.ssd_bytes > 0), page_(budget.shape.page_bytes) {
    for (size_t i = 0; i < page_.size(); ++i) page_[i] = static_cast<std::byte>(Mix(i));
    page_sum_ = base::Xxh3(page_);
  }
  base::Deadline Patience() const {
    const auto now = std::chrono::steady_clock::now();
    return has_ssd_ ? now + kSsdPatience : base::Deadline(now + kRamPatience);
  }

  absl::StatusOr<TraceLookUp> Count(cache::Acquired* acquired) {
    const block::MatchAnswer& match = acquired->match;
    uint32_t usable = match.restorable_tokens;
    TraceLookUp found;
    if (match.ssd_bytes > 0) {
      Reader reader;
      PREFIXD_RETURN_IF_ERROR(
          cache_->Fetch(session_, {.lease = acquired->lease, .groups = {}, .seeded_sums = true},
                        Patience(), &reader));
      usable = std::min(usable, reader.usable_tokens);
    }
    for (const block::Shortening& cut : match.shortened_by) {
      if (cut.reason != block::ShortenReason::kLeaseQuota) continue;
      found.beyond_quota = cut.tokens_lost / shape_.tokens();
    }
    const uint64_t blocks = usable / shape_.tokens() + found.beyond_quota;
    found.ssd = std::min(blocks, match.ssd_bytes / (shape_.page_bytes * shape_.kv_blocks));
    found.ram = blocks - found.ssd;
    return found;
  }

  absl::Status Store(std::vector<block::Token> tokens) {
    const auto end = static_cast<uint32_t>(tokens.size());
    cache::ReserveRequest request{
        .space = space_, .tokens = std::move(tokens), .content = {}, .groups = {}, .writable = {}};
    PREFIXD_ASSIGN_OR_RETURN(const block::ReservePlan plan, cache_->Reserve(session_, request));
    uint32_t put = 0, committed = 0;
    bool room = true;
    for (size_t i = 0; i < plan.blocks.size() && room; ++i) {
      const block::BlockPlan& block = plan.blocks[i];
      if (block.state != block::BlockState::kPresent) {
        PREFIXD_ASSIGN_OR_RETURN(room, Put(plan.reservation, block));
        if (!room) break;
      }
      put = block.first_token + block.tokens;
      if ((i + 1) % kBlocksAtOnce != 0 && put < end) continue;
      PREFIXD_ASSIGN_OR_RETURN(room, Commit(plan.reservation, put, put == end));
      committed = put;
    }
    if (put > committed) PREFIXD_RETURN_IF_ERROR(Commit(plan.reservation, put, true).status());
    if (put < end) cache_->Abandon(session_, plan.reservation).IgnoreError();
    return absl::OkStatus();
  }
  // False: there is no room, and none will be made.
  absl::StatusOr<bool> Put(block::ReservationId reservation, const block::BlockPlan& block) {
    const absl::Status put = cache_->PutPage(session_, reservation,
                                             {.group = 0,
                                              .first_token = block.first_token,
                                              .tokens = block.tokens,
                                              .rung = 0,
                                              .page_bytes = page_.size(),
                                              .offset = 0,
                                              .xxh3 = page_sum_,
                                              .data = page_},
                                             Patience());
    if (absl::IsResourceExhausted(put)) return false;
    if (!put.ok()) return put;
    return true;
  }
  absl::StatusOr<bool> Commit(block::ReservationId reservation, uint32_t tokens, bool is_end) {
    PREFIXD_ASSIGN_OR_RETURN(
        const block::CommitAnswer answer,
        cache_->Commit(session_,
                       {.reservation = reservation, .tokens = tokens, .sequence_end = is_end}));
    const bool refused = std::ranges::any_of(answer.blocks, [](const block::BlockResult& block) {
      return block.result == block::StoreResult::kRefused;
    });
    return !refused;
  }

  const TraceShape shape_;
  const bool has_ssd_;
  std::vector<std::byte> page_;
  uint64_t page_sum_ = 0;
  base::FakeClock clock_;
  std::unique_ptr<cache::Cache> cache_;
  block::SessionId session_;
  block::SpaceHandle space_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TracePlayer>> PlayInProcess(const TraceBudget& budget) {
  return InProcess::Open(budget);
}

absl::StatusOr<TraceRun> PlayTrace(const Trace& trace, const TraceShape& shape,
                                   TracePlayer& player) {
  TraceRun run;
  TraceResult& result = run.result;
  const double start = NowMicros();
  double now_ms = 0;
  for (const Trace::Request& request : trace.requests) {
    player.PassTime(request.at_ms - now_ms);
    now_ms = request.at_ms;
    if (request.blocks == 0) continue;
    PREFIXD_ASSIGN_OR_RETURN(const TraceLookUp found, player.Play(trace.blocks(request)));
    result.requested += request.blocks;
    result.ram_hits += found.ram;
    result.ssd_hits += found.ssd;
    run.beyond_quota += found.beyond_quota;
  }
  run.wall_us = NowMicros() - start;
  const uint64_t block_bytes = shape.page_bytes * shape.kv_blocks;
  run.stored_bytes = (result.requested - result.hits()) * block_bytes;
  PREFIXD_ASSIGN_OR_RETURN(run.writes, player.Writes());
  result.ssd_writes = (run.writes.spilled_bytes + run.writes.rewritten_bytes) / block_bytes;
  return run;
}

}  // namespace prefixd::bench
