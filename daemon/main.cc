// prefixd: see --help. Exit codes stand in daemon/config.h.
#include <malloc.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "daemon/config.h"
#include "daemon/program.h"

namespace {

// Every page travels in a message of 1 MiB that protobuf and gRPC allocate. glibc would map and
// unmap each of them (2 to 3 CPU seconds a GB go into page faults), and would keep an arena of
// freed ones for each of many threads. So: from the heap, few heaps, each of which gives back what
// it has free above 16 MiB at its end (program.cc: and elsewhere, every second), so that the
// process stays near its RAM budget.
void TuneMalloc() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's own maximum
  ::mallopt(M_TRIM_THRESHOLD, 16 << 20);
  ::mallopt(M_ARENA_MAX, 2);
}

// Debian builds Abseil with its search for lock cycles: one graph, under one spinlock, that every
// lock of gRPC goes through on every thread.
void StopSearchForLockCycles() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

int Fail(int code, const std::string& message) {
  std::fprintf(stderr, "prefixd: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  namespace daemon = prefixd::daemon;
  TuneMalloc();
  StopSearchForLockCycles();
  ::umask(0077);  // what is stored is private; the socket's mode is set by itself
  ::signal(SIGPIPE, SIG_IGN);
  daemon::BlockStopSignals();
  const auto loaded = daemon::LoadConfig(std::vector<std::string>(argv + 1, argv + argc),
                                         daemon::ProcessEnvironment());
  if (!loaded.ok()) return Fail(daemon::kExitUsage, std::string(loaded.status().message()));
  if (!loaded->print.empty()) {
    std::fputs(loaded->print.c_str(), stdout);
    return daemon::kExitOk;
  }
  daemon::StartLog(loaded->config.log_level);
  const auto program = daemon::Program::Start(loaded->config);
  if (!program.ok()) {
    // A setting that no start can satisfy: whoever restarts the daemon is not to try again.
    const bool setting = absl::IsInvalidArgument(program.status());
    return Fail(setting ? daemon::kExitUsage : daemon::kExitStart,
                std::string(program.status().message()));
  }
  return (*program)->Serve();
}
