// A daemon that finds a million blocks on the SSD.
#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/own_cache.h"
#include "bench/common/timing.h"
#include "bench/ssd/ssd.h"
#include "bench/trace/geometry.h"
#include "cache/cache.h"

namespace prefixd::bench {
namespace {

constexpr TraceShape kShape{.block_tokens = 16, .kv_blocks = 1, .page_bytes = 4096};
constexpr uint32_t kSequenceBlocks = 4'096;

std::vector<block::Token> SequenceTokens(uint64_t number) {
  std::vector<TraceBlock> path(kSequenceBlocks);
  std::iota(path.begin(), path.end(), static_cast<TraceBlock>(number * kSequenceBlocks));
  return TokensOf(kShape, path);
}

struct Budget {
  uint64_t ram = 0, ssd = 0;
};

// By a cache in this process: pages of 4 KiB by Put would take minutes.
absl::Status FillStore(const std::string& directory, const Budget& budget, uint64_t sequences) {
  cache::Options options;
  options.ram_budget_bytes = budget.ram;
  options.ssd_budget_bytes = budget.ssd;
  options.directory = directory;
  PREFIXD_ASSIGN_OR_RETURN(const auto own, OwnCache::Open(options, IdentityOf(kShape)));
  for (uint64_t number = 0; number < sequences; ++number) {
    PREFIXD_RETURN_IF_ERROR(own->Store(SequenceTokens(number)));
  }
  const auto flushed =
      own->cache().Flush(std::chrono::steady_clock::now() + std::chrono::seconds(120));
  if (flushed.dirty_bytes == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("fill: ", flushed.dirty_bytes, " bytes stay dirty"));
}

struct Started {
  double first_match_us = 0, complete_us = 0;
};

absl::StatusOr<Started> StartAgain(const DaemonProcess::Options& options, uint64_t sequences) {
  const double start = NowMicros();
  PREFIXD_ASSIGN_OR_RETURN(const auto daemon, DaemonProcess::Exec(options));
  PREFIXD_RETURN_IF_ERROR(daemon->WaitListening());
  PREFIXD_ASSIGN_OR_RETURN(
      const auto session,
      RawSession::Open({.address = daemon->address(), .name = "restart", .wants_arena = false}));
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t space, session->OpenSpace(IdentityOf(kShape)));
  v1::AcquireRequest request;
  request.set_session(session->id());
  v1::Sequence& sequence = *request.add_items()->mutable_sequence();
  sequence.set_space(space);
  const std::vector<block::Token> tokens = SequenceTokens(sequences / 2);
  sequence.mutable_tokens()->Add(tokens.begin(), tokens.end());
  v1::AcquireReply reply;
  grpc::ClientContext context;
  const grpc::Status matched = session->stub().Match(&context, request, &reply);
  if (!matched.ok()) return absl::InternalError("match: " + matched.error_message());
  Started started{.first_match_us = NowMicros() - start};
  DaemonStats stats(daemon->address());
  for (uint64_t blocks = 0; blocks < sequences * kSequenceBlocks;) {
    if (NowMicros() - start > 120e6) {
      return absl::DeadlineExceededError(absl::StrCat("restart: ", blocks, " blocks after 120 s"));
    }
    PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply now, stats.Get());
    blocks = 0;
    for (const v1::SpaceStats& one : now.spaces()) blocks += one.blocks();
    if (blocks < sequences * kSequenceBlocks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  started.complete_us = NowMicros() - start;
  PREFIXD_RETURN_IF_ERROR(daemon->Stop());
  return started;
}

}  // namespace

void SsdRestart(Bench& bench) {
  const uint64_t sequences = bench.Parameter("restart_sequences_of_4096_blocks", 2, 64, 256);
  const uint64_t restarts = bench.Parameter("restarts", 1, 3, 5);
  const uint64_t blocks = sequences * kSequenceBlocks;
  // A sixteenth of the RAM budget is the index's: a kilobyte a block.
  const Budget budget{.ram = 128 * kMiB + blocks * 1024 * 16,
                      .ssd = 512 * kMiB + blocks * kShape.page_bytes * 3 / 2};
  const std::string directory = bench.directory() + "/restart";
  std::filesystem::create_directories(directory);
  const double start = NowMicros();
  const absl::Status filled = FillStore(directory + "/ssd", budget, sequences);
  if (!bench.Check(filled.ok(), filled.ToString())) return;
  bench.Add({"fill", {{"blocks", static_cast<double>(blocks)}, {"wall_us", NowMicros() - start}}});
  std::vector<double> first, complete;
  for (uint64_t i = 0; i < restarts; ++i) {
    const auto started =
        StartAgain({.directory = directory,
                    .ram = std::to_string(budget.ram),
                    .ssd = std::to_string(budget.ssd),
                    .load_wait = "300ms",
                    .flags = {"--log-level", "warning", "--ssd-write-share", "off"}},
                   sequences);
    if (!bench.Check(started.ok(), started.status().ToString())) return;
    first.push_back(started->first_match_us);
    complete.push_back(started->complete_us);
  }
  bench.Judge({.name = "restart: first match after exec",
               .ours = "median " + MicrosText(Quantile(first, 0.5)),
               .reference = absl::StrCat(blocks, " blocks on the SSD"),
               .measure = "worst",
               .seen = Quantile(first, 1) * 1e-3,
               .limit = 500,
               .unit = " ms",
               .runs = first.size()});
  bench.Judge({.name = "restart: index complete after exec",
               .ours = "median " + MicrosText(Quantile(complete, 0.5)),
               .reference = absl::StrCat(blocks, " blocks on the SSD"),
               .measure = "worst",
               .seen = Quantile(complete, 1) * 1e-6,
               .limit = 4,
               .unit = " s",
               .runs = complete.size()});
}

}  // namespace prefixd::bench
