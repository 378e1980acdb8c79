#include "daemon/fd_socket.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/descriptor.h"
#include "base/status.h"
#include "daemon/unix_listener.h"
#include "os/messages.h"
#include "os/sockets.h"

namespace prefixd::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(1);
constexpr size_t kMostPeers = 64;  // more wait in the socket's queue

bool IsMember(int fd, gid_t group) {
  return std::ranges::count(os::GroupsOfPeer(fd, 256), group) > 0;
}

// Returns who the peer is. PermissionDenied, with the reason, if it may not have the files.
absl::StatusOr<base::Peer> CheckPeer(int fd, const std::string& path) {
  const std::optional<base::Peer> seen = base::PeerOf(fd);
  const std::optional<os::SocketPeer> peer = os::PeerOf(fd);
  struct stat info {};
  if (!seen.has_value() || !peer.has_value() || ::stat(path.c_str(), &info) != 0) {
    return absl::PermissionDeniedError("fd socket: the peer cannot be identified");
  }
  if (peer->uid == ::geteuid() || peer->uid == 0 || peer->gid == info.st_gid ||
      IsMember(fd, info.st_gid)) {
    return *seen;
  }
  return absl::PermissionDeniedError(
      absl::StrCat("fd socket: user ", peer->uid, " is neither the daemon's user ", ::geteuid(),
                   " nor a member of the socket's group ", info.st_gid));
}

// Sends one message, with files if there are any. Logs a failure: the peer may be gone.
void Send(int fd, std::string_view message, const std::vector<int>& files) {
  if (!os::SendMessage(fd, message, files)) {
    spdlog::info("fd socket: a peer went away unserved: {}", std::strerror(errno));
  }
}

// Answers a peer's message. Returns the session whose files it got; none if it was refused.
block::SessionId Answer(int fd, const os::MessageReader& message, const std::string& path,
                        const FdSocket::OpenFiles& open) {
  cache::SessionKey key{};
  absl::StatusOr<cache::SessionFiles> files = absl::InvalidArgumentError(absl::StrCat(
      "fd socket: a key has ", key.size(), " bytes, this message ", message.sent_bytes()));
  if (message.sent_bytes() == key.size()) {
    std::memcpy(key.data(), message.bytes().data(), key.size());
    const absl::StatusOr<base::Peer> peer = CheckPeer(fd, path);
    files = peer.ok() ? open(key, *peer) : peer.status();
  }
  if (!files.ok()) {
    const std::string why(files.status().message());
    spdlog::info("fd socket refused {}", why);
    Send(fd, why, {});
    return {};
  }
  std::vector<int> descriptors;
  for (const int file : {files->arena, files->lock, files->staging}) {
    if (file >= 0) descriptors.push_back(file);
  }
  Send(fd, message.bytes(), descriptors);
  for (const int file : descriptors) ::close(file);
  return files->session;
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
  Server(const std::string& path, int listener, int wake, const Calls& calls)
      : path_(path), listener_(listener), wake_(wake), calls_(calls) {}

  void Run() {
    for (;;) {
      std::vector<pollfd> polled = {{.fd = wake_, .events = POLLIN, .revents = 0}};
      // Beyond kMostPeers, newcomers stay in the queue.
      const bool takes_more = peers_.size() < kMostPeers;
      polled.push_back({.fd = takes_more ? listener_ : -1, .events = POLLIN, .revents = 0});
      for (const auto& peer : peers_) {
        polled.push_back({.fd = peer->socket.get(), .events = POLLIN, .revents = 0});
      }
      ::poll(polled.data(), static_cast<nfds_t>(polled.size()), peers_.empty() ? -1 : kTickMs);
      if (polled[0].revents != 0) return;
      const Clock::time_point now = Clock::now();
      for (size_t i = peers_.size(); i-- > 0;) {
        const bool spoke = polled[i + 2].revents != 0;
        if (spoke ? Serve(peers_[i].get()) : now < peers_[i]->end) continue;
        peers_.erase(peers_.begin() + static_cast<ptrdiff_t>(i));
      }
      if (polled[1].revents != 0) Accept();
    }
  }

 private:
  static constexpr int kTickMs = 100;
  struct Peer {
    base::Descriptor socket;
    Clock::time_point end;
    os::MessageReader message{sizeof(cache::SessionKey), /*most_files=*/0};
  };

  // Returns whether the peer's message may yet become whole.
  bool Serve(Peer* peer) {
    const os::MessageReader::Got got = peer->message.Read(peer->socket.get());
    if (got == os::MessageReader::Got::kMessage) {
      const block::SessionId session =
          Answer(peer->socket.get(), peer->message, path_, calls_.open);
      if (session && calls_.keep != nullptr) calls_.keep(std::move(peer->socket), session);
    }
    return got == os::MessageReader::Got::kMore && Clock::now() < peer->end;
  }

  void Accept() {
    base::Descriptor socket(os::AcceptFrom(listener_));
    if (socket) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->socket = std::move(socket);
      peers_.back()->end = Clock::now() + kPatience;
      return;
    }
    if (errno != EMFILE && errno != ENFILE) return;  // the peer hung up
    // Out of descriptors: the queue stays readable, so do not spin on it.
    std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
  }

  const std::string& path_;
  const int listener_;
  const int wake_;
  const Calls& calls_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

absl::StatusOr<std::unique_ptr<FdSocket>> FdSocket::Listen(const std::string& path, Calls calls) {
  PREFIXD_ASSIGN_OR_RETURN(SocketGuard guard, SocketGuard::Claim(path));
  PREFIXD_ASSIGN_OR_RETURN(const int listener, ListenAt(path, os::MessageSocketType()));
  return std::unique_ptr<FdSocket>(
      new FdSocket(std::move(guard), path, listener, std::move(calls)));
}

FdSocket::FdSocket(SocketGuard guard, std::string path, int listener, Calls calls)
    : guard_(std::move(guard)),
      path_(std::move(path)),
      listener_(listener),
      calls_(std::move(calls)),
      thread_([this] { Server(path_, listener_, wake_.fd(), calls_).Run(); }) {}

FdSocket::~FdSocket() {
  wake_.Set();
  thread_.join();
  ::unlink(path_.c_str());
  ::close(listener_);
}

}  // namespace prefixd::daemon
