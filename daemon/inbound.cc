#include "daemon/inbound.h"

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "daemon/unix_listener.h"
#include "os/override.h"
#include "os/sockets.h"

namespace prefixd::daemon {
namespace {

// Calls `take` with each part of the first `count` bytes of `message`, and with the size of the
// buffer in which it stands.
template <typename Take>
void ForEachPart(const msghdr& message, size_t count, Take take) {
  for (size_t i = 0; i < static_cast<size_t>(message.msg_iovlen) && count > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t here = std::min(count, part.iov_len);
    take(std::span(static_cast<const std::byte*>(part.iov_base), here), part.iov_len);
    count -= here;
  }
}

}  // namespace

class Inbound::Connection {
 public:
  Connection(int fd, std::shared_ptr<All> all)
      : fd_(fd), id_(os::SocketId(fd)), peer_(base::PeerOf(fd)), all_(std::move(all)) {}

  bool is_open() const { return id_ != 0 && os::SocketId(fd_) == id_; }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::string Describe() const {
    return peer_.has_value() ? base::Describe(*peer_) : "a process that is not known";
  }
  // Counts bytes that were read. Returns false after Leave: gRPC must not have them.
  bool Read(const msghdr& message, size_t count) PREFIXD_EXCLUDES(mutex_);
  void Wrote(const msghdr& message, size_t count) PREFIXD_EXCLUDES(mutex_);
  void BeginCall() PREFIXD_EXCLUDES(mutex_) { AddCalls(1); }
  void EndCall() PREFIXD_EXCLUDES(mutex_) { AddCalls(-1); }
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  // Takes the connection out of the sum and returns what it had there. Its reads fail from then on.
  uint64_t Leave() PREFIXD_EXCLUDES(mutex_);
  // Shuts the socket down; gRPC notices at its next read.
  void Cut() { ::shutdown(fd_, SHUT_RDWR); }

 private:
  const int fd_;
  const uint64_t id_;
  const std::optional<base::Peer> peer_;
  const std::shared_ptr<All> all_;
  base::Mutex mutex_;
  InboundFrames frames_ PREFIXD_GUARDED_BY(mutex_);
  const std::byte* buffer_rest_ PREFIXD_GUARDED_BY(mutex_) = nullptr;  // never read through
  void AddCalls(int count) PREFIXD_EXCLUDES(mutex_);
  uint64_t Recount() PREFIXD_REQUIRES(mutex_);  // returns the sum of all connections
  // Returns how many calls there are of streams that the peer has reset.
  uint64_t CallsGivenUp() PREFIXD_REQUIRES(mutex_);
  uint64_t resets_before_ PREFIXD_GUARDED_BY(mutex_) = 0;  // all their calls are freed
  std::atomic<int64_t> calls_{0};                          // written under the mutex
  std::atomic<uint64_t> bytes_{0};                         // written under the mutex
  bool left_ PREFIXD_GUARDED_BY(mutex_) = false;
};

struct Inbound::All {
  All(uint64_t bytes, std::function<void(const std::string&)> told)
      : most_bytes(bytes), on_cut(std::move(told)) {}

  // Cuts the largest connections until `bytes` is at most `most_bytes`, and until with those that
  // were cut before it is at most twice as much, but for connections that have little.
  void CutTheLargest() PREFIXD_EXCLUDES(mutex);
  bool TooMuch(const Connection& largest) const PREFIXD_REQUIRES(mutex);
  void ForgetTheClosed() PREFIXD_REQUIRES(mutex);

