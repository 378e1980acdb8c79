// How both ends of a connection set gRPC up for pages: what Fetch and Put need to reach the speed
// of the socket, and what bounds the bytes they may have under way.
#pragma once
#include <cstdint>

#include "wire/limits.h"

namespace prefixd::wire {

// A piece travels as one HTTP/2 frame.
inline constexpr int kMaxFrameBytes = (1 << 24) - 1;
// What a peer may send on one stream before it is read: four pieces. Fixed, for gRPC's own estimate
// of the window (its pings answer too late between busy cores) leaves the sender waiting.
inline constexpr int kUnreadStreamBytes = static_cast<int>(4 * kMaxPieceBytes);
// What gRPC takes of a stream before it says that a message is written: the socket has the next
// piece while the one after it is being made.
inline constexpr int kUnsentStreamBytes = static_cast<int>(kMaxPieceBytes);

// `set(name, value)` puts an int among the arguments of a channel or a server.
template <typename Set>
void SetBulkArguments(Set set) {
  set("grpc.http2.max_frame_size", kMaxFrameBytes);
  set("grpc.http2.bdp_probe", 0);
  set("grpc.http2.lookahead_bytes", kUnreadStreamBytes);
  set("grpc.http2.write_buffer_size", kUnsentStreamBytes);
}

}  // namespace prefixd::wire
