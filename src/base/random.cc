#include "base/random.h"

#include <random>
#include <span>

#include "os/machine.h"

namespace prefixd::base {

uint64_t RandomWord() {
  for (;;) {
    uint64_t word = 0;
    if (!os::RandomBytes(std::as_writable_bytes(std::span(&word, 1)))) {
      std::random_device device("/dev/urandom");  // a kernel or a sandbox without the call
      word = uint64_t{device()} << 32 | device();
    }
    if (word != 0) return word;
  }
}

}  // namespace prefixd::base
