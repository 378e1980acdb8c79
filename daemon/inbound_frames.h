// The frames of one HTTP/2 connection (RFC 9113), followed as its bytes are read: how much it has
// sent of gRPC messages that are not whole yet.
//
// Not thread-safe. Takes any bytes; what is no HTTP/2 counts as something, and harms nobody else.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

namespace prefixd::daemon {

class InboundFrames {
 public:
  // The next bytes of the connection, from its first one on.
  void Read(std::span<const std::byte> bytes);
  // The next bytes that went to the peer: of a stream that ends there nothing is kept any more,
  // whatever of it the peer still sends.
  void Wrote(std::span<const std::byte> bytes);
  // The sum over the streams that neither side has ended: about what gRPC keeps of each, its
  // headers, and what came of a message that is not whole.
  uint64_t unfinished_bytes() const { return unfinished_bytes_; }

 private:
  static constexpr size_t kPrefaceBytes = 24, kHeadBytes = 9, kPrefixBytes = 5;
  enum FrameType : uint8_t { kData = 0, kHeaders = 1, kReset = 3, kContinuation = 9 };
  enum Flag : uint8_t { kEndStream = 1, kPadded = 8 };

  // A message is a byte that tells whether it is compressed, its length, and itself.
  struct Stream {
    std::array<uint8_t, kPrefixBytes> prefix{};  // of the message that comes
    size_t prefix_bytes = 0;
    uint64_t message_left = 0;  // once the prefix is whole
    uint64_t message_bytes = 0;
    uint64_t header_bytes = 0;
  };

  void BeginFrame();
  void EndFrame();
  std::span<const std::byte> Payload(std::span<const std::byte> bytes);
  void Headers(uint64_t bytes);
  void Data(std::span<const std::byte> bytes);
  void Forget(uint32_t stream);

  uint64_t unfinished_bytes_ = 0;
  size_t preface_left_ = kPrefaceBytes;
  std::array<uint8_t, kHeadBytes> head_{};
  size_t head_bytes_ = 0;
  // The frame whose head is whole:
  uint64_t payload_left_ = 0;
  uint64_t padding_ = 0;  // at its end
  bool pad_length_comes_ = false;
  uint8_t type_ = 0, flags_ = 0;
  uint32_t stream_ = 0;
  std::unordered_map<uint32_t, Stream> streams_;  // that neither side has ended
  uint32_t newest_ = 0;                           // stream that was begun
  // What is written:
  std::array<uint8_t, kHeadBytes> wrote_head_{};
  size_t wrote_head_bytes_ = 0;
  uint64_t wrote_left_ = 0;
};

}  // namespace prefixd::daemon
