#include <sys/resource.h>

#include "daemon/metrics/stats_families.h"
#include "os/files.h"
#include "os/process.h"

namespace prefixd::daemon {
namespace {

void AddUse(const os::OwnUse& use, Families* families) {
  families->Counter("process_cpu_seconds_total", "CPU time, user's and system's.", use.cpu_s);
  if (use.started_s.has_value()) {
    families->Gauge("process_start_time_seconds", "When the process began, in Unix time.",
                    *use.started_s);
  }
  families->Gauge("process_virtual_memory_bytes", "Address space in use.", use.address_space_bytes);
  families->Gauge("process_resident_memory_bytes", "Memory in use, the shared arena included.",
                  use.resident_bytes);
}

void AddDescriptors(Families* families) {
  if (const auto open = os::OpenDescriptors()) {
    families->Gauge("process_open_fds", "Open file descriptors.",
                    static_cast<double>(open->size()));
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families->Gauge("process_max_fds", "The most that may be open.",
                    static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace

void AddProcess(Families* families) {
  if (const auto use = os::UseOfThisProcess()) AddUse(*use, families);
  AddDescriptors(families);
  if (const auto bytes = os::BytesToDisk()) {
    families->Counter("prefixd_disk_written_bytes_total",
                      "Bytes that the process made disks write: the SSD tier with its metadata, "
                      "rewritten pages included.",
                      *bytes);
  }
}

}  // namespace prefixd::daemon
