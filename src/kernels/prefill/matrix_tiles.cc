#include "kernels/prefill/matrix_tiles.h"

#include <atomic>
#include <cstdint>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace prefixd::kernels {
namespace {

std::atomic<bool> allowed_by_tests{true};

#if defined(__x86_64__) && defined(__linux__)
bool CpuHasTiles() {
  constexpr uint32_t kTilesOfBytes = 1u << 24 | 1u << 25;
  constexpr uint32_t kSystemSavesState = 1u << 27;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kSystemSavesState) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kTilesOfBytes) == kTilesOfBytes;
}

// Linux keeps the registers' 8 KiB from programs that do not ask.
bool AskForTiles() {
  constexpr long kRequestState = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;          // XFEATURE_XTILEDATA
  return CpuHasTiles() && ::syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}
#else
bool AskForTiles() { return false; }
#endif

}  // namespace

bool HaveMatrixTiles() {
  static const bool have = AskForTiles();
  return have && allowed_by_tests.load(std::memory_order_relaxed);
}

void AllowMatrixTiles(bool allowed) { allowed_by_tests.store(allowed, std::memory_order_relaxed); }

}  // namespace prefixd::kernels
