// Acquire of resident prefixes against an empty call on the same socket.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"
#include "wire/limits.h"

namespace prefixd::bench {
namespace {

const Geometry kSmall{.model = "4 KiB a token", .layers = 2, .kv_heads = 8, .dim = 128};
constexpr uint32_t kShort = 2'048, kBatch = 32;

volatile uint8_t g_first_byte;  // what was read is used

class AcquireTimer {
 public:
  AcquireTimer(Bench& bench, RawSession& session)
      : bench_(bench), session_(session), empty_(session.channel()) {}

  double EmptyCall() {
    if (!Settle()) return -1;
    const double start = NowMicros();
    return bench_.Check(empty_.Run(), "the health service does not answer") ? NowMicros() - start
                                                                            : -1;
  }
  // From the tokens to the first byte of the last group. What the turn before holds goes back
  // outside the time: it is of another length.
  double Acquire(const RawSequence& sequence) {
    if (!Settle()) return -1;
    const double start = NowMicros();
    v1::AcquireRequest request = AcquireOf(session_, sequence);
    request.mutable_items(0)->set_table(true);  // as our client library does
    const absl::StatusOr<v1::AcquireReply> reply = session_.Acquire(request);
    return Read(reply, sequence.tokens.size()) ? NowMicros() - start : -1;
  }
  // As many calls as the wire's limit of items makes it.
  double Batch(const std::vector<RawSequence>& items) {
    if (!Settle()) return -1;
    const double start = NowMicros();
    for (size_t first = 0; first < items.size(); first += wire::kMaxItems) {
      v1::AcquireRequest request;
      request.set_session(session_.id());
      const size_t end = std::min(items.size(), first + wire::kMaxItems);
      for (size_t i = first; i < end; ++i) {
        v1::AcquireRequest::Item* const item = request.add_items();
        item->set_table(true);
        v1::Sequence* const sequence = item->mutable_sequence();
        sequence->set_space(items[i].space);
        sequence->mutable_tokens()->Add(items[i].tokens.begin(), items[i].tokens.end());
      }
      if (!Read(session_.Acquire(request), kShort)) return -1;
    }
    return NowMicros() - start;
  }

 private:
  // Before each timed call, the reference too: an engine computes between its calls, so a call
  // finds both sides' threads asleep, and caches as no one call left them.
  bool Settle() {
    const absl::Status status = session_.Release(std::exchange(leases_, {}));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return bench_.Check(status.ok(), status.ToString());
  }
  bool Read(const absl::StatusOr<v1::AcquireReply>& reply, size_t tokens) {
    if (!bench_.Check(reply.ok(), reply.status().ToString())) return false;
    for (const v1::Answer& answer : reply->answers()) {
      leases_.push_back(answer.lease());
      const auto& offsets = answer.table().offset();
      if (answer.restorable_tokens() != tokens || offsets.empty()) {
        return bench_.Check(false,
                            absl::StrCat("acquire: ", answer.restorable_tokens(), " of ", tokens,
                                         " tokens: ", answer.ShortDebugString().substr(0, 300)));
      }
      g_first_byte = static_cast<uint8_t>(*session_.page(*offsets.rbegin()));
    }
    return true;
  }

