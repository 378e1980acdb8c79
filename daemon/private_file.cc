#include "daemon/private_file.h"

#include <optional>

#include "base/own_file.h"
#include "base/status.h"

namespace prefixd::daemon {

absl::StatusOr<std::string> ReadPrivateFile(const char* setting, const std::string& path,
                                            size_t most_bytes) {
  const absl::StatusOr<std::optional<std::string>> text =
      base::ReadOwnFile(path, most_bytes, base::ReadableBy::kOwnerAlone);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat(setting, ": ", std::string(text.status().message())));
  }
  if (text->has_value()) return **text;
  return absl::FailedPreconditionError(absl::StrCat(setting, ": there is no file ", path));
}

}  // namespace prefixd::daemon
