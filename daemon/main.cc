// prefixd: see --help. Exit codes stand in daemon/config.h.
#include <pthread.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>
#include <system_error>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "daemon/config.h"
#include "daemon/log.h"
#include "daemon/program.h"
#include "os/override.h"
#include "os/process.h"

namespace {

// Every page travels in messages of 1 MiB that protobuf and gRPC allocate. glibc would map and
// unmap each of them (2 to 3 CPU seconds a GB go into page faults), and would keep an arena of
// freed ones for each of many threads. So they come from few heaps, each of which gives back what
// it has free above 16 MiB at its end (heap_trim.h: and elsewhere), so that the process stays near
// its RAM budget. Larger allocations, a long request's lists, go back at once.
void TuneMalloc() {
  prefixd::os::LimitHeap({.map_bytes = 2 << 20, .trim_bytes = 16 << 20, .heaps = 2});
}

// Debian builds Abseil with its search for lock cycles: every lock of gRPC, on every thread, goes
// through one graph under one spinlock.
void StopSearchForLockCycles() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

int Fail(int code, const std::string& message) {
  prefixd::daemon::LastWords("prefixd: " + message + "\n");
  return code;
}

int Run(const prefixd::daemon::Config& config) {
  const auto program = prefixd::daemon::Program::Start(config);
  if (program.ok()) return (*program)->Serve();
  // No start can satisfy such a setting: kExitUsage tells a supervisor not to try again.
  const bool setting = absl::IsInvalidArgument(program.status());
  return Fail(setting ? prefixd::daemon::kExitUsage : prefixd::daemon::kExitStart,
              std::string(program.status().message()));
}

}  // namespace

// gRPC 1.51 does not survive that the system refuses it a thread: it aborts, or a call waits for
// ever in the queue of a thread that never began. So this function tries again every 5 ms, for
// about 5 s at most, while the system has none. Libraries find it before libc's.
extern "C" int PREFIXD_OVERRIDE(pthread_create)(  // NOLINT: libc's name
    pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  static const auto create = PREFIXD_ORIGINAL(pthread_create);
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 5'000'000};
  constexpr int kTries = 1'000;
  int error = create(thread, attributes, run, argument);
  for (int i = 1; error == EAGAIN && i < kTries; ++i) {
    ::nanosleep(&kPause, nullptr);
    error = create(thread, attributes, run, argument);
  }
  return error;
}
PREFIXD_OVERRIDDEN(pthread_create)

int main(int argc, char** argv) {
  namespace daemon = prefixd::daemon;
  TuneMalloc();
  StopSearchForLockCycles();
  ::umask(0077);  // stored files are private; the sockets' modes are set explicitly
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
  try {
    return Run(loaded->config);
  } catch (const std::system_error& error) {
    return Fail(daemon::kExitStart, std::string("cannot start: ") + error.what());
  }
}
