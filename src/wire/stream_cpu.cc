#include "wire/stream_cpu.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

#include "wire/socket_buffers.h"

namespace prefixd::wire {
namespace {

constexpr size_t kMostCpus = CPU_SETSIZE;

bool IsSmallHost() {
  static const bool small = CallbackThreads() == 2;
  return small;
}

// Adds the CPUs of a list as the kernel writes it: "0-3,8".
void Add(std::istream& list, cpu_set_t* cpus) {
  for (size_t first = 0; list >> first; list.ignore()) {
    size_t last = first;
    if (list.peek() == '-') list.ignore() >> last;
    for (size_t cpu = first; cpu <= std::min(last, kMostCpus - 1); ++cpu) CPU_SET(cpu, cpus);
  }
}

// Returns false and does nothing if the thread may not run on any of them.
bool Move(pid_t thread, const cpu_set_t& home, const cpu_set_t& cpus) {
  cpu_set_t both;
  CPU_AND(&both, &home, &cpus);
  return CPU_COUNT(&both) > 0 && ::sched_setaffinity(thread, sizeof(both), &both) == 0;
}

}  // namespace

int CallbackThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 16);
}

std::optional<int> CpuToName(std::string_view address) {
  if (UnixPath(address).empty() || !IsSmallHost()) return std::nullopt;
  const int cpu = ::sched_getcpu();
  return cpu < 0 ? std::nullopt : std::optional(cpu);
}

std::optional<int> NamedCpu(std::string_view peer, std::string_view text) {
  if (!peer.starts_with("unix:") || !IsSmallHost()) return std::nullopt;
  int cpu = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data(), end, cpu);
  if (read.ec != std::errc() || read.ptr != end || cpu < 0 || cpu >= CPU_SETSIZE) {
    return std::nullopt;
  }
  return cpu;
}

cpu_set_t CpusBeside(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<size_t>(cpu), &cpus);
  const std::string caches = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/cache/index");
  for (int index = 0;; ++index) {
    std::ifstream level_of(absl::StrCat(caches, index, "/level"));
    int level = 0;
    if (!(level_of >> level)) return cpus;  // no more caches, or a kernel that does not tell
    if (level != 2) continue;
    std::ifstream shared(absl::StrCat(caches, index, "/shared_cpu_list"));
    Add(shared, &cpus);
  }
}

StayBeside::StayBeside(int cpu) {
  moved_ = ::sched_getaffinity(0, sizeof(home_), &home_) == 0 && Move(0, home_, CpusBeside(cpu));
}

StayBeside::~StayBeside() {
  if (moved_) ::sched_setaffinity(0, sizeof(home_), &home_);
}

Carriers::Stream::~Stream() {
  if (beside_.has_value()) carriers_->End();
}

void Carriers::Stream::Carried(uint64_t bytes) {
  carried_ += bytes;
  if (!cpu_.has_value() || carried_ < kLongStreamBytes) return;
  if (!beside_.has_value()) {
    beside_ = CpusBeside(*cpu_);
    carriers_->Begin();
  }
  carriers_->Come(*beside_);
}

void Carriers::Begin() {
  base::MutexLock lock(mutex_);
  ++long_streams_;
}

void Carriers::Come(const cpu_set_t& cpus) {
  const pid_t thread = ::gettid();
  base::MutexLock lock(mutex_);
  const auto [home, is_new] = homes_.try_emplace(thread);
  if (is_new && ::sched_getaffinity(0, sizeof(home->second), &home->second) != 0) {
    homes_.erase(home);
    return;
  }
  Move(thread, home->second, cpus);
}

void Carriers::End() {
  base::MutexLock lock(mutex_);
  if (--long_streams_ > 0) return;
  for (const auto& [thread, home] : homes_) ::sched_setaffinity(thread, sizeof(home), &home);
  homes_.clear();
}

}  // namespace prefixd::wire