  Bench& bench_;
  RawSession& session_;
  class EmptyCall empty_;
  std::vector<uint64_t> leases_;
};

// Everything that is acquired below, stored and compared.
struct Prefixes {
  RawSequence short_one, large_one, long_base, long_whole;
  std::vector<RawSequence> batch;
};

RawSequence FirstOf(RawSequence sequence, uint32_t tokens) {
  sequence.tokens.resize(tokens);
  return sequence;
}

std::optional<Prefixes> StoreAll(Bench& bench, RawSession& session, uint32_t long_tokens,
                                 uint32_t large_layers) {
  const PageSource small(kSmall);
  const PageSource large(
      {.model = "400 KiB a token", .layers = large_layers, .kv_heads = 8, .dim = 128});
  const auto small_space = session.OpenSpace(small.identity());
  const auto large_space = session.OpenSpace(large.identity());
  if (!bench.Check(small_space.ok() && large_space.ok(),
                   "open: " + small_space.status().ToString()))
    return std::nullopt;
  // By Put: a block of the large model is more than the staging that one session gets.
  const auto store = [&](const PageSource& source, const RawSequence& sequence) {
    absl::Status status = StorePut(session, source, sequence);
    v1::Answer answer;
    if (status.ok()) status = AcquireAndCompare(session, source, sequence, &answer);
    if (status.ok()) status = session.Release({answer.lease()});
    return bench.Check(status.ok(), status.ToString());
  };
  Prefixes all{.short_one = MakeSequence(*small_space, 1, kShort),
               .large_one = MakeSequence(*large_space, 1, kShort),
               .long_base = {},
               .long_whole = MakeSequence(*small_space, 2, long_tokens + kShort),
               .batch = {}};
  all.long_base = FirstOf(all.long_whole, long_tokens);
  if (!store(small, all.short_one) || !store(large, all.large_one) || !store(small, all.long_whole))
    return std::nullopt;
  for (uint32_t i = 0; i < kBatch; ++i) {  // half of it in common; pages are named by their writer
    RawSequence one = MakeSequence(*small_space, 100 + i, kShort);
    std::copy_n(all.short_one.tokens.begin(), kShort / 2, one.tokens.begin());
    const absl::Status status = StoreStaged(session, small, one);
    if (!bench.Check(status.ok(), status.ToString())) return std::nullopt;
    all.batch.push_back(std::move(one));
  }
  return all;
}

}  // namespace

void ShareAcquire(Bench& bench) {
  const uint64_t rounds = bench.Parameter("acquire_rounds", 3, 200, 2'000);
  const auto long_tokens =
      static_cast<uint32_t>(bench.Parameter("long_tokens", 4'096, 131'072, 131'072));
  // 188 layers of 2,176 bytes a token: 400 KiB. Smoke: nothing is claimed of its sizes.
  const auto large_layers = static_cast<uint32_t>(bench.Parameter("large_layers", 16, 188, 188));
  const auto daemon = StartSharedDaemon(bench, "acquire", (bench.smoke() ? 1'024 : 4'096) * kMiB);
  if (daemon == nullptr) return;
  const auto session =
      RawSession::Open({.address = daemon->process->address(), .staging_bytes = 64 * kMiB});
  if (!bench.Check(session.ok(), session.status().ToString())) return;
  if (!bench.Check((*session)->attached().arena(),
                   "no arena: " + (*session)->attached().why_no_arena()))
    return;
  const std::optional<Prefixes> all = StoreAll(bench, **session, long_tokens, large_layers);
  if (!all.has_value()) return;
  AcquireTimer timer(bench, **session);
  enum Call : size_t { kEmpty, kShortOne, kLargeOne, kBatched, kLong };
  const Turns turns = TakeTurns(
      rounds,
      {[&] { return timer.EmptyCall(); }, [&] { return timer.Acquire(all->short_one); },
       [&] { return timer.Acquire(all->large_one); }, [&] { return timer.Batch(all->batch); },
       [&] { return timer.Acquire(all->long_base); }});
  if (!bench.Check(turns.good, "an Acquire failed")) return;
  const std::string empty = "empty RPC";
  JudgeLatency(bench, turns, {"acquire 2048", kShortOne, kEmpty, empty, 1.5});
  JudgeLatency(bench, turns,
               {absl::StrCat("acquire ", long_tokens, " cold"), kLong, kEmpty, empty, 8});
  JudgeLatency(bench, turns, {"acquire batch of 32 x 2048", kBatched, kEmpty, empty, 6});
  JudgeLatency(bench, turns,
               {"acquire 2048 of 400 KiB a token", kLargeOne, kShortOne, "of 4 KiB a token", 1.2});
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
