#include "block/names.h"

#include <array>
#include <cstddef>

namespace prefixd::block {
namespace {

// `names`: those of the values 1, 2, ...
template <size_t kCount, typename Enum>
const char* Pick(const std::array<const char*, kCount>& names, Enum value) {
  const auto index = static_cast<size_t>(value) - 1;  // of 0: beyond all
  return index < kCount ? names[index] : "unknown";
}

}  // namespace

const char* NameOf(MatchKind kind) {
  static constexpr std::array kNames = {"exact", "supersequence", "prefix", "lcp", "none"};
  static_assert(kNames.size() == static_cast<size_t>(MatchKind::kNone));
  return Pick(kNames, kind);
}

const char* NameOf(EndReason reason) {
  static constexpr std::array kNames = {"request_ended", "diverged", "evicted", "never_stored",
                                        "index_loading"};
  static_assert(kNames.size() == static_cast<size_t>(EndReason::kIndexLoading));
  return Pick(kNames, reason);
}

const char* NameOf(ShortenReason reason) {
  static constexpr std::array kNames = {
      "evicted",        "no_state_snapshot", "window_gone", "corrupt",      "format",
      "atomic_content", "ram_full",          "lease_quota", "deadline",     "slower_than_prefill",
      "io_error",       "index_loading",     "max_tokens",  "common_length"};
  static_assert(kNames.size() == static_cast<size_t>(ShortenReason::kCommonLength));
  return Pick(kNames, reason);
}

}  // namespace prefixd::block
