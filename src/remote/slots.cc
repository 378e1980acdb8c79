#include "remote/slots.h"

#include <array>
#include <charconv>

namespace prefixd::remote {
namespace {

constexpr std::array<uint16_t, 256> kCrcTable = [] {
  std::array<uint16_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    unsigned crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
    table[i] = static_cast<uint16_t>(crc);
  }
  return table;
}();

absl::Status NoSlots() { return absl::DataLossError("the reply to CLUSTER SLOTS cannot be read"); }

bool Within(const Reply& reply, int64_t most) {
  return reply.kind == Reply::Kind::kInteger && reply.integer >= 0 && reply.integer <= most;
}

}  // namespace

uint16_t SlotOf(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  unsigned crc = 0;
  for (const char c : key) {
    crc = ((crc << 8) ^ kCrcTable[((crc >> 8) ^ static_cast<uint8_t>(c)) & 0xff]) & 0xffff;
  }
  return static_cast<uint16_t>(crc % kSlots);
}

bool FromServer(const std::string& text, const std::string& host_if_unknown, Endpoint* endpoint) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, endpoint->port);
  if (error != std::errc() || stop != end || endpoint->port == 0) return false;
  endpoint->host = text.substr(0, colon);
  if (endpoint->host.empty() || endpoint->host == "?") endpoint->host = host_if_unknown;
  return true;
}

absl::StatusOr<std::vector<SlotRange>> ReadSlots(const Reply& reply,
                                                 const std::string& host_if_unknown) {
  if (reply.kind != Reply::Kind::kArray) return NoSlots();
  std::vector<SlotRange> ranges;
  for (const Reply& item : reply.items) {
    if (item.items.size() < 3 || !Within(item.items[0], kSlots - 1) ||
        !Within(item.items[1], kSlots - 1)) {
      return NoSlots();
    }
    const Reply& primary = item.items[2];
    if (primary.items.size() < 2 || !Within(primary.items[1], 65535)) return NoSlots();
    const std::string& host = primary.items[0].text;  // null: it is unknown
    ranges.push_back({.first = static_cast<uint16_t>(item.items[0].integer),
                      .last = static_cast<uint16_t>(item.items[1].integer),
                      .primary = {.host = host.empty() || host == "?" ? host_if_unknown : host,
                                  .port = static_cast<uint16_t>(primary.items[1].integer)}});
  }
  return ranges;
}

}  // namespace prefixd::remote
