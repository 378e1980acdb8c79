#include "remote/server_settings.h"

#include "absl/strings/str_cat.h"

#include "remote/connection.h"

namespace prefixd::remote {
namespace {

constexpr const char* kSettings[] = {"maxmemory", "maxmemory-policy", "maxmemory-clients",
                                     "appendonly", "save"};

// RESP2 sends an array, RESP3 a map. Null: the server has no such setting.
const std::string* ValueOf(const Reply& reply) {
  return reply.items.size() == 2 && reply.items[1].text_or_simple() ? &reply.items[1].text
                                                                    : nullptr;
}

std::string AboutPolicy(const std::string& policy) {
  if (policy == "noeviction") {
    return "maxmemory-policy is noeviction: writes fail once the server is full; set allkeys-lru";
  }
  if (policy.starts_with("volatile-")) {
    return absl::StrCat("maxmemory-policy is ", policy,
                        ": nothing of prefixd can be evicted, as its keys do not expire; set "
                        "allkeys-lru");
  }
  if (policy == "allkeys-lfu") {
    return "maxmemory-policy is allkeys-lfu: it keeps too little of what is new; allkeys-lru is "
           "advised";
  }
  if (policy == "allkeys-random") {
    return "maxmemory-policy is allkeys-random: it evicts what is used; allkeys-lru is advised";
  }
  return "";
}

}  // namespace

std::span<const char* const> CheckedSettings() { return kSettings; }

std::vector<std::string> SettingsWarnings(std::span<const Reply> replies, const std::string& user) {
  std::map<std::string, std::string> settings;
  for (size_t i = 0; i < replies.size() && i < std::size(kSettings); ++i) {
    if (replies[i].error()) {
      return {absl::StrCat("its settings cannot be checked: ", InWords(replies[i].text, user))};
    }
    if (const std::string* const value = ValueOf(replies[i])) settings[kSettings[i]] = *value;
  }
  std::vector<std::string> warnings;
  const auto is = [&](const char* name, const char* value) {
    const auto found = settings.find(name);
    return found != settings.end() && found->second == value;
  };
  if (is("maxmemory", "0")) {
    warnings.push_back(
        "maxmemory is 0, without a limit: the server grows until the machine has no memory");
  } else if (settings.contains("maxmemory-policy")) {
    if (std::string about = AboutPolicy(settings["maxmemory-policy"]); !about.empty()) {
      warnings.push_back(std::move(about));
    }
  }
  if (is("maxmemory-clients", "0")) {
    warnings.push_back(
        "maxmemory-clients is 0: buffers of clients can push out what is stored; set it, to 5% for "
        "example");
  }
  if (is("appendonly", "yes")) {
    warnings.push_back("appendonly is yes: every write of a cache goes to the server's disk too");
  }
  if (settings.contains("save") && !settings["save"].empty()) {
    warnings.push_back(
        "save is on: the server writes all of a cache to its disk again and again; set save \"\"");
  }
  return warnings;
}

std::vector<std::string> JoinWarnings(
    const std::map<std::string, std::vector<std::string>>& warnings) {
  std::map<std::string, std::string> servers;  // by warning
  for (const auto& [server, sentences] : warnings) {
    for (const std::string& sentence : sentences) {
      std::string& list = servers[sentence];
      absl::StrAppend(&list, list.empty() ? "" : ", ", server);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [sentence, list] : servers) lines.push_back(absl::StrCat(list, ": ", sentence));
  return lines;
}

}  // namespace prefixd::remote