  const uint64_t most_bytes;
  const std::function<void(const std::string&)> on_cut;
  std::atomic<uint64_t> bytes{0};
  base::Mutex mutex;  // taken before a connection's own
  std::vector<std::shared_ptr<Connection>> connections PREFIXD_GUARDED_BY(mutex);
  // A connection that was cut or closed, and the memory that is kept for it until gRPC has closed
  // the socket and prefixd has freed its calls.
  struct Cut {
    std::shared_ptr<Connection> connection;
    uint64_t bytes;
  };
  std::vector<Cut> cut PREFIXD_GUARDED_BY(mutex);
  std::atomic<uint64_t> cut_bytes{0};  // their sum, written under the mutex
  std::chrono::steady_clock::time_point last_cut PREFIXD_GUARDED_BY(mutex);
};

uint64_t Inbound::Connection::Recount() {
  const uint64_t now = frames_.unfinished_bytes() + CallsGivenUp() * InboundFrames::kStreamBytes;
  return all_->bytes += now - bytes_.exchange(now);  // modulo 2^64, as it may be less
}

// A stream that prefixd ends is gone a moment before its call is. So calls beyond the streams count
// only as far as there were resets.
uint64_t Inbound::Connection::CallsGivenUp() {
  const auto calls = static_cast<uint64_t>(this->calls());
  const uint64_t beyond = calls - std::min<uint64_t>(calls, frames_.open_streams());
  if (beyond == 0) resets_before_ = frames_.resets();
  return std::min(beyond, frames_.resets() - resets_before_);
}

void Inbound::Connection::AddCalls(int count) {
  base::MutexLock lock(mutex_);
  calls_ += count;
  if (!left_) Recount();
}

bool Inbound::Connection::Read(const msghdr& message, size_t count) {
  uint64_t all = 0;
  {
    base::MutexLock lock(mutex_);
    if (left_) return false;
    ForEachPart(message, count, [&](auto bytes, size_t room) {
      // gRPC reads into the rest of a buffer next, or into a new one.
      if (bytes.data() != buffer_rest_) frames_.NextBuffer(room);
      buffer_rest_ = bytes.data() + bytes.size();
      frames_.Read(bytes);
    });
    all = Recount();
  }
  if (all + all_->cut_bytes > all_->most_bytes) all_->CutTheLargest();
  return true;
}

void Inbound::Connection::Wrote(const msghdr& message, size_t count) {
  base::MutexLock lock(mutex_);
  if (left_) return;
  ForEachPart(message, count, [&](auto bytes, size_t) { frames_.Wrote(bytes); });
  Recount();
}

uint64_t Inbound::Connection::Leave() {
  base::MutexLock lock(mutex_);
  left_ = true;
  const uint64_t had = bytes_.exchange(0);
  all_->bytes -= had;
  return had;
}

void Inbound::All::ForgetTheClosed() {
  std::erase_if(connections, [this](const std::shared_ptr<Connection>& connection) {
    if (connection->is_open()) return false;
    connection->Leave();
    const auto kept = static_cast<uint64_t>(connection->calls()) * InboundFrames::kStreamBytes;
    cut.push_back({.connection = connection, .bytes = kept});
    cut_bytes += kept;
    return true;
  });
  std::erase_if(cut, [this](const Cut& one) {
    if (one.connection->is_open() || one.connection->calls() > 0) return false;
    cut_bytes -= one.bytes;
    return true;
  });
}

bool Inbound::All::TooMuch(const Connection& largest) const {
  return bytes > most_bytes ||
         (bytes + cut_bytes > 2 * most_bytes && largest.bytes() > most_bytes / 8);
}

void Inbound::All::CutTheLargest() {
  std::vector<std::string> told;
  {
    base::MutexLock lock(mutex);
    ForgetTheClosed();  // gRPC closes connections without a word
    for (;;) {
      const auto largest = std::ranges::max_element(
          connections, {}, [](const std::shared_ptr<Connection>& one) { return one->bytes(); });
      if (largest == connections.end() || !TooMuch(**largest)) break;
      told.push_back(absl::StrCat("connection of ", (*largest)->Describe(),
                                  " cut: its messages that are not whole and its calls "
                                  "that were given up keep ",
                                  (*largest)->bytes(), " bytes of memory, all together ",
                                  bytes.load(), " (and ", cut_bytes.load(),
                                  " of connections cut before), at most ", most_bytes));
      const uint64_t had = (*largest)->Leave();
      (*largest)->Cut();
      cut_bytes += had;
      last_cut = std::chrono::steady_clock::now();
      cut.push_back({.connection = *largest, .bytes = had});
      connections.erase(largest);
    }
  }
  for (const std::string& line : told) on_cut(line);
}

namespace {

// The watched connections of this process by descriptor, as recvmsg knows no more.
struct Watched {
  base::Mutex mutex;
  std::unordered_map<int, std::shared_ptr<Inbound::Connection>> connections
      PREFIXD_GUARDED_BY(mutex);
};
Watched* watched_here = nullptr;
Watched& TheWatched() {
  static const bool made [[maybe_unused]] = [] {
    watched_here = new Watched;  // gRPC's threads may outlive everything else
    // A forked process has none of gRPC's threads, one of which may have held a mutex.
    ::pthread_atfork(nullptr, nullptr, [] { watched_here = new Watched; });
    return true;
  }();
  return *watched_here;
}

std::shared_ptr<Inbound::Connection> Find(int fd) {
  Watched& watched = TheWatched();
  base::MutexLock lock(watched.mutex);
  const auto found = watched.connections.find(fd);
  return found == watched.connections.end() ? nullptr : found->second;
}

// Ends the watch of a connection. `fd` may be another connection's by now, which stays.
void Forget(int fd, const std::shared_ptr<Inbound::Connection>& connection) {
  connection->Leave();
  Watched& watched = TheWatched();
  base::MutexLock lock(watched.mutex);
  const auto found = watched.connections.find(fd);
  if (found != watched.connections.end() && found->second == connection) {
    watched.connections.erase(found);
  }
}

// Returns the watched connection behind `fd`, or null.
std::shared_ptr<Inbound::Connection> FindOpen(int fd) {
  auto connection = Find(fd);
  if (connection == nullptr || connection->is_open()) return connection;
  Forget(fd, connection);  // the number is another socket's now
  return nullptr;
}

// Returns true if gRPC may have what recvmsg gave.
bool Look(int fd, const msghdr& message, size_t got) {
  const auto connection = FindOpen(fd);
  return connection == nullptr || connection->Read(message, got);
}

void LookAtWritten(int fd, const msghdr& message, size_t sent) {
  if (const auto connection = FindOpen(fd)) connection->Wrote(message, sent);
}

}  // namespace

Inbound::Inbound(uint64_t most_bytes, std::function<void(const std::string&)> on_cut)
    : all_(std::make_shared<All>(most_bytes, std::move(on_cut))) {}

Inbound::~Inbound() {
  base::MutexLock lock(all_->mutex);
  for (const auto& connection : all_->connections) connection->Leave();
  all_->connections.clear();
  all_->cut.clear();
}

void Inbound::WaitForRoom(std::chrono::milliseconds most) const {
  for (;;) {
    {
      base::MutexLock lock(all_->mutex);
      all_->ForgetTheClosed();
      if (all_->cut_bytes <= all_->most_bytes / 2) return;
      if (std::chrono::steady_clock::now() >= all_->last_cut + most) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // gRPC does not say when it closes
  }
}

void Inbound::Watch(int fd) {
  const auto connection = std::make_shared<Connection>(fd, all_);
  {
    Watched& watched = TheWatched();
    base::MutexLock lock(watched.mutex);
    watched.connections[fd] = connection;
  }
  base::MutexLock lock(all_->mutex);
  if (all_->connections.size() == all_->connections.capacity()) all_->ForgetTheClosed();
  all_->connections.push_back(connection);
}

namespace {

// Returns the watched connection of gRPC's peer, or null.
std::shared_ptr<Inbound::Connection> ConnectionOf(const std::string& peer) {
  const std::optional<int> fd = DescriptorOf(peer);
  return fd.has_value() ? FindOpen(*fd) : nullptr;
}

}  // namespace

InboundCall::InboundCall(const std::string& peer) : connection_(ConnectionOf(peer)) {
  if (connection_ != nullptr) connection_->BeginCall();
}

InboundCall::~InboundCall() {
  if (connection_ != nullptr) connection_->EndCall();
}

}  // namespace prefixd::daemon

// Libraries find these before libc's, so gRPC reads and writes its connections with them.
extern "C" ssize_t PREFIXD_OVERRIDE(recvmsg)(  // NOLINT: libc's name
    int fd, msghdr* message, int flags) {
  static const auto receive = PREFIXD_ORIGINAL(recvmsg);
  const ssize_t got = receive(fd, message, flags);
  if (got <= 0 || (flags & (MSG_PEEK | prefixd::os::kErrorQueue)) != 0) return got;
  if (prefixd::daemon::Look(fd, *message, static_cast<size_t>(got))) return got;
  errno = ECONNRESET;
  return -1;
}
PREFIXD_OVERRIDDEN(recvmsg)

extern "C" ssize_t PREFIXD_OVERRIDE(sendmsg)(  // NOLINT: libc's name
    int fd, const msghdr* message, int flags) {
  static const auto send = PREFIXD_ORIGINAL(sendmsg);
  const ssize_t sent = send(fd, message, flags);
  if (sent > 0) prefixd::daemon::LookAtWritten(fd, *message, static_cast<size_t>(sent));
  return sent;
}
PREFIXD_OVERRIDDEN(sendmsg)
