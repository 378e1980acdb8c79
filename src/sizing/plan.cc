#include "sizing/plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "ram/budget.h"

namespace prefixd::sizing {
namespace {

constexpr uint64_t kMostBytesPerToken = uint64_t{64} << 20;  // no sum of them overflows
// What the simulations that run at the same time take together, and one of them for each block.
constexpr uint64_t kMemory = uint64_t{1} << 30, kMemoryPerBlock = 100;
constexpr uint64_t kLargestRam = uint64_t{1} << 50;
constexpr uint64_t kSegment = uint64_t{64} << 20, kLeastSegment = uint64_t{1} << 20;
constexpr size_t kLeastRungs = 5, kMostRungs = 14;
constexpr double kNearlyAll = 0.995, kHalf = 0.5;
constexpr double kShares[] = {0.90, 0.95, 0.99};

class Planner {
 public:
  Planner(const Trace& trace, const PlanOptions& options) : trace_(trace), options_(options) {}

  absl::StatusOr<Plan> Make() {
    const uint64_t bytes = options_.shape.bytes_per_token;
    if (bytes == 0 || bytes > kMostBytesPerToken) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: a token takes ", base::FormatBytes(bytes), ", not 1 B to 64 MiB"));
    }
    plan_.requests = trace_.requests.size();
    for (const uint32_t tokens : trace_.block_sizes) plan_.working_set_tokens += tokens;
    plan_.working_set_bytes = plan_.working_set_tokens * bytes;
    plan_.most = HitsOfAll(trace_);
    plan_.ram_bytes = Sorted(options_.ram_bytes);
    plan_.ssd_bytes = Sorted(options_.ssd_bytes);
    if (plan_.ram_bytes.empty()) PREFIXD_RETURN_IF_ERROR(ChooseRam());
    if (plan_.ssd_bytes.empty()) ChooseSsd();
    for (const uint64_t ram : plan_.ram_bytes) {
      for (const uint64_t ssd : plan_.ssd_bytes) {
        plan_.cells.push_back({.ram_bytes = ram, .ssd_bytes = ssd, .hits = {}});
      }
    }
    PREFIXD_RETURN_IF_ERROR(FillAll(&plan_.cells));
    for (const double share : kShares) {
      PREFIXD_ASSIGN_OR_RETURN(Plan::Reached reached, Reach(share));
      plan_.reached.push_back(reached);
    }
    PREFIXD_RETURN_IF_ERROR(Double());
    return std::move(plan_);
  }

 private:
  static std::vector<uint64_t> Sorted(std::vector<uint64_t> sizes) {
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
  }
  // Powers of two, from the first that hits nearly what can be hit down to one that hits less than
  // half of it.
  absl::Status ChooseRam() {
    uint64_t ram = ram::kMinRamBudget;
    for (; ram <= kLargestRam; ram *= 2) {
      PREFIXD_ASSIGN_OR_RETURN(const RamRoom room, RoomOf(ram, false, options_.shape));
      if (room.tokens > 0 && room.tokens >= trace_.unique * trace_.block_tokens) break;
    }
    if (ram > kLargestRam) {
      return absl::InvalidArgumentError("plan: no RAM budget up to 1024 TiB holds such blocks");
    }
    std::vector<PlanCell> rungs;
    bool goes_on = true;
    for (; goes_on && ram >= ram::kMinRamBudget && rungs.size() < kMostRungs; ram /= 2) {
      PlanCell cell{.ram_bytes = ram, .ssd_bytes = 0, .hits = {}};
      PREFIXD_RETURN_IF_ERROR(Fill(&cell));
      if (Reaches(cell, kNearlyAll)) rungs.clear();  // the larger ones say no more
      rungs.push_back(cell);
      goes_on = rungs.size() < kLeastRungs || Reaches(cell, kHalf);
    }
    for (const PlanCell& cell : rungs)
      plan_.ram_bytes.insert(plan_.ram_bytes.begin(), cell.ram_bytes);
    return absl::OkStatus();
  }
  void ChooseSsd() {
    plan_.ssd_bytes = {0};
    for (const uint64_t bytes : {plan_.working_set_bytes / 4, plan_.working_set_bytes}) {
      const uint64_t ssd = std::bit_ceil(bytes + bytes / 8);
      if (ssd >= 2 * kSegment && ssd != plan_.ssd_bytes.back()) plan_.ssd_bytes.push_back(ssd);
    }
  }

