#include "kernels/decode/order.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace prefixd::kernels {
namespace {

constexpr uint32_t kZen4 = 0x19;  // the family of Zen 3, too, which has no AVX-512

// Returns the family of a CPU by AMD, 0 for any other.
uint32_t AmdFamily() {
#if defined(__x86_64__)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return 0;
  char maker[12];
  std::memcpy(maker, &ebx, 4);
  std::memcpy(maker + 4, &edx, 4);
  std::memcpy(maker + 8, &ecx, 4);
  if (std::memcmp(maker, "AuthenticAMD", sizeof(maker)) != 0) return 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return 0;
  const uint32_t family = eax >> 8 & 0xf;
  return family == 0xf ? family + (eax >> 20 & 0xff) : family;
#else
  return 0;
#endif
}

DecodeOrder OrderOfThisCpu() {
  return AmdFamily() >= kZen4 ? DecodeOrder::kPipelined : DecodeOrder::kStaged;
}

constexpr int kNotForced = -1;
std::atomic<int> forced{kNotForced};

}  // namespace

DecodeOrder OrderOfDecode() {
  const int order = forced.load(std::memory_order_relaxed);
  if (order != kNotForced) return static_cast<DecodeOrder>(order);
  static const DecodeOrder own = OrderOfThisCpu();
  return own;
}

void ForceOrder(DecodeOrder order) {
  forced.store(static_cast<int>(order), std::memory_order_relaxed);
}
void ForgetOrder() { forced.store(kNotForced, std::memory_order_relaxed); }

const char* ToText(DecodeOrder order) {
  return order == DecodeOrder::kPipelined ? "pipelined" : "staged";
}

}  // namespace prefixd::kernels
