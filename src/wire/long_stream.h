// One end of a stream of pages. As soon as the stream proves to be long, its socket takes more at a
// time, and the thread stays beside the other end's. Short streams are not worth that.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "wire/socket_buffers.h"
#include "wire/stream_cpu.h"

namespace prefixd::wire {

// Used and destroyed by the thread that moves the bytes.
class LongStream {
 public:
  // `address`: of the socket that the stream goes to or was accepted at. `cpu`: what the caller
  // named.
  LongStream(std::string address, std::optional<int> cpu)
      : address_(std::move(address)), cpu_(cpu) {}
  void Sent(uint64_t bytes) {
    if (Proves(bytes)) EnlargeSendBuffers(address_);
  }
  void Received(uint64_t bytes) { Proves(bytes); }

 private:
  // Returns true once, when the stream becomes long.
  bool Proves(uint64_t bytes) {
    const bool before = moved_ >= kLongStreamBytes;
    moved_ += bytes;
    if (before || moved_ < kLongStreamBytes) return false;
    if (cpu_.has_value()) stay_.emplace(*cpu_);
    return true;
  }

  const std::string address_;
  const std::optional<int> cpu_;
  uint64_t moved_ = 0;
  std::optional<StayBeside> stay_;
};

}  // namespace prefixd::wire
