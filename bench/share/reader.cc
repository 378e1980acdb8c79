// The worker processes of the read figures: one leases a prefix and reads it in place, one fetches.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>

#include "bench/common/child_roles.h"
#include "bench/common/page_store.h"
#include "bench/common/partner.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/reference_loops.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/timing.h"

namespace prefixd::bench {
namespace {

// Private memory with as many bytes, in pages of the kernel as large as the arena's.
class PrivateCopy {
 public:
  PrivateCopy(uint64_t bytes, bool huge) : bytes_(bytes) {
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    ::madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(memory, 5, bytes);
    data_ = static_cast<std::byte*>(memory);
  }
  ~PrivateCopy() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  PrivateCopy(const PrivateCopy&) = delete;
  PrivateCopy& operator=(const PrivateCopy&) = delete;
  std::byte* data() const { return data_; }

 private:
  const uint64_t bytes_;
  std::byte* data_ = nullptr;
};

class Reader {
 public:
  Reader(std::unique_ptr<RawSession> session, uint64_t space, uint64_t number, uint32_t tokens)
      : session_(std::move(session)), sequence_(MakeSequence(space, number, tokens)) {}

  nlohmann::json Answer(const std::string& order) {
    if (order == "acquire") {
      const absl::Status status = AcquireAndCompare(*session_, source_, sequence_, &answer_);
      return {{"error", status.ok() ? "" : status.ToString()}};
    }
    if (order == "read") return Read();
    return {{"error", "unknown order " + order}};
  }

 private:
  // In place against private memory, in turns.
  nlohmann::json Read() {
    const uint64_t bytes = sequence_.tokens.size() * source_.bytes_per_token();
    const bool huge = ArenaIsHuge();
    const PrivateCopy copy(bytes, huge);
    if (copy.data() == nullptr) return {{"error", "no private memory"}};
    constexpr int kRounds = 7;
    std::vector<double> in_place, in_private;
    for (int round = 0; round < kRounds; ++round) {
      in_place.push_back(
          ReadPages([&](uint64_t offset, uint64_t) { return session_->page(offset); }));
      in_private.push_back(ReadPages([&](uint64_t, uint64_t at) { return copy.data() + at; }));
    }
    return {{"error", ""},
            {"bytes", bytes},
            {"huge", huge},
            {"in_place_us", in_place},
            {"private_us", in_private},
            {"sum", sum_}};
  }
  // Every page of the lease, group by group, at `place(arena offset, bytes before it)`.
  template <typename Place>
  double ReadPages(Place place) {
    const double start = NowMicros();
    uint64_t before = 0;
    for (const v1::GroupPages& pages : answer_.pages()) {
      const uint64_t bytes = source_.page_bytes(pages.group());
      for (int block = 0; block < pages.offset_size(); ++block) {
        sum_ += StreamRead(place(pages.offset(block), before), bytes / 512 * 512);
        before += bytes;
      }
    }
    return NowMicros() - start;
  }

  const PageSource source_{SharedGeometry()};
  const std::unique_ptr<RawSession> session_;
  const RawSequence sequence_;
  v1::Answer answer_;
  uint64_t sum_ = 0;
};

}  // namespace

int RunShareReader(const nlohmann::json& plan) {
  auto session = RawSession::Open({.address = plan.at("address"), .name = "share-reader"});
  if (!session.ok()) return 1;
  const auto space = (*session)->OpenSpace(PageSource(SharedGeometry()).identity());
  if (!space.ok()) return 1;
  Reader reader(*std::move(session), *space, plan.at("number"), plan.at("tokens"));
  TellParent({{"error", ""}});
  for (std::string order; HearParent(&order);) TellParent(reader.Answer(order));
  return 0;
}

// Fetches the same lease until told to stop.
int RunShareFetcher(const nlohmann::json& plan) {
  auto session = RawSession::Open(
      {.address = plan.at("address"), .name = "share-fetcher", .wants_arena = false});
  if (!session.ok()) return 1;
  const PageSource source(SharedGeometry());
  const auto space = (*session)->OpenSpace(source.identity());
  if (!space.ok()) return 1;
  const RawSequence sequence = MakeSequence(*space, plan.at("number"), plan.at("tokens"));
  v1::Answer answer;
  absl::Status status = AcquireAndCompare(**session, source, sequence, &answer);
  TellParent({{"error", status.ok() ? "" : status.ToString()}});
  uint64_t bytes = 0;
  const double start = NowMicros();
  while (status.ok() && !ParentWaits()) {
    Moved moved;
    status = FetchAll(**session, source, sequence, answer.lease(), bytes == 0, &moved);
    bytes += moved.bytes;
  }
  TellParent({{"error", status.ok() ? "" : status.ToString()},
              {"bytes", bytes},
              {"us", NowMicros() - start}});
  return 0;
}

}  // namespace prefixd::bench
