#include "bench/hostile/unfinished_messages.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace prefixd::bench {
namespace {

// RFC 9113: frame types and flags.
enum FrameType : uint8_t { kData = 0, kHeaders = 1, kSettings = 4, kPing = 6, kWindow = 8 };
constexpr uint8_t kAck = 1, kEndHeaders = 4;
constexpr size_t kFrameHead = 9, kFrameBytes = 16'384;
constexpr int kMomentMs = 50;

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  while (bytes-- > 0) text.push_back(static_cast<char>(value >> 8 * bytes));
  return text;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return BigEndian(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
         BigEndian(stream, 4) + payload;
}

// RFC 7541, 6.2.2: a literal without indexing, its name too; short ones.
std::string Field(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

uint32_t ReadBigEndian(const char* bytes, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

UnfinishedMessages::UnfinishedMessages(const std::string& address) {
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  address.copy(name.sun_path, sizeof(name.sun_path) - 1, std::strlen("unix://"));
  socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    ::close(socket_);
    socket_ = -1;
    return;
  }
  Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""));
}

UnfinishedMessages::~UnfinishedMessages() {
  if (socket_ >= 0) ::close(socket_);
}

bool UnfinishedMessages::Write(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

void UnfinishedMessages::ReadFrames() {
  pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
  char bytes[65'536];
  while (::poll(&ready, 1, 0) == 1) {
    const ssize_t got = ::recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return;
    heard_.append(bytes, static_cast<size_t>(got));
  }
  while (heard_.size() >= kFrameHead) {
    const uint32_t length = ReadBigEndian(heard_.data(), 3);
    if (heard_.size() < kFrameHead + length) return;
    const auto type = static_cast<uint8_t>(heard_[3]);
    const auto flags = static_cast<uint8_t>(heard_[4]);
    const uint32_t stream = ReadBigEndian(heard_.data() + 5, 4);
    const std::string payload = heard_.substr(kFrameHead, length);
    heard_.erase(0, kFrameHead + length);
    if (type == kSettings && (flags & kAck) == 0) {
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        const bool window = ReadBigEndian(payload.data() + at, 2) == 4;
        if (window) initial_window_ = ReadBigEndian(payload.data() + at + 2, 4);
      }
      Write(Frame(kSettings, kAck, 0, ""));
    } else if (type == kPing && (flags & kAck) == 0) {
      Write(Frame(kPing, kAck, 0, payload));
    } else if (type == kWindow && payload.size() == 4) {
      (stream == 0 ? connection_window_ : stream_window_) += ReadBigEndian(payload.data(), 4);
    }
  }
}

uint64_t UnfinishedMessages::Send(const std::string& method, uint32_t message_bytes) {
  ReadFrames();
  const uint32_t stream = next_stream_;
  next_stream_ += 2;
  stream_window_ = initial_window_;
  const std::string headers = Field(":method", "POST") + Field(":scheme", "http") +
                              Field(":path", method) + Field(":authority", "localhost") +
                              Field("content-type", "application/grpc") + Field("te", "trailers");
  if (!Write(Frame(kHeaders, kEndHeaders, stream, headers))) return 0;
  std::string head(1, '\0');  // not compressed
  head += BigEndian(message_bytes, 4);
  if (!Write(Frame(kData, 0, stream, head))) return 0;
  const std::string zeros(kFrameBytes, '\0');
  uint64_t sent = 0;
  while (sent + 1 < message_bytes) {
    const int64_t window = std::min(connection_window_, stream_window_);
    if (window <= 0) {
      pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, kMomentMs) != 1) return sent;
      const int64_t before = connection_window_ + stream_window_;
      ReadFrames();
      if (connection_window_ + stream_window_ == before && (ready.revents & POLLHUP) != 0) return 0;
      continue;
    }
    const auto count =
        static_cast<size_t>(std::min<int64_t>({window, static_cast<int64_t>(kFrameBytes),
                                               message_bytes - 1 - static_cast<int64_t>(sent)}));
    if (!Write(Frame(kData, 0, stream, zeros.substr(0, count)))) return 0;
    sent += count;
    connection_window_ -= static_cast<int64_t>(count);
    stream_window_ -= static_cast<int64_t>(count);
    ReadFrames();
  }
  return sent;
}

}  // namespace prefixd::bench
