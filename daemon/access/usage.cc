#include "daemon/access/usage.h"

namespace prefixd::daemon {

std::shared_ptr<Usage::Gauges> Usage::GaugesOf(const std::string& name) {
  base::MutexLock lock(mutex_);
  std::weak_ptr<Gauges>& kept = gauges_[name];
  std::shared_ptr<Gauges> gauges = kept.lock();
  if (gauges == nullptr) kept = gauges = std::make_shared<Gauges>();
  return gauges;
}

Usage::Taken Usage::Take(Kind kind, const std::string& name, uint64_t amount, uint64_t most) {
  std::shared_ptr<Gauges> gauges = GaugesOf(name);
  std::atomic<uint64_t>* const used = &(*gauges)[static_cast<size_t>(kind)];
  uint64_t before = used->load();
  do {
    if (most != 0 && (before > most || amount > most - before)) return {nullptr, before};
  } while (!used->compare_exchange_weak(before, before + amount));
  return {Hold(used, [gauges = std::move(gauges), used, amount](void*) { *used -= amount; }),
          before};
}

}  // namespace prefixd::daemon
