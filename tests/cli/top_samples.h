// What a daemon that serves requests would say, sample by sample.
#pragma once
#include <string>

#include "client/cli/top/frame.h"
#include "tests/cli/samples.h"

namespace prefixd::cli {

// A daemon that is asked for the same number of tokens each second.
class BusyDaemon {
 public:
  // It is asked for so many tokens: `found` of them come from RAM, `from_ssd` from SSD.
  void Serve(uint64_t requested, uint64_t found, uint64_t from_ssd = 0) {
    requested_ += requested;
    ram_ += found;
    ssd_ += from_ssd;
  }
  void Write(uint64_t bytes, uint64_t again = 0) {
    written_ += bytes;
    rewritten_ += again;
  }
  // `blocks` that were idle for 2^power to 2^(power + 1) milliseconds.
  void Evict(uint64_t blocks, size_t power) { evicted_[power] += blocks; }
  void Restart() { *this = BusyDaemon(epoch_ + 1); }

  v1::GetStatsReply Stats(double uptime_s) const {
    v1::GetStatsReply stats = SampleStats();
    stats.set_epoch(epoch_);
    stats.set_uptime_s(uptime_s);
    stats.clear_counters();
    AddCount("tokens.requested", requested_, stats.mutable_counters());
    AddCount("tokens.matched", ram_ + ssd_, stats.mutable_counters());
    AddCount("tokens.restorable.ram", ram_, stats.mutable_counters());
    AddCount("tokens.restorable.ssd", ssd_, stats.mutable_counters());
    AddCount("tokens.restorable", ram_ + ssd_, stats.mutable_counters());
    AddCount("tokens.used", ram_ + ssd_, stats.mutable_counters());
    AddCount("bytes.spilled", written_, stats.mutable_counters());
    AddCount("bytes.rewritten", rewritten_, stats.mutable_counters());
    AddCount("rpc.acquire", requested_ / 100, stats.mutable_counters());
    v1::Ages* ages = stats.add_ages();
    ages->set_name("idle_at_eviction");
    for (const uint64_t count : evicted_) ages->add_buckets(count);
    v1::SpaceTokens* tokens = stats.mutable_spaces(0)->mutable_tokens();
    tokens->set_requested(requested_);
    tokens->set_matched(ram_ + ssd_);
    tokens->mutable_restorable()->set_ram(ram_);
    tokens->mutable_restorable()->set_ssd(ssd_);
    tokens->mutable_used()->set_ram(ram_ + ssd_);
    return stats;
  }

  explicit BusyDaemon(uint64_t epoch = 7) : epoch_(epoch), evicted_(32, 0) {}

 private:
  uint64_t epoch_;
  uint64_t requested_ = 0, ram_ = 0, ssd_ = 0, written_ = 0, rewritten_ = 0;
  std::vector<uint64_t> evicted_;
};

// A view of a daemon that was asked for 100 tokens a second, `seconds` long, and had 75 of them.
inline TopView BusyView(int seconds) {
  TopView view;
  view.address = "unix:///run/prefixd/prefixd.sock";
  BusyDaemon daemon;
  for (int second = 0; second <= seconds; ++second) {
    if (second > 0) daemon.Serve(100, 50, 25);
    if (second > 0) daemon.Write(1 << 20, 1 << 18);
    if (second > 0) daemon.Evict(4, 10);
    view.history.Add(second, daemon.Stats(second + 1));
  }
  Sample sample{.health = "serving", .stats = daemon.Stats(seconds + 1)};
  const v1::ListSessionsReply sessions = SampleSessions();
  for (const auto& session : sessions.sessions()) {
    sample.sessions[session.session()] = session;
  }
  const v1::ListLeasesReply leases = SampleLeases();
  sample.leases.assign(leases.leases().begin(), leases.leases().end());
  view.latest = sample;
  return view;
}

}  // namespace prefixd::cli
