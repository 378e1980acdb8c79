// prefixctl top: what a daemon does, as it does it.
#pragma once
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/options.h"

namespace prefixd::cli {

// Shows the daemon on the terminal until a key or a signal ends it, and returns "". With
// options.top.once it returns one frame, made of two samples an interval apart.
// FailedPrecondition without a terminal; with `once` also what the daemon's calls return.
absl::StatusOr<std::string> RunTop(const Options& options, const Surroundings& surroundings);

}  // namespace prefixd::cli
