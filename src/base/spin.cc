#include "base/spin.h"

#include "os/machine.h"

namespace prefixd::base {

bool ManyCpus() {
  static const bool many = os::UsableCpus("") > 4;
  return many;
}

}  // namespace prefixd::base
