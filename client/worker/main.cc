// prefixd-worker: a reference inference worker on prefixd.
#include <cstdlib>
#include <iostream>
#include <optional>

#include "absl/synchronization/mutex.h"

#include "client/worker/options.h"
#include "client/worker/worker.h"
#include "os/process.h"

namespace {

// Makes OpenBLAS's threads sleep sooner. By default they spin for 2^26 cycles until the next
// product, on cores that attention's or other threads need. 2^18 is the 100 us from one product to
// the next. OpenBLAS reads the variable while it is loaded, so the program starts itself again.
void KeepOpenBlasFromSpinning(char** argv) {
  constexpr const char* kVariable = "OPENBLAS_THREAD_TIMEOUT";
  if (std::getenv(kVariable) != nullptr || setenv(kVariable, "18", 0) != 0) return;
  prefixd::os::StartAgain(argv);  // a failure costs speed alone
}

// Makes gRPC use poll. With its own choice, epoll, any thread that waits for the daemon receives
// the data of all such threads: every piece of a Fetch or Put goes from thread to thread. With poll
// each thread receives its own.
void ReceiveOnTheThreadThatReads() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

}  // namespace

int main(int argc, char** argv) {
  KeepOpenBlasFromSpinning(argv);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as prefixd does
  ReceiveOnTheThreadThatReads();
  prefixd::worker::Options options;
  const std::optional<int> exit_code =
      prefixd::worker::ParseCommandLine(argc, argv, &options, std::cout, std::cerr);
  if (exit_code.has_value()) return *exit_code;
  return prefixd::worker::RunWorker(options, std::cout, std::cerr);
}
