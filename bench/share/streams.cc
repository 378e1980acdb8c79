// Pages over the socket and through staging, against the loops that set their limits.
#include <unistd.h>

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

// One way of moving bytes, round by round: time, and the CPU time of both sides.
struct Way {
  std::vector<double> us, cpu_us;
  double bytes = 0;  // a round
  double rate() const { return bytes * 1e6 / Quantile(us, 0.5); }
  double cpu_seconds_per_gb() const { return Quantile(cpu_us, 0.5) * 1e3 / bytes; }
};

// `run` gives the bytes and us that count.
bool Round(pid_t other, const std::function<absl::StatusOr<Moved>()>& run, Bench& bench, Way* way) {
  const double cpu = OwnCpuMicros() + CpuMicros(other);
  const absl::StatusOr<Moved> moved = run();
  if (!bench.Check(moved.ok(), moved.status().ToString())) return false;
  way->cpu_us.push_back(OwnCpuMicros() + CpuMicros(other) - cpu);
  way->us.push_back(moved->us);
  way->bytes = static_cast<double>(moved->bytes);
  return true;
}

struct Contest {
  std::string name, reference_name;
  double at_least = 0;
};

void Judge(Bench& bench, const Contest& contest, const Way& ours, const Way& reference) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.us.size(); ++i) {
    ratios.push_back(ours.bytes / ours.us[i] / (reference.bytes / reference.us[i]));
  }
  bench.Judge({.name = contest.name,
               .ours = RateText(ours.bytes, Quantile(ours.us, 0.5)),
               .reference = contest.reference_name + " " +
                            RateText(reference.bytes, Quantile(reference.us, 0.5)),
               .seen = Quantile(ratios, 0.5),
               .at_most = false,
               .limit = contest.at_least,
               .runs = ratios.size(),
               .spread_percent = SpreadPercent(ratios)});
  bench.Add({contest.name + ", CPU seconds a GB",
             {{"ours", ours.cpu_seconds_per_gb()},
              {contest.reference_name, reference.cpu_seconds_per_gb()}}});
}

absl::StatusOr<Moved> Timed(uint64_t bytes, const std::function<bool()>& run) {
  const double start = NowMicros();
  if (!run()) return absl::InternalError("a reference loop failed");
  return Moved{.bytes = bytes, .us = NowMicros() - start};
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
    Way ours, raw;
    WarmUp();
    for (uint64_t round = 0; round < rounds; ++round) {
      const bool good =
          Round(
              pid(),
              [&]() -> absl::StatusOr<Moved> {
                Moved moved;
                const absl::Status fetched =
                    FetchAll(*session_, source_, sequence, answer.lease(), false, &moved);
                if (!fetched.ok()) return fetched;
                return moved;
              },
              bench_, &ours) &&
          Round(
              socket_->pid(),
              [&] { return Timed(bytes_, [&] { return socket_->ReceiveFrom(bytes_); }); }, bench_,
              &raw);
      if (!good) return;
    }
    bench_.Check(session_->Release({answer.lease()}).ok(), "release failed");
    Judge(bench_, {"fetch", "raw socket", 0.7}, ours, raw);
  }

  void Put(uint64_t rounds) {
    Way ours, raw;
    WarmUp();
    for (uint64_t round = 0; round < rounds; ++round) {
      const RawSequence sequence = MakeSequence(space_, ++number_, tokens_);
      const bool good =
          Round(
              pid(), [&] { return Store(StorePut, sequence); }, bench_, &ours) &&
          Round(
              socket_->pid(),
              [&] { return Timed(bytes_, [&] { return socket_->SendTo(bytes_); }); }, bench_, &raw);
      if (!good || !Compare(sequence) || !Forget()) return;
    }
    Judge(bench_, {"put", "raw socket", 0.7}, ours, raw);
  }

  void Commit(uint64_t rounds) {
    std::vector<std::byte> from(tokens_ / PageSource::kBlockTokens * source_.block_bytes());
    std::vector<std::byte> to(from.size());
    Way ours, copy;
    for (uint64_t round = 0; round < rounds; ++round) {
      const RawSequence sequence = MakeSequence(space_, ++number_, tokens_);
      const bool good = Round(
                            pid(), [&] { return Store(StoreStaged, sequence); }, bench_, &ours) &&
                        Round(
                            ::getpid(),
                            [&] {
                              return Timed(from.size(), [&] {
                                CopyBytes(from.data(), to.data(), from.size());
                                return true;
                              });
                            },
                            bench_, &copy);
      if (!good || !Compare(sequence) || !Forget()) return;
    }
    Judge(bench_, {"commit through staging", "memcpy", 0.6}, ours, copy);
  }

 private:
  using StoreCall = absl::Status (*)(RawSession&, const PageSource&, const RawSequence&, Moved*);

  pid_t pid() const { return daemon_.process->pid(); }
  // The reference's first round finds cold TLBs and sleeping CPUs: it does not count.
  void WarmUp() {
    bench_.Check(socket_->ReceiveFrom(bytes_) && socket_->SendTo(bytes_), "the raw socket failed");
  }
  absl::StatusOr<Moved> Store(StoreCall store, const RawSequence& sequence) {
    Moved moved;
    const absl::Status status = store(*session_, source_, sequence, &moved);
    if (!status.ok()) return status;
    return moved;
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
