#include "client/cli/explain.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace prefixd::cli {
namespace {

// What gRPC says of a connection that failed, and what to do about it.
struct Cause {
  const char* said;
  const char* advice;
};
constexpr Cause kCauses[] = {
    {"Permission denied",
     "this user may not open its socket. Members of the socket's group may (`sudo usermod -aG "
     "prefixd USER` where a package made the group, then log in again)"},
    {"certificate verify failed",
     "its certificate is signed by nobody who is trusted here. Name the authority's PEM file, of a "
     "self-signed certificate that itself, in $PREFIXD_TLS_CA"},
    {"is not in peer certificate",
     "its certificate is for other names. It must have the name or the IP address of --server as "
     "subjectAltName"},
};
constexpr char kWithoutTls[] =
    "it closed the connection. Where it listens with TLS, say --server tls://HOST:PORT";
constexpr char kNotThere[] =
    "is it running? Start it (`systemctl start prefixd`; without systemd, as its user, `prefixd`), "
    "or say where it listens with --server or $PREFIXD_SERVER";

const char* Advice(const std::string& server, const std::string& message) {
  for (const Cause& cause : kCauses) {
    if (absl::StrContains(message, cause.said)) return cause.advice;
  }
  const bool plain_tcp = !absl::StartsWith(server, "unix:") && !absl::StartsWith(server, "tls:");
  if (plain_tcp && absl::StrContains(message, "Socket closed")) return kWithoutTls;
  return kNotThere;
}

}  // namespace

int Explain(const absl::Status& status, const Options& options, std::ostream& err) {
  if (absl::IsUnavailable(status)) {
    err << "prefixctl: prefixd does not answer at " << options.server << ": "
        << Advice(options.server, std::string(status.message())) << "\n  (" << status.message()
        << ")\n";
    return kExitUnreachable;
  }
  if (absl::IsDeadlineExceeded(status)) {
    err << "prefixctl: prefixd at " << options.server << " did not finish within "
        << absl::FormatDuration(absl::FromChrono(options.timeout))
        << ": it is busy or stuck; wait longer with --timeout\n";
    return kExitUnreachable;
  }
  err << "prefixctl: " << status.message() << "\n";
  return kExitRefused;
}

}  // namespace prefixd::cli
