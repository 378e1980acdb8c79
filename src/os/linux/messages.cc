#include "os/messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/rights.h"

namespace prefixd::os {

int MessageSocketType() { return SOCK_SEQPACKET; }

bool SendMessage(int socket, std::string_view message, std::span<const int> files) {
  iovec part{.iov_base = const_cast<char*>(message.data()), .iov_len = message.size()};
  Rights rights;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  rights.Attach(files, &header);
  return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(message.size());
}

MessageReader::Got MessageReader::Read(int socket) {
  room_.resize(most_bytes_);
  iovec part{.iov_base = room_.data(), .iov_len = room_.size()};
  Rights rights;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  rights.MakeRoom(most_files_, &header);
  const ssize_t bytes = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_TRUNC);
  kept_bytes_ = bytes > 0 ? std::min(static_cast<size_t>(bytes), most_bytes_) : 0;
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kMore;
  if (bytes == 0) errno = 0;
  if (bytes <= 0) return Got::kEnd;
  sent_bytes_ = static_cast<uint64_t>(bytes);
  Rights::Take(&header, &files_);
  dropped_files_ = (header.msg_flags & MSG_CTRUNC) != 0;
  return Got::kMessage;
}

}  // namespace prefixd::os
