#include "client/cli/token.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "block/limits.h"
#include "block/space_identity.h"

namespace prefixd::cli {
namespace {

using nlohmann::ordered_json;

// A Put alone takes this (daemon/access/principals.h).
constexpr uint64_t kLeastBytesInFlight = 4 * block::kMaxPieceBytes;

ordered_json EntryOf(const TokenRequest& request, const base::Secret& secret) {
  ordered_json entry = {{"name", request.name},
                        {"sha256", base::ToHex(base::Sha256(secret))},
                        {"tenant", request.tenant},
                        {"role", request.role}};
  if (!request.expires.empty()) entry["expires"] = request.expires;
  const std::pair<const char*, uint64_t> limits[] = {{"sessions", request.sessions},
                                                     {"requests_per_s", request.requests_per_s},
                                                     {"lease_bytes", request.lease_bytes},
                                                     {"bytes_in_flight", request.bytes_in_flight}};
  for (const auto& [name, most] : limits) {
    if (most != 0) entry[name] = most;
  }
  return entry;
}

std::string Printed(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

absl::Status CheckToken(const TokenRequest& request) {
  if (request.name.empty()) return absl::InvalidArgumentError("--name is empty");
  if (request.tenant.empty() || request.tenant.size() > block::kMaxTenantBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--tenant has ", request.tenant.size(),
                                                   " bytes, 1 to ", block::kMaxTenantBytes));
  }
  if (request.tenant == "*" && request.role != "admin") {
    return absl::InvalidArgumentError("--tenant \"*\" is for --role admin only");
  }
  absl::Time time;
  std::string error;
  if (!request.expires.empty() &&
      !absl::ParseTime(absl::RFC3339_full, request.expires, &time, &error)) {
    return absl::InvalidArgumentError(absl::StrCat("--expires: \"", request.expires,
                                                   "\" is not a time like 2027-01-01T00:00:00Z"));
  }
  if (request.bytes_in_flight != 0 && request.bytes_in_flight < kLeastBytesInFlight) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bytes-in-flight: one Put takes ", kLeastBytesInFlight >> 20, " MiB"));
  }
  return absl::OkStatus();
}

std::string AccessEntry(const TokenRequest& request, const base::Secret& secret) {
  return Printed(EntryOf(request, secret));
}

absl::StatusOr<std::string> MakeToken(const TokenRequest& request, bool json) {
  PREFIXD_ASSIGN_OR_RETURN(const base::Secret secret, base::RandomSecret());
  if (!request.file.empty()) {
    // Whoever has the token that stands there would be locked out.
    if (std::filesystem::exists(std::filesystem::symlink_status(request.file))) {
      return absl::FailedPreconditionError(
          absl::StrCat("token: ", request.file, " is there already"));
    }
    PREFIXD_RETURN_IF_ERROR(base::WriteSecret(request.file, secret));
  }
  if (json) {
    ordered_json both = {{"entry", EntryOf(request, secret)}};
    if (request.file.empty()) {
      both["token"] = base::SecretText(secret);
    } else {
      both["file"] = request.file;
    }
    return Printed(both) + "\n";
  }
  const std::string entry = AccessEntry(request, secret) + "\n";
  if (!request.file.empty()) return entry;
  return absl::StrCat(
      "The token, shown this once: the line of a file of mode 0600 that "
      "$PREFIXD_TOKEN_FILE names.\n",
      base::SecretText(secret), "Its entry in \"tokens\" of the access file:\n", entry);
}

}  // namespace prefixd::cli
