#include "os/machine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace prefixd::os {

#if defined(__x86_64__)
namespace {

bool CpuHasTiles() {
  constexpr uint32_t kTilesOfBytes = 1u << 24 | 1u << 25;
  constexpr uint32_t kSystemSavesState = 1u << 27;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kSystemSavesState) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kTilesOfBytes) == kTilesOfBytes;
}

}  // namespace

// Linux keeps the registers' 8 KiB from programs that do not ask.
bool AskForTileRegisters() {
  constexpr long kRequestState = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;          // XFEATURE_XTILEDATA
  return CpuHasTiles() && syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}
#else
bool AskForTileRegisters() { return false; }
#endif

}  // namespace prefixd::os
