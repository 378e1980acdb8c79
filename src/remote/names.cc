#include "remote/names.h"

namespace prefixd::remote {}  // namespace prefixd::remote
