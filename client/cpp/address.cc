#include "address.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

#include "base/descriptor.h"
#include "os/sockets.h"

namespace prefixd::client {
namespace {

constexpr absl::string_view kUnix = "unix:";
constexpr const char* kExample = "unix:///run/prefixd/prefixd.sock";

// The schemes of gRPC that name one place.
constexpr absl::string_view kTls = "tls://";
constexpr std::array<absl::string_view, 5> kSchemes = {kUnix,
                                                       "unix-abstract:", "ipv4:", "ipv6:", "dns:"};

absl::Status DidYouMean(const std::string& address, const std::string& meant) {
  return absl::InvalidArgumentError(absl::StrCat(
      "client: \"", address, "\" is not the address of a daemon; did you mean ", meant, "?"));
}

bool IsHostAndPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  return colon != std::string::npos && colon > 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 && port < 65536;
}

std::string NameOfUser(uid_t id) {
  std::array<char, 4096> buffer;
  passwd entry, *found = nullptr;
  ::getpwuid_r(id, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? absl::StrCat(id) : entry.pw_name;
}

std::string NameOfGroup(gid_t id) {
  std::array<char, 4096> buffer;
  group entry, *found = nullptr;
  ::getgrgid_r(id, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? absl::StrCat(id) : entry.gr_name;
}

// Returns 0, or the errno of connecting to the socket.
int ErrorOfConnecting(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) return ENAMETOOLONG;
  std::memcpy(name.sun_path, path.data(), path.size());
  const base::Descriptor socket(os::NewSocket(AF_UNIX, SOCK_STREAM, 0, os::Waits::kNo));
  if (socket.get() < 0) return errno;
  const int failed = ::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name));
  return failed == 0 ? 0 : errno;
}

std::string Forbidden(const std::string& path) {
  struct stat file;
  if (::stat(path.c_str(), &file) != 0) {
    return absl::StrCat("permission denied on the folder of socket ", path);
  }
  return absl::StrFormat("permission denied on socket %s, %04o %s:%s; join its group", path,
                         file.st_mode & 07777, NameOfUser(file.st_uid), NameOfGroup(file.st_gid));
}

}  // namespace

std::string UnixPath(const std::string& address) {
  if (!absl::StartsWith(address, kUnix)) return "";
  std::string path = address.substr(kUnix.size());
  if (absl::StartsWith(path, "//")) path.erase(0, 2);
  return path;
}

absl::Status CheckAddress(const std::string& address) {
  if (address.empty()) return DidYouMean(address, kExample);
  for (const absl::string_view scheme : kSchemes) {
    if (!absl::StartsWith(address, scheme)) continue;
    if (address.size() > scheme.size() && address != "unix://") return absl::OkStatus();
    return DidYouMean(address, kExample);
  }
  if (absl::StartsWith(address, kTls)) {
    const std::string rest = address.substr(kTls.size());
    if (IsHostAndPort(rest) && !absl::StrContains(rest, '/')) return absl::OkStatus();
    return DidYouMean(address, "tls://host:7777");
  }
  if (absl::StrContains(address, "://")) {
    return DidYouMean(address, absl::StrCat(kExample, " or 127.0.0.1:7777"));
  }
  if (IsHostAndPort(address)) return absl::OkStatus();
  if (absl::StrContains(address, '/') || absl::EndsWith(address, ".sock")) {
    return DidYouMean(address, absl::StrCat(address[0] == '/' ? "unix://" : "unix:", address));
  }
  return DidYouMean(address, absl::StrCat(address, ":7777"));
}

std::string WhyNobodyAnswers(const std::string& address) {
  const std::string path = UnixPath(address);
  const int error = path.empty() ? 0 : ErrorOfConnecting(path);
  if (error == EACCES) return Forbidden(path);
  const char* const more = error == ECONNREFUSED ? ": nobody listens on its socket" : "";
  return absl::StrCat("no daemon at ", address, more);
}

}  // namespace prefixd::client
