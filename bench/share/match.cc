// Match in process: from a parsed request to a built reply, as the daemon's service does it.
#include <time.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/mix.h"
#include "bench/common/own_cache.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"
#include "prefixd/v1/prefix_cache.pb.h"
#include "wire/answer.h"
#include "wire/request.h"

namespace prefixd::bench {
namespace {

using Tokens = std::vector<block::Token>;
constexpr uint32_t kPrompt = 32'768, kBlock = 64;
constexpr uint64_t kBytesOfBlock = 6'000;  // an extent of 4 KiB, and the index

// The smallest pages: what is behind a block does not count here.
block::SpaceIdentity TinyIdentity() {
  block::SpaceIdentity identity;
  identity.model = "tiny pages";
  identity.weights_digest[0] = std::byte{1};
  identity.tenant = "local";
  identity.block_tokens = kBlock;
  const quant::TensorFormat format = quant::RawFormat(quant::Dtype::kF16);
  block::LayerGroup group;
  group.name = "full.0";
  group.layers = {0};
  group.kv_heads = 1;
  group.key_dim = group.value_dim = 8;
  group.ladder = {{.key = format, .value = format}};
  identity.groups = {group};
  return identity;
}

double ThreadCpuMicros() {
  timespec time;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

class MatchTimer {
 public:
  // `blocks`: that the budget has room for.
  MatchTimer(Bench& bench, uint64_t blocks) : bench_(bench) {
    cache::Options options;
    // A sixteenth of it is the index's: it must not run into its limit.
    options.ram_budget_bytes = (uint64_t{1} << 30) + blocks * 18 * 1'024;
    auto own = OwnCache::Open(options, TinyIdentity());
    if (bench_.Check(own.ok(), own.status().ToString())) own_ = *std::move(own);
  }
  bool ready() const { return own_ != nullptr; }

  // Prompts of kPrompt tokens that fork off each other, until `blocks` are stored.
  bool Grow(uint64_t blocks) {
    while (blocks_ < blocks) {
      const Tokens base = prompts_.empty() ? Tokens() : prompts_[Mix(++seed_) % prompts_.size()];
      prompts_.push_back(Fork(base, kPrompt / 2));
      if (!Store(prompts_.back())) return false;
    }
    return true;
  }
  // `children` blocks under the first block of the first prompt.
  bool AddChildren(uint64_t children) {
    for (uint64_t i = 0; i < children; ++i) {
      Tokens tokens(prompts_[0].begin(), prompts_[0].begin() + kBlock);
      while (tokens.size() < 2 * kBlock) tokens.push_back(Token());
      if (!Store(tokens)) return false;
    }
    return true;
  }

  struct Times {
    std::vector<double> us, cpu_us;  // cpu: without what else the machine does
  };
  Times Time(uint64_t calls) {
    Times times;
    for (uint64_t call = 0; call < calls; ++call) {
      // The first prompt in every second call: it goes through the crowded block.
      const Tokens& prompt = prompts_[call % 2 == 0 ? 0 : Mix(++seed_) % prompts_.size()];
      v1::AcquireRequest request;
      request.set_session(own_->session().value);
      request.add_items()->mutable_sequence()->set_space(own_->space().value);
      request.mutable_items(0)->mutable_sequence()->mutable_tokens()->Add(prompt.begin(),
                                                                          prompt.end());
      v1::AcquireReply reply;
      const double cpu = ThreadCpuMicros();
      const double start = NowMicros();
      const absl::Status status = Match(&request, &reply);
      times.us.push_back(NowMicros() - start);
      times.cpu_us.push_back(ThreadCpuMicros() - cpu);
      if (!bench_.Check(status.ok(), status.ToString()) ||
          !bench_.Check(reply.answers(0).restorable_tokens() == prompt.size(),
                        "match: a stored prompt is not found whole")) {
        return {};
      }
    }
    return times;
  }
  uint64_t blocks() const { return blocks_; }

 private:
  block::Token Token() { return static_cast<block::Token>(Mix(++seed_) % 128'000); }
  Tokens Fork(const Tokens& base, size_t limit) {
    const size_t keep = base.empty() ? 0 : Mix(++seed_) % limit;
    Tokens prompt(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(keep));
    while (prompt.size() < kPrompt) prompt.push_back(Token());
    blocks_ += kPrompt / kBlock - keep / kBlock;
    return prompt;
  }
  bool Store(const Tokens& tokens) {
    const absl::Status status = own_->Store(tokens);
    return bench_.Check(status.ok(), status.ToString());
  }
  // What the service does between the two ends of gRPC.
  absl::Status Match(v1::AcquireRequest* request, v1::AcquireReply* reply) {
    PREFIXD_ASSIGN_OR_RETURN(const std::vector<block::Request> items,
                             wire::TakeItems(request, std::numeric_limits<uint64_t>::max()));
    for (const block::Request& item : items) {
      PREFIXD_ASSIGN_OR_RETURN(const block::MatchAnswer match,
                               own_->cache().Match(own_->session(), item));
      wire::ToProto({}, match, {}, reply->add_answers());
    }
    reply->set_epoch(own_->cache().epoch());
    return absl::OkStatus();
  }

  Bench& bench_;
  std::unique_ptr<OwnCache> own_;
  std::vector<Tokens> prompts_;
  uint64_t blocks_ = 0;
  uint64_t seed_ = 0;
};

void Judge(Bench& bench, const std::string& name, const MatchTimer::Times& times, double scale) {
  if (times.us.empty()) return;
  const struct {
    const char* name;
    double q, limit_us;
  } quantiles[] = {{"p50", 0.5, 60}, {"p99", 0.99, 200}};
  for (const auto& quantile : quantiles) {
    const double seen = Quantile(times.us, quantile.q);
    bench.Judge(
        {.name = absl::StrCat(name, ", ", quantile.name),
         .ours = absl::StrCat(quantile.name, " ", MicrosText(seen)),
         .reference = absl::StrCat("of CPU time ", MicrosText(Quantile(times.cpu_us, quantile.q))),
         .measure = "server time",
         .seen = seen,
         .limit = quantile.limit_us * scale,
         .unit = " us",
         .runs = times.us.size(),
         .spread_percent = SpreadPercent(times.us)});
  }
}

}  // namespace

void ShareMatch(Bench& bench) {
  const uint64_t calls = bench.Parameter("match_calls", 20, 2'000, 10'000);
  const uint64_t few = bench.Parameter("match_blocks", 1'024, 100'000, 100'000);
  const uint64_t many = bench.Parameter("match_many_blocks", 2'048, 1'000'000, 1'000'000);
  const uint64_t fitting = FittingBytes(bench, many * kBytesOfBlock) / kBytesOfBlock;
  MatchTimer timer(bench, fitting + few);
  if (!timer.ready() || !timer.Grow(few)) return;
  const std::string what = absl::StrCat("match ", kPrompt, " tokens at ");
  Judge(bench, absl::StrCat(what, timer.blocks(), " blocks"), timer.Time(calls), 1);
  if (!timer.AddChildren(few)) return;
  Judge(bench, absl::StrCat(what, few, " children of one block"), timer.Time(calls), 1);
  if (!timer.Grow(fitting)) return;
  Judge(bench, absl::StrCat(what, timer.blocks(), " blocks"), timer.Time(calls), 2);
}

}  // namespace prefixd::bench
