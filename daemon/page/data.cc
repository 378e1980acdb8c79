#include "daemon/page/data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "base/status.h"

namespace prefixd::daemon {
namespace {

using nlohmann::json;

std::string Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    std::byte byte{};
    if (text[i] == '%' && i + 2 < text.size() && base::FromHex(text.substr(i + 1, 2), {&byte, 1})) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

// Ids are names here, and too large for JavaScript's numbers.
std::string IdText(uint64_t id) { return absl::StrCat(absl::Hex(id, absl::kZeroPad16)); }

template <typename Item, typename Weight>
void KeepLargest(std::vector<Item>* items, size_t most, Weight weight) {
  std::stable_sort(items->begin(), items->end(),
                   [&](const Item& one, const Item& other) { return weight(one) > weight(other); });
  if (items->size() > most) items->resize(most);
}

json SessionJson(const block::SessionInfo& session) {
  json notes = json::array();
  for (const block::NotShared& note : session.not_shared) {
    notes.push_back({{"model", note.model}, {"reason", note.reason}});
  }
  return {{"session", IdText(session.session.value)},
          {"worker", session.worker},
          {"pid", session.pid},
          {"maps_arena", session.slot != block::kNoSlot},
          {"attached", session.attached},
          {"age_s", session.age_s},
          {"leases", session.leases},
          {"leased_bytes", session.leased_bytes},
          {"reservations", session.reservations},
          {"staging_bytes", session.staging_bytes},
          {"device_pinned_bytes", session.device_pinned_bytes},
          {"not_shared", std::move(notes)}};
}

}  // namespace

PageArguments ReadPageArguments(std::string_view query) {
  PageArguments arguments;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(part.size() + 1, query.size()));
    const size_t equals = std::min(part.find('='), part.size());
    arguments[Decoded(part.substr(0, equals))] =
        Decoded(part.substr(std::min(equals + 1, part.size())));
  }
  return arguments;
}

json SessionsData(const PageSource& source) {
  std::vector<block::SessionInfo> sessions = source.Sessions();
  std::vector<block::LeaseInfo> leases = source.Leases();
  std::vector<block::PinInfo> pins = source.Pins();
  json data = {{"sessions_total", sessions.size()}, {"leases_total", leases.size()},
               {"pins_total", pins.size()},         {"sessions", json::array()},
               {"leases", json::array()},           {"pins", json::array()}};
  KeepLargest(&sessions, kMostPageSessions, [](const auto& one) { return one.leased_bytes; });
  KeepLargest(&leases, kMostPageSessions, [](const auto& one) { return one.bytes; });
  KeepLargest(&pins, kMostPageSessions, [](const auto& one) { return one.bytes; });
  for (const auto& session : sessions) data["sessions"].push_back(SessionJson(session));
  std::set<block::SpaceId> ids;
  for (const auto& lease : leases) {
    ids.insert(lease.space);
    data["leases"].push_back({{"session", IdText(lease.holder.value)},
                              {"space", base::ToHex(lease.space)},
                              {"tokens", lease.tokens},
                              {"bytes", lease.bytes},
                              {"age_s", lease.age_s}});
  }
  for (const auto& pin : pins) {
    ids.insert(pin.space);
    data["pins"].push_back({{"worker", pin.worker},
                            {"space", base::ToHex(pin.space)},
                            {"tokens", pin.tokens},
                            {"bytes", pin.bytes},
                            {"left_s", pin.left_s}});
  }
  data["models"] = ModelsOf(source, ids);
  return data;
}

absl::StatusOr<json> PrefixesData(const PageSource& source, const PageArguments& arguments) {
  block::SpaceId space{};
  const auto given = arguments.find("space");
  const bool one = given != arguments.end() && !given->second.empty();
  if (one && !base::FromHex(given->second, std::as_writable_bytes(std::span(space)))) {
    return absl::InvalidArgumentError("space: not the 64 digits of a space's id");
  }
  const block::HotPrefixes found = source.Prefixes(one ? &space : nullptr, kMostPagePrefixes);
  json prefixes = json::array();
  std::set<block::SpaceId> ids;
  for (const block::HotPrefix& prefix : found.prefixes) {
    if (prefixes.size() >= kMostPagePrefixes) break;
    ids.insert(prefix.space);
    prefixes.push_back({{"parent", prefix.parent},
                        {"space", base::ToHex(prefix.space)},
                        {"from_token", prefix.from_token},
                        {"to_token", prefix.to_token},
                        {"requests", prefix.requests},
                        {"age_s", prefix.age_s},
                        {"ram_bytes", prefix.ram_bytes},
                        {"ssd_bytes", prefix.ssd_bytes},
                        {"hash", base::ToHex(prefix.block_hash)}});
  }
  return json{{"prefixes", std::move(prefixes)},
              {"models", ModelsOf(source, ids)},
              {"requests", found.requests},
              {"gone", found.gone}};
}

json ModelsOf(const PageSource& source, const std::set<block::SpaceId>& ids) {
  json models = json::object();
  for (const block::SpaceSummary& space : source.Spaces()) {
    if (ids.contains(space.id)) models[base::ToHex(space.id)] = space.identity.model;
  }
  return models;
}

json ConfigData(const PageSource& source) {
  json settings = json::array();
  for (const Setting& setting : source.Settings()) {
    settings.push_back(
        {{"name", setting.name}, {"value", setting.value}, {"source", setting.source}});
  }
  return {{"settings", std::move(settings)}};
}

absl::StatusOr<json> PageData(const PageSource& source, const PageHistory& history,
                              std::string_view path, std::string_view query) {
  const PageArguments arguments = ReadPageArguments(query);
  if (path == "/page/state.json") return StateData(source, history);
  if (path == "/page/spaces.json") return SpacesData(source, arguments);
  if (path == "/page/sessions.json") return SessionsData(source);
  if (path == "/page/prefixes.json") return PrefixesData(source, arguments);
  if (path == "/page/requests.json") return RequestsData(source, arguments);
  if (path == "/page/config.json") return ConfigData(source);
  return absl::NotFoundError(absl::StrCat("there is no ", std::string(path)));
}

}  // namespace prefixd::daemon
