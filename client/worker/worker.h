// The whole worker without main(): model, space, requests, reports.
#pragma once
#include <ostream>

#include "client/worker/options.h"

namespace prefixd::worker {

// Answers every prompt in order. Writes each report to `out` as soon as it is there, and everything
// else to `err`. Returns kExitOk, kExitUsage if the device is not there, or kExitFailed if the
// model cannot run or a request failed; later requests run all the same. Without prefixd the
// answers are the same, only later.
int RunWorker(const Options& options, std::ostream& out, std::ostream& err);

}  // namespace prefixd::worker
