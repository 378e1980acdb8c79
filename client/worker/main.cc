// prefix-worker: a reference inference worker on prefixd.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>

#include "absl/synchronization/mutex.h"

#include "client/worker/options.h"
#include "client/worker/worker.h"

namespace {

// OpenBLAS's threads wait for the next product awake, for 2^26 cycles unless told otherwise: on
// cores that attention's threads, or anybody's, need. 2^18 is the 100 us from one product to the
// next. OpenBLAS reads it while it is loaded, so that the program starts anew with it.
void KeepOpenBlasFromSpinning(char** argv) {
  constexpr const char* kVariable = "OPENBLAS_THREAD_TIMEOUT";
  if (std::getenv(kVariable) != nullptr || setenv(kVariable, "18", 0) != 0) return;
  execv("/proc/self/exe", argv);  // returns only when it cannot: slower, nothing else
}

// With gRPC's own choice, epoll, any thread that waits for the daemon receives what comes for all
// of them: every piece of a Fetch or Put goes from thread to thread. With poll each receives its
// own.
void ReceiveOnTheThreadThatReads() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

}  // namespace

int main(int argc, char** argv) {
  KeepOpenBlasFromSpinning(argv);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as prefixd
  ReceiveOnTheThreadThatReads();
  prefixd::worker::Options options;
  const std::optional<int> exit_code =
      prefixd::worker::ParseCommandLine(argc, argv, &options, std::cout, std::cerr);
  if (exit_code.has_value()) return *exit_code;
  return prefixd::worker::RunWorker(options, std::cout, std::cerr);
}
