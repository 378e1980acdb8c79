// The worker's end of the side socket.
#pragma once
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "os/messages.h"
#include "os/sockets.h"

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
  Descriptor fd(os::NewSocket(AF_UNIX, os::MessageSocketType(), 0, os::Waits::kYes));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Descriptor();
  return fd;
}

struct FdReply {
  std::string text;  // empty: the connection ended
  std::vector<Descriptor> files;
};

inline FdReply ReceiveFiles(const Descriptor& fd) {
  constexpr int kPatienceMs = 10'000;
  os::MessageReader message(512, 8);
  os::MessageReader::Got got = os::MessageReader::Got::kMore;
  pollfd polled{.fd = fd.get(), .events = POLLIN, .revents = 0};
  while (got == os::MessageReader::Got::kMore && ::poll(&polled, 1, kPatienceMs) > 0) {
    got = message.Read(fd.get());
  }
  FdReply reply;
  if (got != os::MessageReader::Got::kMessage) return reply;
  reply.text = message.bytes();
  for (const int file : message.TakeFiles()) reply.files.emplace_back(file);
  return reply;
}

inline FdReply ExchangeKey(const std::string& path, const std::string& key) {
  const Descriptor fd = ConnectFdSocket(path);
  if (!os::SendMessage(fd.get(), key, {})) return {};
  return ReceiveFiles(fd);
}

}  // namespace prefixd::testing
