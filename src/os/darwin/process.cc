#include "os/process.h"

#include <crt_externs.h>
#include <libproc.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <malloc/malloc.h>
#include <pthread.h>
#include <sys/proc.h>
#include <sys/resource.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>

namespace prefixd::os {
namespace {

// Returns what the kernel's table of processes has of one. nullopt if it is not there.
std::optional<kinfo_proc> InTable(uint64_t pid) {
  if (pid > INT_MAX) return std::nullopt;
  int name[] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, static_cast<int>(pid)};
  kinfo_proc process = {};
  size_t bytes = sizeof(process);
  if (sysctl(name, 4, &process, &bytes, nullptr, 0) != 0 || bytes != sizeof(process)) {
    return std::nullopt;
  }
  return process;
}

uint64_t Microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000 + static_cast<uint64_t>(time.tv_usec);
}

// What mach tells of this process. T: the struct of `flavor`.
template <typename T>
std::optional<T> OfThisTask(task_flavor_t flavor) {
  T info = {};
  mach_msg_type_number_t words = sizeof(T) / sizeof(natural_t);
  if (task_info(mach_task_self(), flavor, reinterpret_cast<task_info_t>(&info), &words) !=
      KERN_SUCCESS) {
    return std::nullopt;
  }
  return info;
}

}  // namespace

ProcessFacts FactsOf(uint64_t pid) {
  const std::optional<kinfo_proc> process = InTable(pid);
  if (!process.has_value()) return {};
  const extern_proc& facts = process->kp_proc;
  return {.start = Microseconds(facts.p_starttime),
          .is_ending = facts.p_stat == SZOMB || (facts.p_flag & P_WEXIT) != 0};
}

uint64_t PidNamespace() { return 0; }

std::optional<OwnUse> UseOfThisProcess() {
  rusage used = {};
  const auto task = OfThisTask<mach_task_basic_info_data_t>(MACH_TASK_BASIC_INFO);
  if (!task.has_value() || getrusage(RUSAGE_SELF, &used) != 0) return std::nullopt;
  const uint64_t cpu_us = Microseconds(used.ru_utime) + Microseconds(used.ru_stime);
  OwnUse use{.cpu_s = static_cast<double>(cpu_us) / 1e6,
             .started_s = {},
             .address_space_bytes = static_cast<double>(task->virtual_size),
             .resident_bytes = static_cast<double>(task->resident_size)};
  if (const uint64_t start = FactsOf(static_cast<uint64_t>(getpid())).start; start != 0) {
    use.started_s = static_cast<double>(start) / 1e6;
  }
  return use;
}

std::optional<double> BytesToDisk() {
  rusage_info_v2 used = {};
  if (proc_pid_rusage(getpid(), RUSAGE_INFO_V2, reinterpret_cast<rusage_info_t*>(&used)) != 0) {
    return std::nullopt;
  }
  return static_cast<double>(used.ri_diskio_byteswritten);
}

std::optional<uint64_t> AnonymousBytes() {
  const auto task = OfThisTask<task_vm_info_data_t>(TASK_VM_INFO);
  if (!task.has_value()) return std::nullopt;
  return task->internal;
}

void NameThisThread(const char* name) { pthread_setname_np(name); }

char** Variables() { return *_NSGetEnviron(); }

void StartAgain(char** argv) {
  uint32_t bytes = 0;
  _NSGetExecutablePath(nullptr, &bytes);  // says how many
  std::string path(bytes, '\0');
  if (_NSGetExecutablePath(path.data(), &bytes) == 0) execv(path.c_str(), argv);
}

// The heap has no such settings.
void LimitHeap(const HeapLimits&) {}

uint64_t AllocatedBytes() {
  malloc_statistics_t all = {};
  malloc_zone_statistics(nullptr, &all);
  return all.size_in_use;
}

void TrimHeap() { malloc_zone_pressure_relief(nullptr, 0); }

}  // namespace prefixd::os
