#include "os/messages.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "os/rights.h"

namespace prefixd::os {
namespace {

constexpr size_t kHeadBytes = 4;
// A longer rest of a message is left in the socket; no SendMessage sends as much.
constexpr uint64_t kMostDropped = uint64_t{256} << 10;

std::array<char, kHeadBytes> HeadOf(size_t bytes) {
  std::array<char, kHeadBytes> head;
  for (size_t i = 0; i < kHeadBytes; ++i) head[i] = static_cast<char>(bytes >> 8 * i & 255);
  return head;
}

uint64_t LengthIn(const std::string& head) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < kHeadBytes; ++i) {
    bytes |= uint64_t{static_cast<unsigned char>(head[i])} << 8 * i;
  }
  return bytes;
}

}  // namespace

int MessageSocketType() { return SOCK_STREAM; }

// One call, so that no part of a message waits for another.
bool SendMessage(int socket, std::string_view message, std::span<const int> files) {
  std::array<char, kHeadBytes> head = HeadOf(message.size());
  std::array<iovec, 2> parts{
      {{.iov_base = head.data(), .iov_len = head.size()},
       {.iov_base = const_cast<char*>(message.data()), .iov_len = message.size()}}};
  Rights rights;
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  rights.Attach(files, &header);
  const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0 && sent != static_cast<ssize_t>(kHeadBytes + message.size())) errno = EMSGSIZE;
  return sent == static_cast<ssize_t>(kHeadBytes + message.size());
}

// What is dropped is read nevertheless: a peer that is still sending would not hear the answer.
MessageReader::Got MessageReader::Read(int socket) {
  room_.resize(most_bytes_);
  for (;;) {
    const bool in_head = head_.size() < kHeadBytes;
    if (!in_head && sent_bytes_ == 0) sent_bytes_ = LengthIn(head_);
    if (!in_head && sent_bytes_ == 0) {  // as the kernel tells an empty message from none
      errno = 0;
      return Got::kEnd;
    }
    const uint64_t kept = std::min<uint64_t>(sent_bytes_, most_bytes_);
    const uint64_t dropped = sent_bytes_ - kept > kMostDropped ? 0 : sent_bytes_ - kept;
    if (!in_head && kept_bytes_ == kept && dropped_bytes_ == dropped) return Got::kMessage;
    std::array<char, 4096> piece;
    iovec part{.iov_base = piece.data(), .iov_len = piece.size()};
    if (in_head) {
      part.iov_len = kHeadBytes - head_.size();
    } else if (kept_bytes_ < kept) {
      part = {.iov_base = room_.data() + kept_bytes_, .iov_len = kept - kept_bytes_};
    } else {
      part.iov_len = std::min<uint64_t>(dropped - dropped_bytes_, piece.size());
    }
    Rights rights;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    rights.MakeRoom(most_files_, &header);
    const ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kMore;
    if (got == 0) errno = 0;
    if (got <= 0) return Got::kEnd;
    Rights::Take(&header, &files_);
    for (const int file : files_) fcntl(file, F_SETFD, FD_CLOEXEC);
    dropped_files_ = dropped_files_ || (header.msg_flags & MSG_CTRUNC) != 0;
    const auto bytes = static_cast<size_t>(got);
    if (in_head) {
      head_.append(piece.data(), bytes);
    } else if (kept_bytes_ < kept) {
      kept_bytes_ += bytes;
    } else {
      dropped_bytes_ += bytes;
    }
  }
}

}  // namespace prefixd::os
