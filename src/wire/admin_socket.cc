#include "wire/admin_socket.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace prefixd::wire {

std::string AdminSocketOf(const std::string& socket) {
  absl::string_view stem = socket;
  if (!absl::EndsWith(stem, "/.sock")) absl::ConsumeSuffix(&stem, ".sock");
  return absl::StrCat(stem, ".admin.sock");
}

std::string SocketPathOf(const std::string& address) {
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:")) return "";
  if (absl::StartsWith(path, "//")) path.remove_prefix(2);
  return std::string(path);
}

}  // namespace prefixd::wire
