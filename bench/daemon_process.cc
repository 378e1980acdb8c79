#include "bench/daemon_process.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/status.h"
#include "bench/child_process.h"

namespace prefixd::bench {

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const Options& options) {
  const std::string program = std::filesystem::path(ThisProgram()).replace_filename("prefixd");
  if (!std::filesystem::exists(program)) {
    return absl::NotFoundError(absl::StrCat("daemon: ", program, " is not there: build it"));
  }
  // The floor protects people's disks; a run of the bench removes what it wrote.
  const Command command{
      .arguments = {program, "--socket", options.directory + "/prefixd.sock", "--directory",
                    options.directory + "/ssd", "--ram", options.ram, "--ssd", options.ssd,
                    "--ssd-floor", "1GiB", "--drain-deadline", "120s"},
      .out = options.directory + "/prefixd.log",
      .errors_too = true};
  PREFIXD_ASSIGN_OR_RETURN(const pid_t pid, StartProcess(command));
  return std::unique_ptr<DaemonProcess>(new DaemonProcess(pid, options.directory));
}

DaemonProcess::~DaemonProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool DaemonProcess::Running() {
  if (pid_ < 0) return false;
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

absl::Status DaemonProcess::Stop() {
  if (!Running()) return absl::InternalError("daemon: it ended by itself: " + EndOfLog());
  ::kill(pid_, SIGTERM);
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("daemon: stopped with wait status ", status, ": ", EndOfLog()));
}

std::string DaemonProcess::EndOfLog() const {
  const std::string log = ReadText(directory_ + "/prefixd.log");
  return log.substr(log.size() - std::min<size_t>(log.size(), 600));
}

}  // namespace prefixd::bench
