#include "base/spin.h"

#include "os/machine.h"

namespace prefixd::base {

namespace {

// Asked when the program starts: a lock must not read files or take memory.
const bool kManyCpus = os::UsableCpus("") > 4;

}  // namespace

bool ManyCpus() { return kManyCpus; }

}  // namespace prefixd::base
