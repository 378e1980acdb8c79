#include "fd_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "address.h"
#include "base/status.h"
#include "fork_guard.h"
#include "os/messages.h"
#include "os/sockets.h"

namespace prefixd::client {
namespace {

constexpr size_t kMostFiles = 8;  // received and closed if the peer sends more than three
constexpr size_t kMostBytes = 1024;

absl::Status Failed(const char* what, const std::string& socket) {
  return absl::UnavailableError(absl::StrCat(what, " ", socket, ": ", std::strerror(errno)));
}

// Waits until `fd` is readable. Returns false, with errno, if nothing comes until `end`.
bool Await(int fd, std::chrono::steady_clock::time_point end) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&polled, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) errno = EAGAIN;
    return false;
  }
}

// Sends the key and returns the connection.
absl::StatusOr<base::Descriptor> Ask(const std::string& socket, const std::string& key,
                                     std::chrono::milliseconds patience) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(name.sun_path)) {
    return absl::FailedPreconditionError(absl::StrCat("the path of ", socket, " has ",
                                                      socket.size(), " bytes, at most ",
                                                      sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, socket.data(), socket.size());
  base::Descriptor fd(os::NewSocket(AF_UNIX, os::MessageSocketType(), 0, os::Waits::kYes));
  if (!fd) return Failed("socket for", socket);
  timeval wait{};
  wait.tv_sec = static_cast<decltype(wait.tv_sec)>(patience.count() / 1000);
  wait.tv_usec = static_cast<decltype(wait.tv_usec)>(patience.count() % 1000 * 1000);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    if (errno != EPROTOTYPE) return Failed("connect to", socket);
    return absl::FailedPreconditionError(
        absl::StrCat(socket, ": the daemon and this library were built with different PREFIXD_OS"));
  }
  if (!os::SendMessage(fd.get(), key, {})) return Failed("send to", socket);
  return fd;
}

// Takes the answer, which is whole.
absl::StatusOr<SessionFiles> Take(os::MessageReader* answer, const std::string& socket,
                                  const std::string& key) {
  std::vector<base::Descriptor> files;
  for (const int file : answer->TakeFiles()) files.emplace_back(file);
  const std::string text(answer->bytes());
  if (files.empty() && text != key) {  // the text says why
    return absl::FailedPreconditionError(absl::StrCat(socket, ": ", text));
  }
  if (text != key || files.size() < 2 || files.size() > 3 || answer->dropped_files() ||
      answer->sent_bytes() != text.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("receive from ", socket, ": ", answer->sent_bytes(), " bytes and ",
                     files.size(), " descriptors, not the session's"));
  }
  SessionFiles taken;
  taken.arena = std::move(files[0]);
  taken.lock = std::move(files[1]);
  if (files.size() == 3) taken.staging = std::move(files[2]);
  return taken;
}

}  // namespace

std::optional<std::string> PathBeside(const std::string& address, const std::string& file_name) {
  std::string path = UnixPath(address);
  if (path.empty()) return std::nullopt;
  if (file_name.empty() || file_name.find('/') != std::string::npos) return std::nullopt;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? file_name : path.substr(0, slash + 1) + file_name;
}

absl::Status ReceiveFiles(const std::string& socket, const std::string& key,
                          std::chrono::milliseconds patience,
                          const std::function<absl::Status(SessionFiles)>& use) {
  const auto end = std::chrono::steady_clock::now() + patience;
  PREFIXD_ASSIGN_OR_RETURN(base::Descriptor peer, Ask(socket, key, patience));
  os::MessageReader answer(kMostBytes, kMostFiles);
  while (Await(peer.get(), end)) {
    const ForkGuard guard;
    const os::MessageReader::Got got = answer.Read(peer.get());
    if (got == os::MessageReader::Got::kMore) continue;
    if (got == os::MessageReader::Got::kEnd && errno != 0) break;
    PREFIXD_ASSIGN_OR_RETURN(SessionFiles files, Take(&answer, socket, key));
    files.connection = std::move(peer);
    return use(std::move(files));
  }
  return Failed("receive from", socket);
}

}  // namespace prefixd::client
