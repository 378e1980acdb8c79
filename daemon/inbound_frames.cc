#include "daemon/inbound_frames.h"

#include <algorithm>

namespace prefixd::daemon {
namespace {

uint32_t BigEndian(const uint8_t* bytes, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace

void InboundFrames::NextBuffer(size_t bytes) {
  ++buffer_;
  buffer_bytes_ = bytes;
}

void InboundFrames::Read(std::span<const std::byte> bytes) {
  const size_t preface = std::min(bytes.size(), preface_left_);
  preface_left_ -= preface;
  bytes = bytes.subspan(preface);
  while (!bytes.empty()) {
    if (head_bytes_ < kHeadBytes) {
      head_[head_bytes_++] = std::to_integer<uint8_t>(bytes.front());
      bytes = bytes.subspan(1);
      if (head_bytes_ == kHeadBytes) BeginFrame();
    } else {
      bytes = Payload(bytes);
    }
  }
}

void InboundFrames::BeginFrame() {
  payload_left_ = BigEndian(head_.data(), 3);
  type_ = head_[3];
  flags_ = head_[4];
  stream_ = BigEndian(head_.data() + 5, 4) & 0x7fffffff;
  padding_ = 0;
  pad_length_comes_ = type_ == kData && (flags_ & kPadded) != 0;
  if (type_ == kHeaders) Headers(0);
  if (payload_left_ == 0) EndFrame();
}

void InboundFrames::EndFrame() {
  head_bytes_ = 0;
  const bool ends = (type_ == kData || type_ == kHeaders) && (flags_ & kEndStream) != 0;
  if (ends && Forget(stream_)) asked_.insert(stream_);
  if (type_ == kReset && (Forget(stream_) || asked_.erase(stream_) > 0)) ++resets_;
}

std::span<const std::byte> InboundFrames::Payload(std::span<const std::byte> bytes) {
  size_t count = std::min<uint64_t>(bytes.size(), payload_left_);
  if (pad_length_comes_) {
    count = 1;
    pad_length_comes_ = false;
    padding_ = std::to_integer<uint8_t>(bytes.front());
  } else if (type_ == kData) {
    const uint64_t data_left = payload_left_ - std::min(padding_, payload_left_);
    Data(bytes.first(std::min<uint64_t>(count, data_left)));
  } else if (type_ == kHeaders || type_ == kContinuation) {
    Headers(count);
  }
  payload_left_ -= count;
  if (payload_left_ == 0) EndFrame();
  return bytes.subspan(count);
}

void InboundFrames::Wrote(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t payload = std::min<uint64_t>(bytes.size(), wrote_left_);
    wrote_left_ -= payload;
    bytes = bytes.subspan(payload);
    if (bytes.empty()) return;
    wrote_head_[wrote_head_bytes_++] = std::to_integer<uint8_t>(bytes.front());
    bytes = bytes.subspan(1);
    if (wrote_head_bytes_ < kHeadBytes) continue;
    wrote_head_bytes_ = 0;
    wrote_left_ = BigEndian(wrote_head_.data(), 3);
    const uint8_t type = wrote_head_[3];
    const bool ends = (type == kData || type == kHeaders) && (wrote_head_[4] & kEndStream) != 0;
    if (!ends && type != kReset) continue;
    const uint32_t stream = BigEndian(wrote_head_.data() + 5, 4) & 0x7fffffff;
    Forget(stream);
    asked_.erase(stream);
  }
}

void InboundFrames::Headers(uint64_t bytes) {
  if (stream_ > newest_) {  // an older stream that is not in `streams_` has ended
    newest_ = stream_;
    streams_.try_emplace(stream_);
    stream_bytes_ += kStreamBytes;
  }
  const auto found = streams_.find(stream_);
  if (found == streams_.end()) return;
  found->second.header_bytes += bytes;
  stream_bytes_ += bytes;
}

void InboundFrames::Data(std::span<const std::byte> bytes) {
  const auto found = streams_.find(stream_);
  if (found == streams_.end()) return;  // gRPC passes over its data too
  Stream& stream = found->second;
  while (!bytes.empty()) {
    Keep(&stream);
    if (stream.prefix_bytes < kPrefixBytes) {
      stream.prefix[stream.prefix_bytes++] = std::to_integer<uint8_t>(bytes.front());
      bytes = bytes.subspan(1);
      if (stream.prefix_bytes == kPrefixBytes)
        stream.message_left = BigEndian(&stream.prefix[1], 4);
    } else {
      const uint64_t count = std::min<uint64_t>(bytes.size(), stream.message_left);
      stream.message_left -= count;
      stream.message_bytes += count;
      message_bytes_ += count;
      bytes = bytes.subspan(count);
    }
    if (stream.prefix_bytes == kPrefixBytes && stream.message_left == 0) EndMessage(&stream);
  }
}

void InboundFrames::Keep(Stream* stream) {
  if (!stream->buffers.empty() && stream->buffers.back() == buffer_) return;
  stream->buffers.push_back(buffer_);
  Buffer& buffer = kept_buffers_[buffer_];
  if (buffer.streams++ > 0) return;
  buffer.bytes = buffer_bytes_;
  kept_buffer_bytes_ += buffer_bytes_;
}

void InboundFrames::EndMessage(Stream* stream) {
  for (const uint64_t number : stream->buffers) {
    const auto found = kept_buffers_.find(number);
    if (--found->second.streams > 0) continue;
    kept_buffer_bytes_ -= found->second.bytes;
    kept_buffers_.erase(found);
  }
  stream->buffers.clear();
  message_bytes_ -= stream->message_bytes;
  stream->message_bytes = 0;
  stream->prefix_bytes = 0;
}

bool InboundFrames::Forget(uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  EndMessage(&found->second);
  stream_bytes_ -= kStreamBytes + found->second.header_bytes;
  streams_.erase(found);
  return true;
}

}  // namespace prefixd::daemon
