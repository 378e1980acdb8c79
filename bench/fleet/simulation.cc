#include "bench/fleet/simulation.h"

#include <algorithm>

namespace prefixd::bench {
namespace {

// As in cache/far and cache/remote_options.h.
constexpr uint32_t kKvBlockTokens = 64;
constexpr uint64_t kMostNames = 65'536;
constexpr int64_t kPresentUs = 3'600'000'000, kPassedUs = 600'000'000;
constexpr uint32_t kTouchedAtOnce = 256;
constexpr double kLoadPatienceUs = 2e6, kStorePatienceUs = 5e6;
constexpr double kRoundTripUs = 200;

}  // namespace

double FleetLink::WaitAt(int64_t now_us) const {
  return std::max(0.0, free_us_ - static_cast<double>(now_us));
}

double FleetLink::Send(int64_t now_us, uint64_t bytes) {
  const auto now = static_cast<double>(now_us);
  free_us_ = std::max(free_us_, now) + static_cast<double>(bytes) / bytes_per_us_;
  return free_us_ - now;
}

struct Fleet::Host {
  Host(const FleetShape& shape, const FleetRules& rules, const base::Clock* clock)
      : ram(shape.ram_bytes / shape.block_bytes()),
        present(kMostNames * kKvBlockTokens / shape.block_tokens),
        passed(kMostNames * kKvBlockTokens / shape.block_tokens),
        reads(shape.host_bytes_per_s),
        budget({.bytes_per_s = rules.write_budget ? rules.write_bytes_per_s : 0,
                .window = rules.write_window},
               clock) {}

