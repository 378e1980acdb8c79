// What it takes to look for a long chain: its names, and the questions to the store.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/stored_sequences.h"
#include "bench/common/timing.h"
#include "bench/remote/redis_process.h"
#include "bench/remote/remote.h"
#include "bench/remote/small_host.h"
#include "remote/names.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kBlockTokens = 64;

// A store that counts how often it is asked for records.
class CountingStore final : public remote::RemoteStore {
 public:
  explicit CountingStore(std::shared_ptr<remote::RemoteStore> store) : store_(std::move(store)) {}
  std::vector<remote::FoundRecord> Find(std::span<const std::string> names,
                                        base::Deadline deadline) override {
    ++finds;
    return store_->Find(names, deadline);
  }
  absl::Status Load(const std::string& name, std::span<const remote::Runs> stripes,
                    base::Deadline deadline) override {
    return store_->Load(name, stripes, deadline);
  }
  absl::StatusOr<std::vector<bool>> Touch(std::span<const std::string> names,
                                          base::Deadline deadline) override {
    return store_->Touch(names, deadline);
  }
  absl::Status Store(const std::string& name, std::span<const std::byte> record,
                     std::span<const remote::ConstRuns> stripes, base::Deadline deadline) override {
    return store_->Store(name, record, stripes, deadline);
  }
  absl::StatusOr<uint64_t> ReadNumber(const std::string& name, base::Deadline deadline) override {
    return store_->ReadNumber(name, deadline);
  }
  absl::StatusOr<uint64_t> RaiseNumber(const std::string& name, base::Deadline deadline) override {
    return store_->RaiseNumber(name, deadline);
  }
  absl::StatusOr<uint64_t> RestoreNumber(const std::string& name, uint64_t least,
                                         base::Deadline deadline) override {
    return store_->RestoreNumber(name, least, deadline);
  }
  absl::Status WritePost(const std::string& board, const remote::Post& post,
                         std::chrono::seconds lifetime, base::Deadline deadline) override {
    return store_->WritePost(board, post, lifetime, deadline);
  }
  absl::StatusOr<std::vector<remote::Post>> ReadBoard(const std::string& board,
                                                      base::Deadline deadline) override {
    return store_->ReadBoard(board, deadline);
  }
  remote::RemoteStatus Status() const override { return store_->Status(); }

  std::atomic<uint64_t> finds{0};

 private:
  const std::shared_ptr<remote::RemoteStore> store_;
};

// Names of `blocks` blocks that follow each other.
std::vector<std::string> NamesOf(const std::vector<block::Token>& tokens) {
  const remote::Namer namer({}, 0, {});
  std::vector<std::string> names;
  remote::ChainName parent{};
  for (size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens) {
    parent = namer.Next(parent, {std::span(tokens).subspan(at, kBlockTokens), {}});
    names.push_back(remote::KeyOf(parent, "0"));
  }
  return names;
}

void TimeNames(Bench& bench, const std::vector<block::Token>& tokens, uint64_t rounds) {
  std::vector<double> us;
  for (uint64_t round = 0; round < rounds; ++round) {
    const double start = NowMicros();
    const size_t names = NamesOf(tokens).size();
    us.push_back(NowMicros() - start);
    bench.Check(names == tokens.size() / kBlockTokens, "names are missing");
  }
  bench.Add({absl::StrCat("names of ", tokens.size(), " tokens"),
             {{"median_us", Quantile(us, 0.5)}, {"spread_percent", SpreadPercent(us)}}});
}

// All names in one call of the store: one round trip.
void TimeStore(Bench& bench, remote::RemoteStore& store, const std::vector<block::Token>& tokens,
               uint64_t rounds) {
  const std::vector<std::string> names = NamesOf(tokens);
  const std::string record(500, 'r');
  for (const bool there : {false, true}) {
    for (const std::string& name : names) {
      if (!there) break;
      const absl::Status stored = store.Store(name, base::AsBytes(record), {}, OwnCache::Soon());
      if (!bench.Check(stored.ok(), stored.ToString())) return;
    }
    std::vector<double> us;
    bool good = true;
    for (uint64_t round = 0; round < rounds; ++round) {
      const double start = NowMicros();
      const auto found = store.Find(names, OwnCache::Soon());
      us.push_back(NowMicros() - start);
      for (const remote::FoundRecord& one : found) {
        good = good && (one.outcome == remote::FoundRecord::Outcome::kFound) == there;
      }
    }
    bench.Check(good, "the store found other records");
    bench.Add(
        {absl::StrCat("Find of ", names.size(),
                      there ? " names that are there" : " names of nothing"),
         {{"round_trips", 1}, {"p50_us", Quantile(us, 0.5)}, {"p99_us", Quantile(us, 0.99)}}});
  }
}

absl::Status TimeBring(Bench& bench, const std::shared_ptr<CountingStore>& store,
                       const std::vector<block::Token>& tokens, uint64_t rounds) {
  {
    PREFIXD_ASSIGN_OR_RETURN(const auto writer, OpenSmallHost({.store = store}));
    PREFIXD_RETURN_IF_ERROR(writer->Store(tokens));
    if (!writer->cache().WaitRemote(OwnCache::Soon())) {
      return absl::DeadlineExceededError("what was stored was not written");
    }
  }
  for (const bool there : {false, true}) {
    std::vector<double> us;
    uint64_t finds = 0, found = 0;
    for (uint64_t round = 0; round < rounds; ++round) {
      PREFIXD_ASSIGN_OR_RETURN(
          const auto host,
          OpenSmallHost({.store = store, .find_patience = std::chrono::milliseconds(2'000)}));
      const auto request = RequestOf(
          *host,
          there ? tokens
                : TokensOf({.seed = 99 + round, .tokens = static_cast<uint32_t>(tokens.size())}));
      const uint64_t before = store->finds;
      const double start = NowMicros();
      PREFIXD_ASSIGN_OR_RETURN(found, host->cache().Bring(host->session(), request));
      us.push_back(NowMicros() - start);
      finds = store->finds - before;
      if (found != (there ? tokens.size() : 0))
        return absl::InternalError("other blocks are there");
    }
    // A host that has just started makes two more round trips, for the generations.
    bench.Add({absl::StrCat("a host looks for ", tokens.size(),
                            there ? " tokens that are there" : " tokens of nothing"),
               {{"round_trips", static_cast<double>(finds + 2)},
                {"p50_us", Quantile(us, 0.5)},
                {"longest_us", Quantile(us, 1)}}});
  }
  return absl::OkStatus();
}

}  // namespace

void RemoteFind(Bench& bench) {
  const uint64_t length = bench.Parameter("chain_tokens", 2'048, 32'768);
  const uint64_t rounds = bench.Parameter("find_rounds", 2, 50, 200);
  const auto redis = RedisProcess::Start(bench.directory() + "/find");
  if (!bench.Check(redis.ok(), redis.status().ToString())) return;
  auto opened = (*redis)->OpenStore();
  if (!bench.Check(opened.ok(), opened.status().ToString())) return;
  const auto store = std::make_shared<CountingStore>(*std::move(opened));
  const auto tokens = TokensOf({.seed = 24, .tokens = static_cast<uint32_t>(length)});
  TimeNames(bench, tokens, rounds);
  TimeStore(bench, *store, tokens, rounds);
  const absl::Status brought = TimeBring(bench, store, tokens, std::max<uint64_t>(rounds / 10, 1));
  bench.Check(brought.ok(), brought.ToString());
}

}  // namespace prefixd::bench
