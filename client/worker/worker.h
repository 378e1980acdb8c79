// The whole worker behind main(): model, space, requests, reports.
#pragma once
#include <ostream>

#include "client/worker/options.h"

namespace prefixd::worker {

// Answers every prompt in order; reports go to `out`, each as soon as it is there, everything else
// to `err`. Returns kExitOk, or kExitFailed when the model cannot run or a request failed; later
// requests run all the same. Without prefixd the answers are the same, only later.
int RunWorker(const Options& options, std::ostream& out, std::ostream& err);

}  // namespace prefixd::worker
