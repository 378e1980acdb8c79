// `root` is of tests that plant files: here calls tell, so nothing is known below another root.
#include "os/machine.h"

#include <mach/mach.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include <algorithm>
#include <thread>

#include "os/darwin/sysctl.h"

namespace prefixd::os {

std::string SysctlText(const char* name) {
  size_t bytes = 0;
  if (sysctlbyname(name, nullptr, &bytes, nullptr, 0) != 0 || bytes == 0) return "";
  std::string text(bytes, '\0');
  if (sysctlbyname(name, text.data(), &bytes, nullptr, 0) != 0) return "";
  text.resize(std::min(bytes, text.find('\0')));
  return text;
}

bool BootId(std::span<std::byte, 16> id) {
  const std::string text = SysctlText("kern.bootsessionuuid");
  return uuid_parse(text.c_str(), reinterpret_cast<unsigned char*>(id.data())) == 0;
}

// Counts free pages, and pages that nobody used lately.
std::optional<uint64_t> MemoryAvailable(const std::string& root) {
  if (!root.empty()) return std::nullopt;
  vm_statistics64_data_t pages = {};
  mach_msg_type_number_t words = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages),
                        &words) != KERN_SUCCESS) {
    return std::nullopt;
  }
  const uint64_t available = uint64_t{pages.free_count} + pages.inactive_count;
  return std::min(available * vm_page_size, Sysctl<uint64_t>("hw.memsize").value_or(kNoLimit));
}

// Darwin's swap grows as it is used. Returns what it has now.
std::optional<uint64_t> SwapBytes(const std::string& root) {
  if (!root.empty()) return std::nullopt;
  const std::optional<xsw_usage> swap = Sysctl<xsw_usage>("vm.swapusage");
  return swap.has_value() ? std::optional<uint64_t>(swap->xsu_total) : std::nullopt;
}

// There are no groups with limits.
uint64_t GroupMemoryLeft() { return kNoLimit; }
uint64_t GroupMemoryLimit(const std::string&, uint64_t) { return kNoLimit; }

unsigned UsableCpus(const std::string&) {
  return std::max(1U, std::thread::hardware_concurrency());
}

// Memory is one.
std::vector<unsigned> NumaNodes(const std::string&) { return {}; }

// No other process's limits are told.
std::optional<uint64_t> DescriptorLimit(const std::string& root, uint64_t pid) {
  rlimit limit = {};
  const bool own = pid == 0 || pid == static_cast<uint64_t>(getpid());
  if (!root.empty() || !own || getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : uint64_t{limit.rlim_cur};
}

std::optional<bool> MountHasHugePages(const std::string&, const std::string&) {
  return std::nullopt;
}

std::string KernelRelease(const std::string& root) {
  return root.empty() ? SysctlText("kern.osrelease") : "";
}

bool MapsAhead(const std::string& release) { return !release.empty(); }
std::string CpuFlags(const std::string&) { return ""; }
bool HasDotProduct() { return true; }  // every Apple silicon
bool AskForTileRegisters() { return false; }

}  // namespace prefixd::os
