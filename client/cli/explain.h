// What a failed command says, and its exit code.
#pragma once
#include <ostream>

#include "absl/status/status.h"

#include "client/cli/options.h"

namespace prefixd::cli {

// Prints what failed and what to do about it. Returns the exit code.
int Explain(const absl::Status& status, const Options& options, std::ostream& err);

}  // namespace prefixd::cli
