#include "wire/target.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::wire {
namespace {

// Returns the text of the file that the variable names; empty if it names none.
absl::StatusOr<std::string> FileOf(const char* variable) {
  const char* const path = std::getenv(variable);
  if (path == nullptr || *path == '\0') return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat("$", variable, ": ", path, " cannot be read"));
  }
  if (!absl::StrContains(text.str(), "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat("$", variable, ": ", path, " is not PEM"));
  }
  return text.str();
}

}  // namespace

absl::StatusOr<Target> TargetOf(const std::string& address) {
  if (!absl::StartsWith(address, kTlsScheme)) {
    return Target{address, grpc::InsecureChannelCredentials()};
  }
  grpc::SslCredentialsOptions options;
  PREFIXD_ASSIGN_OR_RETURN(options.pem_root_certs, FileOf("PREFIXD_TLS_CA"));
  PREFIXD_ASSIGN_OR_RETURN(options.pem_cert_chain, FileOf("PREFIXD_TLS_CERTIFICATE"));
  PREFIXD_ASSIGN_OR_RETURN(options.pem_private_key, FileOf("PREFIXD_TLS_KEY"));
  if (options.pem_cert_chain.empty() != options.pem_private_key.empty()) {
    return absl::InvalidArgumentError(
        "$PREFIXD_TLS_CERTIFICATE and $PREFIXD_TLS_KEY are given together or not at all");
  }
  return Target{address.substr(sizeof(kTlsScheme) - 1), grpc::SslCredentials(options)};
}

}  // namespace prefixd::wire
