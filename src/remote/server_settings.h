// What a server's settings mean for who stores a cache on it.
//
// Pure functions, thread-safe.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "remote/resp.h"

namespace prefixd::remote {

// The settings that are looked at, each asked for with one CONFIG GET.
std::span<const char* const> CheckedSettings();

// Reads the replies to CONFIG GET, one for each checked setting. Returns what is not as it should
// be, a sentence each.
std::vector<std::string> SettingsWarnings(std::span<const Reply> replies, const std::string& user);

// One line for each warning, with the servers that it concerns. `warnings`: by server.
std::vector<std::string> JoinWarnings(
    const std::map<std::string, std::vector<std::string>>& warnings);

}  // namespace prefixd::remote
