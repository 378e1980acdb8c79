// How both ends of a connection set gRPC up for pages: what Fetch and Put need to reach the speed
// of the socket, and what bounds the bytes they may have under way.
#pragma once
#include <cstdint>

#include "wire/limits.h"

namespace prefixd::wire {

// A piece travels as one HTTP/2 frame.
inline constexpr int kMaxFrameBytes = (1 << 24) - 1;
// Bytes that a peer may send on one stream before they are read: four pieces.
inline constexpr int kUnreadStreamBytes = static_cast<int>(4 * kMaxPieceBytes);
// Bytes that gRPC takes of a stream before it says that a message is written: the socket has the
// next piece while the caller makes the one after it.
inline constexpr int kUnsentStreamBytes = static_cast<int>(kMaxPieceBytes);

// How much a peer may send on all streams of a connection before it is read.
enum class ConnectionWindow {
  // 64 KiB, and one piece for each stream that waits for one. Bounds what a crowd of peers makes
  // the daemon hold.
  kNarrow,
  // gRPC's estimate: four pieces after the first ping, and up to 32 MiB where more than half of
  // that was seen to arrive within a ping. The sender need not wait while a piece is being taken.
  kEstimated,
};

// `set(name, value)` puts an int among the arguments of a channel or a server.
template <typename Set>
void SetBulkArguments(ConnectionWindow window, Set set) {
  set("grpc.http2.max_frame_size", kMaxFrameBytes);
  set("grpc.http2.bdp_probe", window == ConnectionWindow::kEstimated ? 1 : 0);
  set("grpc.http2.lookahead_bytes", kUnreadStreamBytes);
  set("grpc.http2.write_buffer_size", kUnsentStreamBytes);
}

}  // namespace prefixd::wire
