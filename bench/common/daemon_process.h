// A real prefixd as a child process: the program that stands beside prefixd-bench.
//
// One thread. The destructor kills what Stop() did not end.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::bench {

class DaemonProcess {
 public:
  struct Options {
    std::string directory;                // existing: socket, log and SSD tier
    std::string ram;                      // "256MiB"
    std::string ssd;                      // "4GiB", "off"
    std::string arena = "off";            // path of the shared arena file, on a tmpfs
    std::string load_wait = "60s";        // serves when the index is whole
    std::string ssd_floor = "1GiB";       // of free space
    std::vector<std::string> flags = {};  // further ones
  };
  // Returns once it listens. NotFound when prefixd was not built; Internal, with the end of the
  // log, when it does not come up.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(const Options& options);
  // Returns at once.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Exec(const Options& options);
  absl::Status WaitListening();
  ~DaemonProcess();

  // SIGKILL, and waits for the end. False: it had ended by itself before.
  bool Kill();

  // SIGTERM, then waits for the drain. Internal, with the end of the log, unless it exits with 0.
  absl::Status Stop();

  pid_t pid() const { return pid_; }
  std::string address() const { return "unix://" + directory_ + "/prefixd.sock"; }
  bool Running();
  // Its wait status, once it has ended by itself, and the end of its log.
  std::string HowItEnded() const;

 private:
  DaemonProcess(pid_t pid, std::string directory) : pid_(pid), directory_(std::move(directory)) {}
  std::string EndOfLog() const;

  pid_t pid_;  // -1 once it has ended
  int wait_status_ = 0;
  const std::string directory_;
};

}  // namespace prefixd::bench
