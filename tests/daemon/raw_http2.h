// A client that speaks just enough HTTP/2 to begin gRPC messages and never end them.
#pragma once
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace prefixd::testing {

class RawHttp2 {
 public:
  explicit RawHttp2(const std::string& socket_path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, socket_path.data(), socket_path.size());
    closed_ = connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0;
    SendAll("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    SendFrame(kSettings, 0, 0, "");
  }
  ~RawHttp2() { close(fd_); }
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // A call of this method whose message says that it has so many bytes.
  void Begin(const std::string& path, uint32_t message_bytes) {
    const uint32_t id = next_id_;
    next_id_ += 2;
    std::string headers;
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{":method", "POST"},
                                                          {":scheme", "http"},
                                                          {":path", path},
                                                          {":authority", "test"},
                                                          {"te", "trailers"},
                                                          {"content-type", "application/grpc"}}) {
      headers.push_back(0);
      headers.push_back(static_cast<char>(name.size()));
      headers += name;
      headers.push_back(static_cast<char>(value.size()));
      headers += value;
    }
    SendFrame(kHeaders, kEndHeaders, id, headers);
    Stream& stream = streams_[id];
    stream.window = initial_window_;
    stream.prefix.push_back(0);
    stream.prefix += Number(message_bytes, 4);
    stream.left = message_bytes - 1;  // the last byte never comes
  }

  // Sends what the windows allow and reads what came. False: nothing is left to be sent.
  bool Step() {
    bool moved = false, left = false;
    for (auto& [id, stream] : streams_) {
      if (stream.over || (stream.prefix.empty() && stream.left == 0)) continue;
      left = true;
      moved |= SendSome(id, &stream);
    }
    Receive(moved || !left ? 0 : 1000);
    return left && !closed_;
  }

  // Of messages whose stream the server did not give up.
  uint64_t unfinished_bytes() const {
    uint64_t bytes = 0;
    for (const auto& [id, stream] : streams_) bytes += stream.over || closed_ ? 0 : stream.sent;
    return bytes;
  }

 private:
  enum Type : uint8_t {
    kData = 0,
    kHeaders = 1,
    kReset = 3,
    kSettings = 4,
    kPing = 6,
    kWindow = 8
  };
  static constexpr uint8_t kEndHeaders = 4, kAck = 1;
  struct Stream {
    int64_t window = 0;
    std::string prefix;  // of the message, that is still to be sent
    uint64_t left = 0, sent = 0;
    bool over = false;
  };

  static std::string Number(uint64_t value, int bytes) {
    std::string text;
    for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> 8 * i & 255));
    return text;
  }
  static uint32_t ReadNumber(const std::string& text, size_t at, size_t bytes) {
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[at + i]);
    return value;
  }
  void SendAll(const std::string& text) {
    for (size_t sent = 0; sent < text.size() && !closed_;) {
      const ssize_t count = send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) closed_ = true;
      sent += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
  }
  void SendFrame(uint8_t type, uint8_t flags, uint32_t id, const std::string& payload) {
    std::string frame = Number(payload.size(), 3);
    frame.push_back(static_cast<char>(type));
    frame.push_back(static_cast<char>(flags));
    SendAll(frame + Number(id, 4) + payload);
  }
  bool SendSome(uint32_t id, Stream* stream) {
    const int64_t room = std::min({window_, stream->window, int64_t{16384}});
    if (room < 5) return false;
    std::string payload = std::exchange(stream->prefix, "");
    const uint64_t count = std::min(static_cast<uint64_t>(room) - payload.size(), stream->left);
    payload.append(count, '\0');
    stream->left -= count;
    stream->sent += payload.size();
    stream->window -= static_cast<int64_t>(payload.size());
    window_ -= static_cast<int64_t>(payload.size());
    SendFrame(kData, 0, id, payload);
    return true;
  }
  void Receive(int wait_ms) {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    while (!closed_ && poll(&ready, 1, wait_ms) > 0) {
      wait_ms = 0;
      std::array<char, 65536> buffer;
      const ssize_t count = recv(fd_, buffer.data(), buffer.size(), 0);
      if (count <= 0) closed_ = true;
      received_.append(buffer.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
      while (TakeFrame()) {
      }
    }
  }
  bool TakeFrame() {
    if (received_.size() < 9 || received_.size() < 9 + ReadNumber(received_, 0, 3)) return false;
    const size_t bytes = ReadNumber(received_, 0, 3);
    const auto type = static_cast<uint8_t>(received_[3]),
               flags = static_cast<uint8_t>(received_[4]);
    const uint32_t id = ReadNumber(received_, 5, 4);
    const std::string payload = received_.substr(9, bytes);
    received_.erase(0, 9 + bytes);
    if (type == kSettings && (flags & kAck) == 0) {
      for (size_t at = 0; at + 6 <= bytes; at += 6) {
        if (ReadNumber(payload, at, 2) != 4) continue;
        const int64_t window = ReadNumber(payload, at + 2, 4);
        for (auto& [other, stream] : streams_) stream.window += window - initial_window_;
        initial_window_ = window;
      }
      SendFrame(kSettings, kAck, 0, "");
    }
    if (type == kPing && (flags & kAck) == 0) SendFrame(kPing, kAck, 0, payload);
    if (type == kWindow) (id == 0 ? window_ : streams_[id].window) += ReadNumber(payload, 0, 4);
    if (type == kReset) streams_[id].over = true;
    return true;
  }

  const int fd_;
  bool closed_ = false;
  uint32_t next_id_ = 1;
  int64_t window_ = 65535, initial_window_ = 65535;
  std::map<uint32_t, Stream> streams_;
  std::string received_;
};

}  // namespace prefixd::testing
