// Several times the capacity through a full SSD, while random old pages are wanted again.
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/process_memory.h"
#include "bench/common/timing.h"
#include "bench/ssd/ssd.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kSequenceBlocks = 4;
// A page that is wanted again must be written again before it ages out: of a page touched at random
// r times while the log goes round once, 1 - exp(-r / 2) were touched in its last half. 0.15 leaves
// room for that within 1.10.
constexpr double kTouchesPerInsert = 0.15;

uint64_t AllocatedBytes(const std::string& directory) {
  uint64_t bytes = 0;
  std::set<ino_t> seen;   // a file that moves to another name meanwhile has both for a moment
  std::error_code error;  // files come and go meanwhile
  for (std::filesystem::recursive_directory_iterator at(directory, error), end; at != end && !error;
       at.increment(error)) {
    struct stat status {};
    if (::lstat(at->path().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        seen.insert(status.st_ino).second) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

class Churn {
 public:
  Churn(Bench& bench, SsdDaemon& daemon, uint64_t ssd_bytes)
      : bench_(bench),
        daemon_(daemon),
        ssd_bytes_(ssd_bytes),
        sequence_bytes_(kSequenceBlocks * daemon.source().block_bytes()) {}

  bool Run(double capacities) {
    const auto inserts = static_cast<uint64_t>(capacities * Number(ssd_bytes_ / sequence_bytes_));
    double touches = 0;
    for (uint64_t i = 0; i < inserts; ++i) {
      const absl::Status stored = daemon_.Store(SequenceOf(++inserted_));
      if (!bench_.Check(stored.ok(), stored.ToString())) return false;
      for (touches += kTouchesPerInsert; touches >= 1; touches -= 1) {
        const absl::Status touched = Touch();
        if (!bench_.Check(touched.ok(), touched.ToString())) return false;
      }
    }
    return true;
  }

  // Of what was touched while the last half of the capacity was inserted.
  void JudgeHits() {
    const uint64_t half = ssd_bytes_ / sequence_bytes_ / 2;
    uint64_t tokens = 0, hits = 0;
    for (const auto& [at, number] : touched_) {
      if (at + half < inserted_) continue;
      const auto reply = Match(number);
      if (!bench_.Check(reply.ok(), reply.status().ToString())) return;
      tokens += kTokens;
      hits += *reply;
    }
    bench_.Judge(
        {.name = "churn: touched while the last half of the capacity came, still hit",
         .ours = absl::StrCat(hits / PageSource::kBlockTokens, " pages"),
         .reference = absl::StrCat(tokens / PageSource::kBlockTokens, " touched at random, ",
                                   inserted_ * kSequenceBlocks, " inserted"),
         .measure = "share",
         .seen = tokens == 0 ? 0 : 100 * Number(hits) / Number(tokens),
         .at_most = false,
         .limit = 90,
         .unit = " %",
         .runs = tokens / PageSource::kBlockTokens});
  }
  uint64_t inserted_bytes() const { return inserted_ * sequence_bytes_; }

 private:
  static constexpr uint32_t kTokens = kSequenceBlocks * PageSource::kBlockTokens;

  RawSequence SequenceOf(uint64_t number) const { return daemon_.Sequence(number, kTokens); }
  absl::StatusOr<uint32_t> Match(uint64_t number) {
    const v1::AcquireRequest request = AcquireOf(daemon_.session(), SequenceOf(number));
    v1::AcquireReply reply;
    grpc::ClientContext context;
    const grpc::Status status = daemon_.session().stub().Match(&context, request, &reply);
    if (!status.ok()) return absl::InternalError("match: " + status.error_message());
    return reply.answers(0).restorable_tokens();
  }
  // Reads one of the sequences that may be there, and compares what is.
  absl::Status Touch() {
    const uint64_t there = std::min<uint64_t>(inserted_, ssd_bytes_ / sequence_bytes_);
    const uint64_t number = inserted_ - random_() % there;
    const RawSequence sequence = SequenceOf(number);
    RawSession& session = daemon_.session();
    PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply,
                             session.Acquire(AcquireOf(session, sequence)));
    v1::Answer answer = reply.answers(0);
    if (answer.lease() == 0) return absl::OkStatus();
    PREFIXD_RETURN_IF_ERROR(session.WaitReady(PageSource::kBlockTokens, &answer));
    PREFIXD_RETURN_IF_ERROR(CompareInPlace(session, daemon_.source(), sequence, answer));
    if (answer.restorable_tokens() == kTokens) touched_.emplace_back(inserted_, number);
    return session.Release({answer.lease()});
  }

  Bench& bench_;
  SsdDaemon& daemon_;
  const uint64_t ssd_bytes_, sequence_bytes_;
  std::mt19937_64 random_{7};
  uint64_t inserted_ = 0;
  std::deque<std::pair<uint64_t, uint64_t>> touched_;  // after so many insertions, which
};

}  // namespace

void SsdChurn(Bench& bench) {
  const uint64_t ssd = bench.Parameter("churn_ssd_bytes", 192 * kMiB, 1024 * kMiB, 2048 * kMiB);
  const uint64_t ram = ssd / 4 + 64 * kMiB;
  const uint64_t segment = std::min<uint64_t>(64 * kMiB, ssd / 16);
  const auto daemon =
      SsdDaemon::Start(bench, {.name = "churn",
                               .ram_bytes = ram,
                               .ssd_bytes = ssd,
                               .flags = {"--segment-bytes", std::to_string(segment)}});
  if (daemon == nullptr) return;
  Churn churn(bench, *daemon, ssd);
  // Full first, and nothing dirty: what counts is what a full log does.
  if (!churn.Run(1.2)) return;
  absl::Status flushed = daemon->stats().Flush();
  if (!bench.Check(flushed.ok(), flushed.ToString())) return;
  const uint64_t written = BytesWritten(daemon->pid());
  const uint64_t inserted = churn.inserted_bytes();
  std::vector<double> samples;  // the size of the files
  Watch files([&] { samples.push_back(Number(AllocatedBytes(daemon->ssd_directory()))); });
  const double start = NowMicros();
  if (!churn.Run(bench.smoke() ? 1 : 5)) return;
  flushed = daemon->stats().Flush();
  bench.Check(flushed.ok(), flushed.ToString());
  const double us = NowMicros() - start;
  files.Stop();
  const double ours = Number(BytesWritten(daemon->pid()) - written);
  const double wanted = Number(churn.inserted_bytes() - inserted);
  bench.Add({"churn", {{"inserted_bytes_per_s", wanted * 1e6 / us}, {"inserted_bytes", wanted}}});
  bench.Judge({.name = "churn: write amplification",
               .ours = "written " + BytesText(ours),
               .reference = "inserted " + BytesText(wanted),
               .seen = ours / wanted,
               .limit = 1.10,
               .runs = 1});
  bench.Judge({.name = "churn: files within the SSD budget",
               .ours = "most " + BytesText(Quantile(samples, 1)),
               .reference = "budget " + BytesText(Number(ssd)),
               .seen = Quantile(samples, 1) / Number(ssd),
               .limit = 1,
               .runs = samples.size()});
  bench.Judge({.name = "churn: files use the SSD budget",
               .ours = "median " + BytesText(Quantile(samples, 0.5)),
               .reference = "budget " + BytesText(Number(ssd)),
               .seen = Quantile(samples, 0.5) / Number(ssd),
               .at_most = false,
               .limit = 0.95,
               .runs = samples.size()});
  churn.JudgeHits();
  const absl::Status stopped = daemon->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
