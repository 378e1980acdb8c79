#include "kernels/prefill/matrix_tiles.h"

#include <atomic>

#include "os/machine.h"

namespace prefixd::kernels {
namespace {

std::atomic<bool> allowed_by_tests{true};

}  // namespace

bool HaveMatrixTiles() {
  static const bool have = os::AskForTileRegisters();
  return have && allowed_by_tests.load(std::memory_order_relaxed);
}

void AllowMatrixTiles(bool allowed) { allowed_by_tests.store(allowed, std::memory_order_relaxed); }

}  // namespace prefixd::kernels
