#include "client/llama/client_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "os/files.h"
#include "os/sockets.h"

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
  for (const int number : os::OpenDescriptors().value_or(std::vector<int>())) {
    if (number > 0 && IsOf(number, address_, port_)) return number;
  }
  return -1;
}

bool ClientSocket::Gone() {
  if (!searched_) socket_ = Find();
  searched_ = true;
  return socket_ >= 0 && os::HasHungUp(socket_);
}

}  // namespace prefixd::llama
