#include "os/machine.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace prefixd::os {

#if defined(__aarch64__)
bool HasDotProduct() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#else
bool HasDotProduct() { return false; }
#endif

}  // namespace prefixd::os
