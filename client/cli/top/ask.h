// The calls that make a sample of a daemon.
#pragma once
#include "client/cli/daemon_calls.h"
#include "client/cli/options.h"
#include "client/cli/top/watch.h"

namespace prefixd::cli {

// Returns a function that asks the daemon that `options` name. It connects anew after a call that
// failed, so that a daemon that started again is found at once, and its admin socket too. What this
// user may not ask for is left out. Not for concurrent use.
Watch::Ask AskDaemon(const Options& options, const Surroundings& surroundings);

}  // namespace prefixd::cli
