#include "client/cli/names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/bytes.h"

namespace prefixd::cli {
namespace {

constexpr size_t kShortDigits = 12;

// Turns "MATCH_KIND_EXACT" into "exact". The generated name of an unknown value is "".
std::string WithoutPrefix(const std::string& name, size_t prefix, int value) {
  if (name.size() <= prefix) return absl::StrCat("unknown (", value, ")");
  return absl::AsciiStrToLower(name.substr(prefix));
}

}  // namespace

std::string NameOf(v1::MatchKind kind) {
  return WithoutPrefix(v1::MatchKind_Name(kind), sizeof("MATCH_KIND_") - 1, kind);
}
std::string NameOf(v1::EndReason reason) {
  return WithoutPrefix(v1::EndReason_Name(reason), sizeof("END_REASON_") - 1, reason);
}
std::string NameOf(v1::ShortenReason reason) {
  return WithoutPrefix(v1::ShortenReason_Name(reason), sizeof("SHORTEN_REASON_") - 1, reason);
}
std::string NameOf(v1::LayerKind kind) {
  return WithoutPrefix(v1::LayerKind_Name(kind), sizeof("LAYER_KIND_") - 1, kind);
}

std::string HexId(uint64_t id) { return absl::StrCat(absl::Hex(id, absl::kZeroPad16)); }

std::string HexId(const std::string& space_id) { return base::ToHex(base::AsBytes(space_id)); }
std::string ShortId(const std::string& space_id) { return HexId(space_id).substr(0, kShortDigits); }

}  // namespace prefixd::cli
