// Redis Cluster's slots: which key is in which, and which server has them.
//
// Pure functions and values, thread-safe.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "remote/redis_options.h"
#include "remote/resp.h"

namespace prefixd::remote {

inline constexpr uint16_t kSlots = 16384;

// CRC16/XMODEM of the key, or of what is between the first { and the next } if that is not empty.
uint16_t SlotOf(std::string_view key);

// Reads "HOST:PORT", as servers tell it in MOVED and ASK: the last colon parts them, whatever the
// host. A host that is "" or "?" is `host_if_unknown`. False: there is no port.
bool FromServer(const std::string& text, const std::string& host_if_unknown, Endpoint* endpoint);

struct SlotRange {
  uint16_t first = 0, last = 0;
  Endpoint primary{};
  bool operator==(const SlotRange&) const = default;
};

// Reads the reply to CLUSTER SLOTS. A server that does not know its own address is
// `host_if_unknown`. DataLoss: it is no such reply.
absl::StatusOr<std::vector<SlotRange>> ReadSlots(const Reply& reply,
                                                 const std::string& host_if_unknown);

}  // namespace prefixd::remote