  RecentBlocks ram;
  RecentBlocks present;  // blocks that it believes to be in the shared tier
  RecentBlocks passed;   // blocks that the write budget passed over
  FleetLink reads;
  cache::WriteBudget budget;
  cache::LoadModel model;
};

Fleet::Fleet(const FleetShape& shape, const FleetRules& rules, uint64_t seed)
    : shape_(shape),
      rules_(rules),
      router_(rules.routing, shape.hosts, seed),
      far_(shape.far_bytes / shape.block_bytes()),
      reads_(shape.storage_bytes_per_s),
      writes_(shape.storage_bytes_per_s) {
  for (uint32_t i = 0; i < shape.hosts; ++i) {
    hosts_.push_back(std::make_unique<Host>(shape, rules, &clock_));
  }
}

Fleet::~Fleet() = default;

size_t Fleet::Found(Host& host, std::span<const FleetBlock> missing) {
  size_t found = 0;
  for (; found < missing.size() && far_.Touch(missing[found]); ++found) {
    host.present.Add(missing[found], now_us_);
  }
  if (rules_.forgets_absent && found < missing.size()) host.present.Forget(missing[found]);
  return found;
}

// As the daemon: where the time that is saved by not computing, less the time to load, is largest.
size_t Fleet::WhatPays(const Host& host, size_t found) const {
  if (!rules_.cost) return found;
  size_t best = 0;
  double best_saved_us = 0;
  for (size_t blocks = 1; blocks <= found; ++blocks) {
    const double computed_us =
        static_cast<double>(blocks * shape_.block_tokens) * 1e6 / shape_.prefill_tokens_per_s;
    const auto loaded_us =
        static_cast<double>(host.model.EstimateMicros(0, 0, blocks * shape_.block_bytes()));
    if (computed_us - loaded_us <= best_saved_us) continue;
    best = blocks;
    best_saved_us = computed_us - loaded_us;
  }
  return best;
}

size_t Fleet::Load(Host& host, size_t blocks, double* us) {
  if (blocks == 0) return 0;
  const uint64_t bytes = blocks * shape_.block_bytes();
  if (std::max(reads_.WaitAt(now_us_), host.reads.WaitAt(now_us_)) > kLoadPatienceUs) {
    ++result_.late;
    *us += kLoadPatienceUs;
    return 0;
  }
  const double took_us =
      kRoundTripUs + std::max(reads_.Send(now_us_, bytes), host.reads.Send(now_us_, bytes));
  host.model.LearnFar(bytes, static_cast<uint64_t>(took_us));
  result_.read_bytes += bytes;
  *us += took_us;
  return blocks;
}

void Fleet::LearnPresent(Host& host, std::span<const FleetBlock> path) {
  std::vector<FleetBlock> unknown;
  for (const FleetBlock block : path) {
    const bool known =
        host.present.Contains(block) && now_us_ - host.present.at_us(block) < kPresentUs;
    if (!known) unknown.push_back(block);
    if (!known) host.present.Forget(block);
  }
  if (!rules_.exists_first) return;
  const size_t at_once = kTouchedAtOnce * kKvBlockTokens / shape_.block_tokens;
  for (size_t begin = 0; begin < unknown.size(); begin += at_once) {
    const size_t end = std::min(begin + at_once, unknown.size());
    bool last = false;
    for (size_t i = begin; i < end; ++i) {
      last = far_.Touch(unknown[i]);
      if (last) host.present.Add(unknown[i], now_us_);
    }
    if (!last) return;
  }
}

bool Fleet::MayWrite(Host& host, FleetBlock block, size_t place) {
  const cache::Admission admits = host.budget.admits();
  if (admits == cache::Admission::kAll) return true;
  const bool came_before =
      host.passed.Contains(block) && now_us_ - host.passed.at_us(block) < kPassedUs;
  const bool likely = place * shape_.block_tokens < rules_.shallow_tokens || came_before;
  if (admits == cache::Admission::kLikelyReuse && likely) return true;
  host.passed.Add(block, now_us_);
  return false;
}

void Fleet::Write(Host& host, std::span<const FleetBlock> path) {
  LearnPresent(host, path);
  for (size_t i = 0; i < path.size(); ++i) {
    if (host.present.Contains(path[i])) continue;
    if (!MayWrite(host, path[i], i) || writes_.WaitAt(now_us_) > kStorePatienceUs) return;
    const uint64_t bytes = shape_.block_bytes();
    writes_.Send(now_us_, bytes);
    if (far_.Contains(path[i])) result_.written_again += bytes;
    far_.Add(path[i]);
    host.budget.Take(bytes);
    host.present.Add(path[i], now_us_);
    host.passed.Forget(path[i]);
    result_.written_bytes += bytes;
  }
}

void Fleet::AdvanceTo(int64_t at_us) {
  const auto move = [this](int64_t to_us) {
    clock_.Advance(to_us - now_us_);
    now_us_ = to_us;
  };
  while (!offers_.empty() && offers_.top().due_us <= at_us) {
    const Offer offer = offers_.top();
    offers_.pop();
    move(offer.due_us);
    Write(*hosts_[offer.host], offer.path);
  }
  move(at_us);
}

void Fleet::Serve(int64_t at_us, std::span<const FleetBlock> path) {
  if (result_.requests++ == 0) begun_us_ = now_us_ = at_us;
  AdvanceTo(at_us);
  result_.duration_us = now_us_ - begun_us_;
  const uint32_t number = router_.HostOf(path);
  Host& host = *hosts_[number];
  const size_t local = host.ram.Leading(path);
  size_t far = 0;
  double us = 0;
  if (rules_.far) {
    const size_t found = Found(host, path.subspan(local));
    const size_t worth = WhatPays(host, found);
    result_.not_worth += (found - worth) * shape_.block_tokens;
    far = Load(host, worth, &us);
  }
  const size_t none = path.size() - local - far;
  result_.local += local * shape_.block_tokens;
  result_.far += far * shape_.block_tokens;
  result_.none += none * shape_.block_tokens;
  us += static_cast<double>(none * shape_.block_tokens) * 1e6 / shape_.prefill_tokens_per_s;
  result_.first_token_us += us;
  host.ram.Use(path);
  if (!rules_.far) return;
  offers_.push({now_us_ + static_cast<int64_t>(us), number, {path.begin(), path.end()}});
}

}  // namespace prefixd::bench
