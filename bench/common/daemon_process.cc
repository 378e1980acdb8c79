#include "bench/common/daemon_process.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/status.h"
#include "bench/common/child_process.h"

namespace prefixd::bench {
namespace {

// A client that comes too early waits for its next try.
bool Listens(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool listens =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return listens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(std::unique_ptr<DaemonProcess> daemon, Exec(options));
  PREFIXD_RETURN_IF_ERROR(daemon->WaitListening());
  return daemon;
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Exec(const Options& options) {
  const std::string program = std::filesystem::path(ThisProgram()).replace_filename("prefixd");
  if (!std::filesystem::exists(program)) {
    return absl::NotFoundError(absl::StrCat("daemon: ", program, " is not there: build it"));
  }
  // The floor protects people's disks; a run of the bench removes what it wrote.
  Command command{
      .arguments = {program, "--socket", options.directory + "/prefixd.sock", "--directory",
                    options.directory + "/ssd", "--ram", options.ram, "--ssd", options.ssd,
                    "--ssd-floor", options.ssd_floor, "--arena", options.arena, "--drain-deadline",
                    "120s", "--load-wait", options.load_wait},
      .out = options.directory + "/prefixd.log",
      .errors_too = true};
  command.arguments.insert(command.arguments.end(), options.flags.begin(), options.flags.end());
  PREFIXD_ASSIGN_OR_RETURN(const pid_t pid, StartProcess(command));
  return std::unique_ptr<DaemonProcess>(new DaemonProcess(pid, options.directory));
}

absl::Status DaemonProcess::WaitListening() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!Listens(directory_ + "/prefixd.sock")) {
    if (!Running() || std::chrono::steady_clock::now() > deadline) {
      return absl::InternalError("daemon: it does not come up: " + EndOfLog());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

DaemonProcess::~DaemonProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool DaemonProcess::Running() {
  if (pid_ < 0) return false;
  if (::waitpid(pid_, &wait_status_, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

std::string DaemonProcess::HowItEnded() const {
  const std::string how = WIFSIGNALED(wait_status_)
                              ? absl::StrCat("signal ", WTERMSIG(wait_status_))
                              : absl::StrCat("exit ", WEXITSTATUS(wait_status_));
  return absl::StrCat(how, ": ", EndOfLog());
}

bool DaemonProcess::Kill() {
  if (!Running()) return false;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  return true;
}

absl::Status DaemonProcess::Stop() {
  if (!Running()) return absl::InternalError("daemon: it ended by itself, " + HowItEnded());
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
