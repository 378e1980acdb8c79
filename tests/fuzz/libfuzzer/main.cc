// One target under libFuzzer: PREFIXD_FUZZ_TARGET of PREFIXD_FUZZ_GROUP. scripts/fuzz builds and
// runs all.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/targets.h"

namespace {

const prefixd::fuzz::Target& TheTarget() {
  static const std::vector<prefixd::fuzz::Target> group = prefixd::fuzz::PREFIXD_FUZZ_GROUP();
  for (const prefixd::fuzz::Target& one : group) {
    if (std::strcmp(one.name, PREFIXD_FUZZ_TARGET) == 0) return one;
  }
  __builtin_trap();
}

}  // namespace

// Valid inputs to begin from: checksums and nested messages are seldom guessed.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::string folder = (*arguments)[i];
    if (!std::filesystem::is_directory(folder)) continue;
    int number = 0;
    for (const std::string& seed : TheTarget().seeds()) {
      std::ofstream(folder + "/seed-" + std::to_string(number++), std::ios::binary) << seed;
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const prefixd::fuzz::Target& target = TheTarget();
  target.run({reinterpret_cast<const std::byte*>(bytes), size});
  return 0;
}
