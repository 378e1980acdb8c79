#include "remote/settings_check.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace prefixd::remote {
namespace {

using Settings = std::map<std::string, std::string>;

// Returns an empty map if the server does not show the settings; `refused` says what it said.
absl::StatusOr<Settings> Read(Connection& connection, std::string* refused) {
  Settings settings;
  for (const char* const pattern : {"maxmemory*", "appendonly", "save"}) {
    const absl::StatusOr<Reply> reply =
        connection.Ask(Command(3).Add("CONFIG").Add("GET").Add(pattern));
    if (!reply.ok()) return reply.status();
    if (reply->is(Reply::Kind::kError)) *refused = reply->text;
    for (size_t i = 0; i + 1 < reply->items.size(); i += 2) {
      settings[reply->items[i].text] = reply->items[i + 1].text;
    }
  }
  return settings;
}

std::string PolicyWarning(const std::string& policy) {
  if (policy == "noeviction") {
    return "maxmemory-policy noeviction: writes fail once it is full; allkeys-lru is advised";
  }
  if (absl::StartsWith(policy, "volatile-")) {
    return absl::StrCat("maxmemory-policy ", policy,
                        ": nothing of prefixd's is evicted, writes fail once it is full; "
                        "allkeys-lru is advised");
  }
  if (policy == "allkeys-lru" || policy.empty()) return "";
  return absl::StrCat("maxmemory-policy ", policy,
                      ": keeps too little of what is new; allkeys-lru is advised");
}

std::vector<std::string> Judge(Settings settings) {
  std::vector<std::string> wrong;
  if (std::string policy = PolicyWarning(settings["maxmemory-policy"]); !policy.empty()) {
    wrong.push_back(std::move(policy));
  }
  if (settings["maxmemory"] == "0") {
    wrong.push_back("maxmemory is not set: it grows until the host has no memory left");
  }
  if (settings["maxmemory-clients"] == "0") {
    wrong.push_back(
        "maxmemory-clients is not set: answers that wait to be read may push blocks out; 5% is "
        "advised");
  }
  if (settings["appendonly"] == "yes" || !settings["save"].empty()) {
    wrong.push_back("it writes to its disk (save, appendonly), which a cache does not need");
  }
  return wrong;
}

}  // namespace

std::vector<std::string> CheckSettings(Node& node, std::chrono::milliseconds patience) {
  const base::Deadline until = std::chrono::steady_clock::now() + patience;
  absl::StatusOr<std::unique_ptr<Connection>> connection = node.Take(until);
  if (!connection.ok()) return {};
  (*connection)->SetDeadline(until);
  std::string refused;
  absl::StatusOr<Settings> settings = Read(**connection, &refused);
  if (!settings.ok()) return {};
  node.GiveBack(*std::move(connection));
  std::vector<std::string> wrong = Judge(*std::move(settings));
  if (!refused.empty()) wrong.push_back("its settings cannot be checked: " + refused);
  for (std::string& warning : wrong) warning = absl::StrCat(TextOf(node.endpoint()), " ", warning);
  return wrong;
}

}  // namespace prefixd::remote
