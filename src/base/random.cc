#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <random>

namespace prefixd::base {

uint64_t RandomWord() {
  for (;;) {
    uint64_t word = 0;
    const ssize_t bytes = ::getrandom(&word, sizeof(word), 0);
    if (bytes < 0 && errno != EINTR) {  // a kernel or a sandbox without the call
      std::random_device device("/dev/urandom");
      word = uint64_t{device()} << 32 | device();
    } else if (bytes != sizeof(word)) {
      continue;
    }
    if (word != 0) return word;
  }
}

}  // namespace prefixd::base
