// Direct calls: short calls of PrefixCache as messages on the connection over which a worker got
// its files (os/messages.h), in a fraction of the time that gRPC takes.
//
// The worker sends a DirectRequest and behind it the method's request, all in one message. The
// daemon answers with a DirectAnswer and behind it the method's reply or, after an error, what is
// wrong, in as many messages as it takes: only the first one has a head. A connection carries one
// call at a time. Calls of a session that are made at the same time, long ones, and those that wait
// for another worker go by gRPC.
//
// An answer hands out leases and reservations. They are the worker's once a request says that it
// has read the answer (`heard`), or until the session ends; what an answer handed out that was not
// heard when the next request comes is taken back.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace prefixd::wire {

// Methods; kNone goes by gRPC alone.
enum class DirectVerb : uint32_t {
  kNone = 0,
  kMatch = 1,
  kAcquire = 2,
  kRelease = 3,
  kReserve = 4,
  kCommit = 5,
  kAbandon = 6,
};

struct DirectRequest {
  uint64_t call = 0;   // number of the call on its connection: 1, 2, 3, ...
  uint64_t heard = 0;  // the last call whose answer the worker has read; 0: none
  DirectVerb verb = DirectVerb::kNone;
  uint32_t patience_ms = 0;  // how long the worker waits
};
struct DirectAnswer {
  uint64_t call = 0;
  uint32_t code = 0;   // of absl::Status, or kCallByGrpc
  uint32_t bytes = 0;  // of reply or text
};
// Nothing was done: the worker has to call by gRPC.
inline constexpr uint32_t kCallByGrpc = 1000;

// A message of more bytes may not fit into a socket's buffer: Linux gives one 208 KiB.
inline constexpr uint64_t kMaxDirectMessageBytes = uint64_t{160} << 10;

static_assert(sizeof(DirectRequest) == 24 && sizeof(DirectAnswer) == 16, "no padding");

template <typename Head>
std::string_view BytesOf(const Head& head) {
  return {reinterpret_cast<const char*>(&head), sizeof(Head)};
}
// Takes the head off a message. Returns false if the message is shorter.
template <typename Head>
bool TakeHead(std::string_view* message, Head* head) {
  if (message->size() < sizeof(Head)) return false;
  std::memcpy(head, message->data(), sizeof(Head));
  message->remove_prefix(sizeof(Head));
  return true;
}

}  // namespace prefixd::wire
