#include "daemon/unix_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

#include "base/status.h"
#include "daemon/shares.h"
#include "os/sockets.h"
#include "wire/send_buffer.h"

namespace prefixd::daemon {
namespace {

constexpr const char* kDescriptorPeer = "fd:";
// Out of descriptors: the queue stays readable, so do not spin on it.
constexpr std::chrono::milliseconds kPause(100);

}  // namespace

std::optional<int> DescriptorOf(const std::string& peer) {
  absl::string_view number = peer;
  int fd = -1;
  if (!absl::ConsumePrefix(&number, kDescriptorPeer) || !absl::SimpleAtoi(number, &fd)) {
    return std::nullopt;
  }
  return fd;
}

std::optional<base::Peer> UnixPeer(const std::string& peer) {
  const std::optional<int> fd = DescriptorOf(peer);
  return fd.has_value() ? base::PeerOf(*fd) : std::nullopt;
}

std::string AddressOf(const std::string& peer) {
  if (absl::StartsWith(peer, kDescriptorPeer)) return "unix:";
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
}

std::string CallerOf(const std::string& peer) {
  const std::optional<base::Peer> process = UnixPeer(peer);
  return process.has_value() ? base::Describe(*process) : HostOf(peer);
}

absl::StatusOr<int> ListenAt(const std::string& path, int type, const SocketAccess& access) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // Claim checked its length
  const int listener = os::NewSocket(AF_UNIX, type, 0, os::Waits::kNo);
  // A link that somebody put in the socket's place meanwhile is not followed.
  const bool bound =
      listener >= 0 &&
      ::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::fchmodat(AT_FDCWD, path.c_str(), 0600, AT_SYMLINK_NOFOLLOW) == 0;
  const bool given = bound && (!access.group.has_value() ||
                               ::lchown(path.c_str(), static_cast<uid_t>(-1), *access.group) == 0);
  if (given &&
      ::fchmodat(AT_FDCWD, path.c_str(), static_cast<mode_t>(access.mode), AT_SYMLINK_NOFOLLOW) ==
          0 &&
      ::listen(listener, 128) == 0) {
    return listener;
  }
  const std::string why = std::strerror(errno);
  ::close(listener);
  if (bound && !given) {
    return absl::FailedPreconditionError(absl::StrCat("socket: ", path,
                                                      " cannot be given to group ", *access.group,
                                                      " (is prefixd's user in it?): ", why));
  }
  return absl::FailedPreconditionError(absl::StrCat("socket: cannot listen on ", path, ": ", why));
}

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Listen(
    const std::string& path, const SocketAccess& access, std::optional<SocketGuard> claim) {
  if (!claim.has_value()) {
    PREFIXD_ASSIGN_OR_RETURN(claim, SocketGuard::Claim(path));
  }
  PREFIXD_ASSIGN_OR_RETURN(const int listener, ListenAt(path, SOCK_STREAM, access));
  return std::unique_ptr<UnixListener>(new UnixListener(*std::move(claim), path, listener));
}

UnixListener::UnixListener(SocketGuard guard, std::string path, int listener)
    : guard_(std::move(guard)), path_(std::move(path)), listener_(listener) {}

void UnixListener::Close() {
  if (listener_ < 0) return;
  wake_.Set();
  if (thread_.joinable()) thread_.join();
  ::unlink(path_.c_str());
  ::close(std::exchange(listener_, -1));
  wake_.Close();
}

void UnixListener::Start(std::function<void(int)> take) {
  thread_ = std::thread([this, take = std::move(take)] { Run(take); });
}

void UnixListener::Run(const std::function<void(int)>& take) const {
  for (;;) {
    pollfd polled[] = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                       {.fd = listener_, .events = POLLIN, .revents = 0}};
    ::poll(polled, 2, -1);
    if (polled[0].revents != 0) return;
    if (polled[1].revents == 0) continue;
    const int fd = os::AcceptFrom(listener_);
    if (fd >= 0) {
      wire::EnlargeSendBuffer(fd);
      take(fd);
    } else if (errno == EMFILE || errno == ENFILE) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace prefixd::daemon
