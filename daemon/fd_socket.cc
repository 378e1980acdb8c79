#include "daemon/fd_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/status.h"
#include "daemon/unix_listener.h"

namespace prefixd::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(1);
constexpr size_t kMostPeers = 64;  // more wait in the socket's queue

bool IsMember(int fd, gid_t group) {
  std::vector<gid_t> groups(256);
  socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) return false;
  groups.resize(bytes / sizeof(gid_t));
  return std::ranges::count(groups, group) > 0;
}

// Returns who the peer is. PermissionDenied, with the reason, if it may not have the files.
absl::StatusOr<base::Peer> CheckPeer(int fd, const std::string& path) {
  const std::optional<base::Peer> seen = base::PeerOf(fd);
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  struct stat info {};
  if (!seen.has_value() || ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
      ::stat(path.c_str(), &info) != 0) {
    return absl::PermissionDeniedError("fd socket: the peer cannot be identified");
  }
  if (peer.uid == ::geteuid() || peer.uid == 0 || peer.gid == info.st_gid ||
      IsMember(fd, info.st_gid)) {
    return *seen;
  }
  return absl::PermissionDeniedError(
      absl::StrCat("fd socket: user ", peer.uid, " is neither the daemon's user ", ::geteuid(),
                   " nor a member of the socket's group ", info.st_gid));
}

// Sends one message, with descriptors if there are any. Logs a failure: the peer may be gone.
void Send(int fd, const void* data, size_t bytes, const std::vector<int>& descriptors) {
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
  }
  if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    spdlog::info("fd socket: a peer went away unserved: {}", std::strerror(errno));
  }
}

// Answers a peer's message. The caller then closes the connection.
void Answer(int fd, const std::string& path, const FdSocket::OpenFiles& open) {
  cache::SessionKey key{};
  const ssize_t bytes = ::recv(fd, key.data(), key.size(), MSG_DONTWAIT | MSG_TRUNC);
  if (bytes <= 0) return;  // the peer hung up
  absl::StatusOr<cache::SessionFiles> files = absl::InvalidArgumentError(
      absl::StrCat("fd socket: a key has ", key.size(), " bytes, this message ", bytes));
  if (static_cast<size_t>(bytes) == key.size()) {
    const absl::StatusOr<base::Peer> peer = CheckPeer(fd, path);
    files = peer.ok() ? open(key, *peer) : peer.status();
  }
  if (!files.ok()) {
    const std::string why(files.status().message());
    spdlog::info("fd socket refused {}", why);
    return Send(fd, why.data(), why.size(), {});
  }
  std::vector<int> descriptors;
  for (const int file : {files->arena, files->lock, files->staging}) {
    if (file >= 0) descriptors.push_back(file);
  }
  Send(fd, key.data(), key.size(), descriptors);
  for (const int file : descriptors) ::close(file);
}

}  // namespace

std::string FdSocketPath(const std::string& socket) {
  constexpr size_t kSuffix = std::char_traits<char>::length(".sock");
  const bool named = absl::EndsWith(socket, ".sock") && !absl::EndsWith(socket, "/.sock");
  return absl::StrCat(named ? socket.substr(0, socket.size() - kSuffix) : socket, ".fd");
}

// The work of the socket's thread.
class FdSocket::Server {
 public:
  Server(const std::string& path, int listener, int wake, const OpenFiles& open)
      : path_(path), listener_(listener), wake_(wake), open_(open) {}
  ~Server() {
    for (const Peer& peer : peers_) ::close(peer.fd);
  }

  void Run() {
    for (;;) {
      std::vector<pollfd> polled = {{.fd = wake_, .events = POLLIN, .revents = 0}};
      // Beyond kMostPeers, newcomers stay in the queue.
      const bool takes_more = peers_.size() < kMostPeers;
      polled.push_back({.fd = takes_more ? listener_ : -1, .events = POLLIN, .revents = 0});
      for (const Peer& peer : peers_)
        polled.push_back({.fd = peer.fd, .events = POLLIN, .revents = 0});
      ::poll(polled.data(), polled.size(), peers_.empty() ? -1 : kTickMs);
      if (polled[0].revents != 0) return;
      const Clock::time_point now = Clock::now();
      for (size_t i = peers_.size(); i-- > 0;) {
        const bool spoke = polled[i + 2].revents != 0;
        if (!spoke && now < peers_[i].end) continue;
        if (spoke) Answer(peers_[i].fd, path_, open_);
        ::close(peers_[i].fd);
        peers_.erase(peers_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (polled[1].revents != 0) Accept();
    }
  }

 private:
  static constexpr int kTickMs = 100;
  struct Peer {
    int fd = -1;
    Clock::time_point end;
  };

  void Accept() {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) return peers_.push_back({.fd = fd, .end = Clock::now() + kPatience});
    if (errno != EMFILE && errno != ENFILE) return;  // the peer hung up
    // Out of descriptors: the queue stays readable, so do not spin on it.
    std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
  }

  const std::string& path_;
  const int listener_;
  const int wake_;
  const OpenFiles& open_;
  std::vector<Peer> peers_;
};

absl::StatusOr<std::unique_ptr<FdSocket>> FdSocket::Listen(const std::string& path,
                                                           OpenFiles open) {
  PREFIXD_ASSIGN_OR_RETURN(SocketGuard guard, SocketGuard::Claim(path));
  PREFIXD_ASSIGN_OR_RETURN(const int listener, ListenAt(path, SOCK_SEQPACKET));
  const int wake = ::eventfd(0, EFD_CLOEXEC);
  return std::unique_ptr<FdSocket>(
      new FdSocket(std::move(guard), path, listener, wake, std::move(open)));
}

FdSocket::FdSocket(SocketGuard guard, std::string path, int listener, int wake, OpenFiles open)
    : guard_(std::move(guard)),
      path_(std::move(path)),
      listener_(listener),
      wake_(wake),
      open_(std::move(open)),
      thread_([this] { Server(path_, listener_, wake_, open_).Run(); }) {}

FdSocket::~FdSocket() {
  const uint64_t one = 1;
  // The first write to an eventfd that nobody reads always succeeds.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
  thread_.join();
  ::unlink(path_.c_str());
  ::close(listener_);
  ::close(wake_);
}

}  // namespace prefixd::daemon
