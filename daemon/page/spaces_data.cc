#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "daemon/page/data.h"

namespace prefixd::daemon {
namespace {

using nlohmann::json;
using Space = block::SpaceSummary;

uint64_t Restorable(const Space& space) {
  const block::TierTokens& tokens = space.tokens.restorable;
  return tokens.ram + tokens.ssd + tokens.remote;
}

double HitRate(const Space& space) {
  if (space.tokens.requested == 0) return -1;
  return static_cast<double>(Restorable(space)) / static_cast<double>(space.tokens.requested);
}

using Before = bool (*)(const Space&, const Space&);
const std::map<std::string, Before, std::less<>>& Orders() {
  static const auto* const orders = new std::map<std::string, Before, std::less<>>{
      {"asked",
       [](const Space& a, const Space& b) { return a.tokens.requested > b.tokens.requested; }},
      {"hit-rate", [](const Space& a, const Space& b) { return HitRate(a) > HitRate(b); }},
      {"tokens", [](const Space& a, const Space& b) { return a.stored_tokens > b.stored_tokens; }},
      {"ram",
       [](const Space& a, const Space& b) { return a.ram_extent_bytes > b.ram_extent_bytes; }},
      {"ssd", [](const Space& a, const Space& b) { return a.ssd_page_bytes > b.ssd_page_bytes; }},
      {"model",
       [](const Space& a, const Space& b) { return a.identity.model < b.identity.model; }}};
  return *orders;
}

// The salt and its digest stay out of it: who guesses a salt could confirm it.
json SpaceJson(const Space& space) {
  return {{"id", base::ToHex(space.id)},
          {"model", space.identity.model},
          {"tenant", space.identity.tenant},
          {"block_tokens", space.identity.block_tokens},
          {"requested", space.tokens.requested},
          {"restorable", Restorable(space)},
          {"blocks", space.blocks},
          {"stored_tokens", space.stored_tokens},
          {"ends", space.ends},
          {"ram_bytes", space.ram_extent_bytes},
          {"ssd_bytes", space.ssd_page_bytes},
          {"dirty_bytes", space.dirty_bytes},
          {"ram_floor_bytes", space.limits.ram_floor_bytes},
          {"ram_ceiling_bytes", space.limits.ram_ceiling_bytes},
          {"ttl_ms", space.limits.ttl_ms}};
}

std::string Text(const PageArguments& arguments, std::string_view name) {
  const auto found = arguments.find(name);
  return found == arguments.end() ? "" : found->second;
}

bool Contains(const std::string& text, const std::string& part) {
  return absl::AsciiStrToLower(text).find(absl::AsciiStrToLower(part)) != std::string::npos;
}

bool Matches(const Space& space, const std::string& text) {
  return text.empty() || Contains(space.identity.model, text) ||
         Contains(space.identity.tenant, text) ||
         base::ToHex(space.id).starts_with(absl::AsciiStrToLower(text));
}

}  // namespace

absl::StatusOr<json> SpacesData(const PageSource& source, const PageArguments& arguments) {
  const std::string order = Text(arguments, "sort"), wanted = Text(arguments, "find");
  const auto before = Orders().find(order.empty() ? "asked" : order);
  if (before == Orders().end()) return absl::InvalidArgumentError("sort: no such order");
  size_t from = 0;
  if (!Text(arguments, "from").empty() && !absl::SimpleAtoi(Text(arguments, "from"), &from)) {
    return absl::InvalidArgumentError("from: not a number");
  }
  std::vector<Space> spaces = source.Spaces();
  json data = {{"total", spaces.size()}};
  std::erase_if(spaces, [&](const Space& space) { return !Matches(space, wanted); });
  std::sort(spaces.begin(), spaces.end(), [&](const Space& a, const Space& b) {
    if (before->second(a, b) != before->second(b, a)) return before->second(a, b);
    return a.id < b.id;
  });
  data["matching"] = spaces.size();
  data["from"] = from;
  data["spaces"] = json::array();
  for (size_t i = from; i < spaces.size() && i - from < kMostPageSpaces; ++i) {
    data["spaces"].push_back(SpaceJson(spaces[i]));
  }
  return data;
}

}  // namespace prefixd::daemon
