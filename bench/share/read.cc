// Many workers on one prefix: what each takes of its own, and how fast it reads in place.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/partner.h"
#include "bench/common/patience.h"
#include "bench/common/process_memory.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kNumber = 1;

// The daemon with the prefix, and its workers.
class Readers {
 public:
  Readers(Bench& bench, SharedDaemon& daemon) : bench_(bench), daemon_(daemon) {}

  bool Start(uint64_t workers, uint32_t tokens) {
    for (uint64_t i = 0; i < workers; ++i) {
      auto reader = Partner::Start(
          "share-reader",
          {{"address", daemon_.process->address()}, {"number", kNumber}, {"tokens", tokens}});
      if (!bench_.Check(reader.ok(), reader.status().ToString())) return false;
      readers_.push_back(*std::move(reader));
    }
    for (const auto& reader : readers_) {
      if (GoodAnswer(bench_, reader->Hear(kPatience)).is_null()) return false;
    }
    return true;
  }
  nlohmann::json Ask(size_t reader, const std::string& order) {
    return GoodAnswer(bench_, readers_[reader]->Ask(order, kPatience));
  }
  bool AskAll(const std::string& order) {
    for (const auto& reader : readers_) reader->Say(order);
    for (const auto& reader : readers_) {
      if (GoodAnswer(bench_, reader->Hear(kPatience)).is_null()) return false;
    }
    return true;
  }
  std::vector<MemoryUse> Use() const {
    std::vector<MemoryUse> use{MemoryUseOf(daemon_.process->pid())};
    for (const auto& reader : readers_) use.push_back(MemoryUseOf(reader->pid()));
    return use;
  }

 private:
  Bench& bench_;
  SharedDaemon& daemon_;
  std::vector<std::unique_ptr<Partner>> readers_;
};

void JudgeMemory(Bench& bench, const std::vector<MemoryUse>& before,
                 const std::vector<MemoryUse>& after, double bytes) {
  double most = 0, pss = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    pss += Number(after[i].pss_bytes) - Number(before[i].pss_bytes);
    if (i == 0) continue;  // the daemon
    most = std::max(most, Number(after[i].private_bytes) - Number(before[i].private_bytes));
  }
  const std::string workers = absl::StrCat(before.size() - 1, " workers, one prefix: ");
  bench.Judge({.name = workers + "private growth of a worker",
               .ours = "most " + BytesText(most),
               .reference = "prefix " + BytesText(bytes),
               .measure = "share",
               .seen = 100 * most / bytes,
               .limit = 1,
               .unit = " %",
               .runs = before.size() - 1});
  bench.Judge({.name = workers + "growth of all Pss",
               .ours = BytesText(pss),
               .reference = "prefix " + BytesText(bytes),
               .seen = pss / bytes,
               .limit = 1.02,
               .runs = 1});
}

void JudgeReading(Bench& bench, const nlohmann::json& read) {
  if (read.is_null()) return;
  const uint64_t bytes = read.at("bytes");
  const Rounds rounds{.bytes = {bytes, bytes},
                      .samples = {read.at("in_place_us"), read.at("private_us")}};
  const std::string pages = read.at("huge").get<bool>() ? "2 MiB" : "4 KiB";
  JudgeRate(bench, rounds,
            {.name = "read a hit in place",
             .at_least = 0.9,
             .reference = "private memory of " + pages + " pages"});
}

}  // namespace

void ShareRead(Bench& bench) {
  const uint64_t workers = bench.Parameter("read_workers", 2, 8, 8);
  const uint64_t wanted = bench.Parameter("read_prefix_bytes", 16 * kMiB, 512 * kMiB, 2048 * kMiB);
  const PageSource source(SharedGeometry());
  const uint64_t prefix = std::min(wanted, FittingBytes(bench, wanted * 5 / 2) * 2 / 5);
  const auto tokens =
      static_cast<uint32_t>(prefix / source.block_bytes() * PageSource::kBlockTokens);
  const auto daemon = StartSharedDaemon(bench, "read", prefix * 5 / 2 + 192 * kMiB);
  if (daemon == nullptr) return;
  Readers readers(bench, *daemon);
  if (!readers.Start(workers, tokens)) return;
  const std::vector<MemoryUse> before = readers.Use();
  {
    const auto writer = RawSession::Open({.address = daemon->process->address(),
                                          .name = "share-writer",
                                          .staging_bytes = 64 * kMiB});
    if (!bench.Check(writer.ok(), writer.status().ToString())) return;
    const auto space = (*writer)->OpenSpace(source.identity());
    if (!bench.Check(space.ok(), space.status().ToString())) return;
    const absl::Status stored =
        StoreStaged(**writer, source, MakeSequence(*space, kNumber, tokens));
    if (!bench.Check(stored.ok(), stored.ToString())) return;
  }
  if (!readers.AskAll("acquire")) return;
  JudgeMemory(bench, before, readers.Use(), Number(tokens * source.bytes_per_token()));
  JudgeReading(bench, readers.Ask(0, "read"));
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
