// The worker's end of the side socket.
#pragma once
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"

namespace prefixd::testing {

using base::Descriptor;

class Mapping {
 public:
  Mapping(const Descriptor& file, size_t bytes, int protection)
      : bytes_(bytes), base_(::mmap(nullptr, bytes, protection, MAP_SHARED, file.get(), 0)) {}
  ~Mapping() {
    if (ok()) ::munmap(base_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool ok() const { return base_ != MAP_FAILED; }
  char* at(size_t offset) const { return static_cast<char*>(base_) + offset; }

 private:
  const size_t bytes_;
  void* const base_;
};

inline Descriptor ConnectFdSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Descriptor();
  return fd;
}

struct FdReply {
  std::string text;  // empty: the connection ended
  std::vector<Descriptor> files;
};

inline FdReply ReceiveFiles(const Descriptor& fd) {
  char text[512];
  iovec part{.iov_base = text, .iov_len = sizeof(text)};
  alignas(cmsghdr) char control[256];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  FdReply reply;
  const ssize_t bytes = ::recvmsg(fd.get(), &message, MSG_CMSG_CLOEXEC);
  if (bytes <= 0) return reply;
  reply.text.assign(text, static_cast<size_t>(bytes));
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr;
       part_of = CMSG_NXTHDR(&message, part_of)) {
    const size_t count = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(part_of) + i * sizeof(int), sizeof(file));
      reply.files.emplace_back(file);
    }
  }
  return reply;
}

inline FdReply ExchangeKey(const std::string& path, const std::string& key) {
  const Descriptor fd = ConnectFdSocket(path);
  if (::send(fd.get(), key.data(), key.size(), MSG_NOSIGNAL) < 0) return {};
  return ReceiveFiles(fd);
}

}  // namespace prefixd::testing
