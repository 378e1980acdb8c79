// One target under libFuzzer: PREFIXD_FUZZ_TARGET names it. scripts/fuzz builds and runs all.
#include <cstdint>
#include <cstring>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const prefixd::fuzz::Target* const target = [] {
    for (const prefixd::fuzz::Target& one : prefixd::fuzz::Targets()) {
      if (std::strcmp(one.name, PREFIXD_FUZZ_TARGET) == 0) return &one;
    }
    __builtin_trap();
  }();
  target->run({reinterpret_cast<const std::byte*>(bytes), size});
  return 0;
}
