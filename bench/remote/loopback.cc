#include "bench/remote/loopback.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace prefixd::bench {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

struct Order {
  uint64_t bytes = 0;
  uint64_t peer_sends = 0;
};

sockaddr_in AddressOf(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

// Bound to a free port; -1 when the kernel refuses.
int BoundSocket(const std::string& host, uint16_t* port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = AddressOf(host, 0);
  socklen_t size = sizeof(address);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    ::close(listener);
    return -1;
  }
  *port = ntohs(address.sin_port);
  return listener;
}

bool WriteAll(int socket, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::send(socket, from, bytes, MSG_NOSIGNAL);
    if (written <= 0) return false;
    from += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

bool ReadAll(int socket, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t read = ::recv(socket, to, bytes, 0);
    if (read <= 0) return false;
    to += read;
    bytes -= static_cast<size_t>(read);
  }
  return true;
}

// A socket belongs to the network namespace in which it was made: a thread goes there to make it.
int ListenIn(const Place& place, uint16_t* port) {
  int listener = -1;
  std::thread maker([&] {
    if (!place.network_namespace.empty()) {
      const std::string file = "/run/netns/" + place.network_namespace;
      const int there = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
      const bool entered = there >= 0 && ::setns(there, CLONE_NEWNET) == 0;
      if (there >= 0) ::close(there);
      if (!entered) return;
    }
    listener = BoundSocket(place.address, port);
  });
  maker.join();
  if (listener < 0 || ::listen(listener, 16) == 0) return listener;
  ::close(listener);
  return -1;
}

// Only system calls from here on: the process was forked.
[[noreturn]] void ServeConnection(int socket, std::byte* memory, uint64_t memory_bytes) {
  Order order;
  bool good = true;
  while (good && ReadAll(socket, reinterpret_cast<std::byte*>(&order), sizeof(order))) {
    for (uint64_t at = 0; good && at < order.bytes;) {
      const uint64_t place = at % memory_bytes;
      const uint64_t bytes = std::min({kPiece, order.bytes - at, memory_bytes - place});
      good = order.peer_sends != 0 ? WriteAll(socket, memory + place, bytes)
                                   : ReadAll(socket, memory + place, bytes);
      at += bytes;
    }
    const std::byte done{1};
    good = good && (order.peer_sends != 0 || WriteAll(socket, &done, 1));
  }
  ::_exit(0);
}

[[noreturn]] void ServeAll(int listener, uint64_t memory_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGCHLD, SIG_IGN);  // nobody waits for the connections' processes
  void* const memory = ::mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) ::_exit(1);
  std::memset(memory, 1, memory_bytes);
  for (;;) {
    const int socket = ::accept(listener, nullptr, nullptr);
    if (socket < 0) ::_exit(0);
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      ServeConnection(socket, static_cast<std::byte*>(memory), memory_bytes);
    }
    ::close(socket);
  }
}

}  // namespace

uint16_t FreePort() {
  uint16_t port = 0;
  const int socket = BoundSocket(Place().address, &port);
  if (socket >= 0) ::close(socket);
  return port;
}

LoopbackSocket::LoopbackSocket(uint16_t port, const std::string& host)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  const sockaddr_in address = AddressOf(host, port);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return;
  ::close(socket_);
  socket_ = -1;
}

LoopbackSocket::~LoopbackSocket() {
  if (socket_ >= 0) ::close(socket_);
}

bool LoopbackSocket::Write(std::span<const std::byte> bytes) const {
  return socket_ >= 0 && WriteAll(socket_, bytes.data(), bytes.size());
}

bool LoopbackSocket::Read(std::span<std::byte> bytes) const {
  return socket_ >= 0 && ReadAll(socket_, bytes.data(), bytes.size());
}

bool LoopbackSocket::Ask(const std::string& command, std::string* line) const {
  if (!Write(std::as_bytes(std::span(command)))) return false;
  line->clear();
  while (!line->ends_with("\r\n")) {
    std::byte next{};
    if (!Read({&next, 1})) return false;
    line->push_back(static_cast<char>(next));
  }
  return true;
}

bool LoopbackSocket::Answers() const {
  std::string line;
  return Ask("*1\r\n$4\r\nPING\r\n", &line) && line == "+PONG\r\n";
}

std::unique_ptr<LoopbackPeer> LoopbackPeer::Start(uint64_t memory_bytes, const Place& place) {
  uint16_t port = 0;
  const int listener = ListenIn(place, &port);
  if (listener < 0) return nullptr;
  const pid_t pid = ::fork();
  if (pid == 0) ServeAll(listener, memory_bytes);
  ::close(listener);
  if (pid < 0) return nullptr;
  return std::unique_ptr<LoopbackPeer>(new LoopbackPeer(pid, port, place));
}

LoopbackPeer::~LoopbackPeer() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool LoopbackPeer::ReceiveAll(const LoopbackSocket& socket, std::span<std::byte> memory) {
  const Order order{.bytes = memory.size(), .peer_sends = 1};
  if (!socket.Write(std::as_bytes(std::span(&order, 1)))) return false;
  for (; !memory.empty(); memory = memory.subspan(std::min(kPiece, memory.size()))) {
    if (!socket.Read(memory.first(std::min(kPiece, memory.size())))) return false;
  }
  return true;
}

bool LoopbackPeer::SendAll(const LoopbackSocket& socket, std::span<const std::byte> memory) {
  const Order order{.bytes = memory.size(), .peer_sends = 0};
  std::byte done{};
  return socket.Write(std::as_bytes(std::span(&order, 1))) && socket.Write(memory) &&
         socket.Read({&done, 1});
}

}  // namespace prefixd::bench
