// The data of the page, as JSON: small, and bounded whatever the daemon holds.
//
// Pure functions over what the source says. Texts from outside are in them as they are: who shows
// them escapes them.
#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "daemon/page/history.h"
#include "daemon/page/source.h"

namespace prefixd::daemon {

inline constexpr size_t kMostPageSpaces = 50, kMostPageAnswers = 100, kMostPagePrefixes = 200,
                        kMostPageSessions = 200;

// The arguments of a query, decoded: "sort=ram&from=50".
using PageArguments = std::map<std::string, std::string, std::less<>>;
PageArguments ReadPageArguments(std::string_view query);

// "state.json", "spaces.json", "sessions.json", "prefixes.json", "requests.json" and "config.json"
// below /page/. NotFound for another path; InvalidArgument for an argument that makes no sense.
absl::StatusOr<nlohmann::json> PageData(const PageSource& source, const PageHistory& history,
                                        std::string_view path, std::string_view query);

// The parts of it.
nlohmann::json StateData(const PageSource& source, const PageHistory& history);
absl::StatusOr<nlohmann::json> SpacesData(const PageSource& source, const PageArguments& arguments);
nlohmann::json SessionsData(const PageSource& source);
absl::StatusOr<nlohmann::json> PrefixesData(const PageSource& source,
                                            const PageArguments& arguments);
absl::StatusOr<nlohmann::json> RequestsData(const PageSource& source,
                                            const PageArguments& arguments);
nlohmann::json ConfigData(const PageSource& source);

// Returns {id in hex: model} of these spaces, as far as they are known.
nlohmann::json ModelsOf(const PageSource& source, const std::set<block::SpaceId>& ids);

}  // namespace prefixd::daemon
