// Follows the frames of one HTTP/2 connection (RFC 9113) as its bytes are read, and says how much
// memory gRPC keeps for its messages that are not whole yet. gRPC cuts messages out of the buffers
// that it reads into, so one byte of a message keeps a whole buffer. Says too which streams wait
// for prefixd, and how many the peer has reset.
//
// Not thread-safe. Takes any bytes: what is no HTTP/2 counts as something and harms nobody else.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace prefixd::daemon {

class InboundFrames {
 public:
  // What gRPC 1.51 keeps of a call that has begun (measured: 38 KiB), and this class of its stream.
  static constexpr uint64_t kStreamBytes = 40'960;

  // The bytes that follow are read into a new buffer of this size.
  void NextBuffer(size_t bytes);
  // Takes the next bytes of the connection, from its first one on.
  void Read(std::span<const std::byte> bytes);
  // Takes the next bytes that went to the peer. A stream that ends there counts no more, whatever
  // the peer still sends of it.
  void Wrote(std::span<const std::byte> bytes);
  // Returns the memory of the streams that neither side has ended: about what gRPC keeps of each,
  // its headers, and the buffers in which bytes of messages stand that are not whole. Where buffers
  // are not told, these bytes alone.
  uint64_t unfinished_bytes() const {
    return stream_bytes_ + std::max(message_bytes_, kept_buffer_bytes_);
  }
  // Streams that prefixd has not ended and the peer has not reset.
  size_t open_streams() const { return streams_.size() + asked_.size(); }
  // Streams that the peer reset while they were open: gRPC lets go of them, prefixd still has their
  // calls.
  uint64_t resets() const { return resets_; }

 private:
  static constexpr size_t kPrefaceBytes = 24, kHeadBytes = 9, kPrefixBytes = 5;
  enum FrameType : uint8_t { kData = 0, kHeaders = 1, kReset = 3, kContinuation = 9 };
  enum Flag : uint8_t { kEndStream = 1, kPadded = 8 };

  // A message is a prefix (a byte that says whether it is compressed, its length) and its bytes.
  struct Stream {
    std::array<uint8_t, kPrefixBytes> prefix{};  // of the current message
    size_t prefix_bytes = 0;
    uint64_t message_left = 0;  // valid once the prefix is whole
    uint64_t message_bytes = 0;
    uint64_t header_bytes = 0;
    std::vector<uint64_t> buffers;  // in which bytes of the current message stand, ascending
  };
  struct Buffer {
    uint64_t bytes = 0;
    size_t streams = 0;  // that keep it
  };

  void BeginFrame();
  void EndFrame();
  std::span<const std::byte> Payload(std::span<const std::byte> bytes);
  void Headers(uint64_t bytes);
  void Data(std::span<const std::byte> bytes);
  bool Forget(uint32_t stream);  // returns whether neither side had ended it
  void Keep(Stream* stream);     // the buffer that is read into
  void EndMessage(Stream* stream);

  uint64_t stream_bytes_ = 0;   // of streams and headers
  uint64_t message_bytes_ = 0;  // that came of messages which are not whole
  uint64_t kept_buffer_bytes_ = 0;
  uint64_t buffer_ = 0;  // number of the buffer that is read into
  uint64_t buffer_bytes_ = 0;
  std::unordered_map<uint64_t, Buffer> kept_buffers_;
  size_t preface_left_ = kPrefaceBytes;
  std::array<uint8_t, kHeadBytes> head_{};
  size_t head_bytes_ = 0;
  // The frame that is being read, once its head is whole:
  uint64_t payload_left_ = 0;
  uint64_t padding_ = 0;  // bytes at the frame's end
  bool pad_length_comes_ = false;
  uint8_t type_ = 0, flags_ = 0;
  uint32_t stream_ = 0;
  std::unordered_map<uint32_t, Stream> streams_;  // those that neither side has ended
  std::unordered_set<uint32_t> asked_;            // those that the peer alone has ended
  uint64_t resets_ = 0;
  uint32_t newest_ = 0;  // the newest stream that was begun
  // The frame that is being written:
  std::array<uint8_t, kHeadBytes> wrote_head_{};
  size_t wrote_head_bytes_ = 0;
  uint64_t wrote_left_ = 0;
};

}  // namespace prefixd::daemon
