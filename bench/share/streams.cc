// Pages over the socket and through staging, against the loops that set their limits.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/daemon_stats.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

void Judge(Bench& bench, const RateTarget& target, const MovedRounds& rounds) {
  JudgeRate(bench, rounds, target);
  bench.Add({target.name + ", CPU seconds a GB",
             {{"ours", rounds.CpuSecondsPerGb(0)}, {target.reference, rounds.CpuSecondsPerGb(1)}}});
}

class Streams {
 public:
  Streams(Bench& bench, SharedDaemon& daemon, SocketPeer* socket, uint64_t bytes)
      : bench_(bench), daemon_(daemon), socket_(socket), stats_(daemon.process->address()) {
    tokens_ = static_cast<uint32_t>(bytes / source_.block_bytes() * PageSource::kBlockTokens);
    bytes_ = bytes / kMiB * kMiB;
  }

  bool Open() {
    auto session = RawSession::Open({.address = daemon_.process->address(),
                                     .name = "share-streams",
                                     .staging_bytes = 64 * kMiB});
    if (!bench_.Check(session.ok(), session.status().ToString())) return false;
    session_ = *std::move(session);
    return NewSpace();
  }

  void Fetch(uint64_t rounds) {
    const RawSequence sequence = MakeSequence(space_, ++number_, tokens_);
    v1::Answer answer;
    absl::Status status = StoreStaged(*session_, source_, sequence);
    if (status.ok()) status = AcquireAndCompare(*session_, source_, sequence, &answer);
    if (status.ok()) status = FetchAll(*session_, source_, sequence, answer.lease(), true);
    if (!bench_.Check(status.ok(), status.ToString())) return;
    MovedRounds seen;
    WarmUp();
    for (uint64_t round = 0; round < rounds; ++round) {
      const auto fetch = [&](Moved* moved) {
        return FetchAll(*session_, source_, sequence, answer.lease(), false, moved);
      };
      if (!Ours(fetch, &seen) || !RawSocket(true, &seen)) return;
    }
    bench_.Check(session_->Release({answer.lease()}).ok(), "release failed");
    Judge(bench_, {"fetch", 0.7, "raw socket"}, seen);
  }

  void Put(uint64_t rounds) {
    MovedRounds seen;
    WarmUp();
    for (uint64_t round = 0; round < rounds; ++round) {
      const RawSequence sequence = MakeSequence(space_, ++number_, tokens_);
      const auto put = [&](Moved* moved) { return StorePut(*session_, source_, sequence, moved); };
      if (!Ours(put, &seen) || !RawSocket(false, &seen)) return;
      if (!Compare(sequence) || !Forget()) return;
    }
    Judge(bench_, {"put", 0.7, "raw socket"}, seen);
  }

  void Commit(uint64_t rounds) {
    std::vector<std::byte> from(tokens_ / PageSource::kBlockTokens * source_.block_bytes());
    std::vector<std::byte> to(from.size());
    MovedRounds seen;
    for (uint64_t round = 0; round < rounds; ++round) {
      const RawSequence sequence = MakeSequence(space_, ++number_, tokens_);
      const auto commit = [&](Moved* moved) {
        return StoreStaged(*session_, source_, sequence, moved);
      };
      if (!Ours(commit, &seen)) return;
      const double cpu = OwnCpuMicros(), start = NowMicros();
      CopyBytes(from.data(), to.data(), from.size());
      seen.Add(1, from.size(), NowMicros() - start, OwnCpuMicros() - cpu);
      if (!Compare(sequence) || !Forget()) return;
    }
    Judge(bench_, {"commit through staging", 0.6, "memcpy"}, seen);
  }

 private:
  bool Ours(const std::function<absl::Status(Moved*)>& run, MovedRounds* seen) {
    const auto cpu = [&] { return OwnCpuMicros() + CpuMicros(daemon_.process->pid()); };
    const double before = cpu();
    Moved moved;
    const absl::Status status = run(&moved);
    if (!bench_.Check(status.ok(), status.ToString())) return false;
    seen->Add(0, moved.bytes, moved.us, cpu() - before);
    return true;
  }
  bool RawSocket(bool receives, MovedRounds* seen) {
    const auto cpu = [&] { return OwnCpuMicros() + CpuMicros(socket_->pid()); };
    const double before = cpu(), start = NowMicros();
    const bool good = receives ? socket_->ReceiveFrom(bytes_) : socket_->SendTo(bytes_);
    seen->Add(1, bytes_, NowMicros() - start, cpu() - before);
    return bench_.Check(good, "the raw socket failed");
  }
  // The reference's first round finds cold TLBs and sleeping CPUs: it does not count.
  void WarmUp() {
    bench_.Check(socket_->ReceiveFrom(bytes_) && socket_->SendTo(bytes_), "the raw socket failed");
  }
  bool Compare(const RawSequence& sequence) {
    v1::Answer answer;
    absl::Status status = AcquireAndCompare(*session_, source_, sequence, &answer);
    if (status.ok()) status = session_->Release({answer.lease()});
    return bench_.Check(status.ok(), status.ToString());
  }
  // The arena keeps its memory: what is measured next does not wait for the kernel's.
  bool Forget() {
    const absl::Status status = stats_.Clear();
    return bench_.Check(status.ok(), status.ToString()) && NewSpace();
  }
  bool NewSpace() {
    const auto space = session_->OpenSpace(source_.identity());
    if (!bench_.Check(space.ok(), space.status().ToString())) return false;
    space_ = *space;
    return true;
  }

  Bench& bench_;
  SharedDaemon& daemon_;
  SocketPeer* const socket_;
  DaemonStats stats_;
  const PageSource source_{SharedGeometry()};
  std::unique_ptr<RawSession> session_;
  uint64_t space_ = 0;
  uint64_t number_ = 0;
  uint32_t tokens_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace

void ShareStreams(Bench& bench, SocketPeer* socket) {
  const uint64_t wanted = bench.Parameter("stream_bytes", 8 * kMiB, 256 * kMiB, 1024 * kMiB);
  const uint64_t rounds = bench.Parameter("stream_rounds", 2, 9, 15);
  const uint64_t bytes = FittingBytes(bench, wanted);
  const auto daemon = StartSharedDaemon(bench, "streams", bytes * 5 / 2 + 192 * kMiB);
  if (daemon == nullptr) return;
  {
    Streams streams(bench, *daemon, socket, bytes);
    if (!streams.Open()) return;
    streams.Fetch(rounds);
    streams.Put(rounds);
    streams.Commit(rounds);
  }
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
