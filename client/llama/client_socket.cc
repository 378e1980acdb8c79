#include "client/llama/client_socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace prefixd::llama {
namespace {

// Returns true if the other end of `socket` is at that address.
bool IsOf(int socket, const std::string& address, int port) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  char text[INET6_ADDRSTRLEN] = "";
  uint16_t its_port = 0;
  if (peer.ss_family == AF_INET) {
    sockaddr_in in4{};
    std::memcpy(&in4, &peer, sizeof(in4));
    inet_ntop(AF_INET, &in4.sin_addr, text, sizeof(text));
    its_port = ntohs(in4.sin_port);
  } else if (peer.ss_family == AF_INET6) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, &peer, sizeof(in6));
    inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
    its_port = ntohs(in6.sin6_port);
  }
  return its_port == port && address == text;
}

}  // namespace

int ClientSocket::Find() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return -1;
  while (const dirent* const entry = readdir(folder.get())) {
    const int number = std::atoi(entry->d_name);
    if (number > 0 && IsOf(number, address_, port_)) return number;
  }
  return -1;
}

bool ClientSocket::Gone() {
  if (!searched_) socket_ = Find();
  searched_ = true;
  if (socket_ < 0) return false;
  pollfd look{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace prefixd::llama