  absl::Status Fill(PlanCell* cell) const {
    const bool has_ssd = cell->ssd_bytes > 0;
    PREFIXD_ASSIGN_OR_RETURN(const RamRoom room, RoomOf(cell->ram_bytes, has_ssd, options_.shape));
    // A block of the trace may be several of the daemon's.
    const uint64_t each = std::max<uint64_t>(1, trace_.block_tokens / options_.shape.block_tokens);
    const uint64_t segment = std::min(kSegment, std::max(kLeastSegment, cell->ssd_bytes / 64));
    const uint64_t bytes = options_.shape.bytes_per_token;
    cell->hits =
        Simulate(trace_, {.ram_tokens = room.tokens,
                          .ssd_tokens = cell->ssd_bytes / bytes,
                          .ssd_write_share = options_.ssd_write_share,
                          .ssd_shallow_tokens = options_.ssd_shallow_tokens,
                          .ssd_segment_tokens = segment / bytes,
                          .index_bytes = room.index_bytes,
                          .index_bytes_per_block = each * room.index_bytes_per_block,
                          .index_bytes_in_ram = each * room.index_bytes_in_ram,
                          .index_most_bytes = room.index_most_bytes,
                          .slab_bytes = room.slab_bytes,
                          .ram_tokens_of_slab = room.tokens_of_slab,
                          .ghosts = std::min<uint64_t>(65536, room.index_most_bytes / 512)});
    return absl::OkStatus();
  }
  absl::Status FillAll(std::vector<PlanCell>* cells) const {
    const size_t count = cells->size();
    std::vector<absl::Status> statuses(count);
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t i = next++; i < count; i = next++) statuses[i] = Fill(&(*cells)[i]);
    };
    std::vector<std::thread> threads;
    const uint64_t fit = kMemory / (kMemoryPerBlock * std::max<uint64_t>(1, trace_.unique));
    const uint64_t most = std::min<uint64_t>(fit, std::thread::hardware_concurrency());
    for (size_t i = 1; i < std::min<uint64_t>(count, most); ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) PREFIXD_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  bool Reaches(const PlanCell& cell, double share) const {
    return static_cast<double>(cell.hits.tokens()) >=
           share * static_cast<double>(plan_.most.tokens());
  }
  // The room between the rung that reaches it and the one below it is cut in half until that is a
  // sixteenth.
  absl::StatusOr<Plan::Reached> Reach(double share) const {
    Plan::Reached reached{.share = share, .ram_alone = {}, .with_ssd = {}};
    for (size_t i = 0; i < plan_.ram_bytes.size() && !reached.ram_alone.has_value(); ++i) {
      if (plan_.ssd_bytes.front() != 0 || !Reaches(plan_.cell(i, 0), share)) continue;
      reached.ram_alone = plan_.cell(i, 0);
      uint64_t below = i == 0 ? ram::kMinRamBudget : plan_.ram_bytes[i - 1];
      while (reached.ram_alone->ram_bytes - below > reached.ram_alone->ram_bytes / 16) {
        PlanCell middle{.ram_bytes = below + (reached.ram_alone->ram_bytes - below) / 2,
                        .ssd_bytes = 0,
                        .hits = {}};
        PREFIXD_RETURN_IF_ERROR(Fill(&middle));
        if (Reaches(middle, share)) {
          reached.ram_alone = middle;
        } else {
          below = middle.ram_bytes;
        }
      }
    }
    for (const PlanCell& cell : plan_.cells) {
      if (cell.ssd_bytes == 0 || !Reaches(cell, share)) continue;
      reached.with_ssd = cell;
      break;
    }
    return reached;
  }
  absl::Status Double() {
    plan_.before = plan_.cell(plan_.ram_bytes.size() - 1, 0);
    const auto& reached = plan_.reached.front();
    if (reached.ram_alone.has_value()) plan_.before = *reached.ram_alone;
    plan_.after = plan_.before;
    plan_.after.ram_bytes *= 2;
    return Fill(&plan_.after);
  }

  const Trace& trace_;
  const PlanOptions& options_;
  Plan plan_;
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const Trace& trace, const PlanOptions& options) {
  return Planner(trace, options).Make();
}

}  // namespace prefixd::sizing
