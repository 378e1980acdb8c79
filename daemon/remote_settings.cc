#include "daemon/remote_settings.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "spdlog/spdlog.h"

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "block/space_identity.h"
#include "daemon/log.h"
#include "daemon/private_file.h"
#include "daemon/settings.h"
#include "remote/redis_store.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kMostKeyBytes = 4096;
constexpr size_t kLeastKeyBytes = 32;
// Without a key, so that names are made all the same.
constexpr const char* kNoKey = "prefixd remote 1: no key, whoever reaches the servers can forge";

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

absl::StatusOr<remote::TenantKeys> ReadKeys(const Config::Remote& remote) {
  std::string secret = kNoKey;
  if (!remote.key_file.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(secret,
                             ReadPrivateFile("remote-key-file", remote.key_file, kMostKeyBytes));
    if (secret.size() < kLeastKeyBytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("remote-key-file: ", remote.key_file, " has ", secret.size(),
                       " bytes, the least is ", kLeastKeyBytes, ": openssl rand -out FILE 32"));
    }
  }
  return remote::DeriveKeys(base::AsBytes(secret), remote.tenant);
}

}  // namespace

absl::Status ApplyRemote(const std::string& value, const Environment&, Config* config) {
  config->remote.url = value == "off" ? "" : value;
  if (config->remote.url.empty()) return absl::OkStatus();
  return remote::ParseRedisUrl(value).status();
}

absl::Status ApplyRemoteWriteRate(const std::string& value, const Environment&, Config* config) {
  if (value == "off") return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const base::Size size, base::ParseSize(value));
  if (size.percent > 0 || size.bytes == 0) return Wants(value, "a size in bytes, or off");
  config->remote.write_rate = size.bytes;
  return absl::OkStatus();
}

absl::Status ApplyRemoteWriteShare(const std::string& value, const Environment&, Config* config) {
  if (value == "off") return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(const base::Size size, base::ParseSize(value));
  if (size.percent < 1 || size.percent > 100) {
    return Wants(value, "a share of what is asked for from 1% to 100%, or off");
  }
  config->remote.write_share = size.percent / 100;
  return absl::OkStatus();
}

absl::Status ApplyRemoteTenant(const std::string& value, const Environment&, Config* config) {
  if (value.empty() || value.size() > block::kMaxTenantBytes) {
    return Wants(value, "a name of 1 to 256 bytes");
  }
  config->remote.tenant = value;
  return absl::OkStatus();
}

absl::Status CheckRemote(const Config::Remote& remote) {
  if (remote.url.empty()) return absl::OkStatus();
  if (remote.key_file.empty() && !remote.insecure) {
    return absl::InvalidArgumentError(
        "remote: contents are sealed with a key that all hosts share; name its file with "
        "--remote-key-file (openssl rand -out FILE 32), or say --remote-insecure");
  }
  if (remote.cert_file.empty() != remote.cert_key_file.empty()) {
    return absl::InvalidArgumentError(
        "remote: --remote-cert-file and --remote-cert-key-file go together");
  }
  const bool tls_files = !remote.ca_file.empty() || !remote.cert_file.empty();
  if (tls_files && !remote.url.starts_with("rediss://")) {
    return absl::InvalidArgumentError(absl::StrCat("remote: certificates are for TLS, and ",
                                                   remote.url, " has none; say rediss://"));
  }
  return absl::OkStatus();
}

absl::StatusOr<cache::RemoteOptions> OpenRemote(const Config::Remote& remote) {
  cache::RemoteOptions options;
  if (remote.url.empty()) return options;
  options.host = HostName();
  PREFIXD_ASSIGN_OR_RETURN(options.keys, ReadKeys(remote));
  if (remote.key_file.empty()) options.seal = remote::Seal::kChecks;
  options.write_bytes_per_s = remote.write_rate;
  options.write_share = remote.write_share;
  PREFIXD_ASSIGN_OR_RETURN(remote::RedisOptions redis, remote::ParseRedisUrl(remote.url));
  redis.user = remote.user;
  redis.ca_file = remote.ca_file;
  redis.cert_file = remote.cert_file;
  redis.key_file = remote.cert_key_file;
  if (!remote.password_file.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(redis.password, ReadPrivateFile("remote-password-file",
                                                             remote.password_file, kMostKeyBytes));
    redis.password = std::string(absl::StripAsciiWhitespace(redis.password));
  }
  redis.log = [](remote::News news, const std::string& line) {
    const bool good = news == remote::News::kGood;
    spdlog::log(good ? spdlog::level::info : spdlog::level::warn, "remote: {}", line);
  };
  PREFIXD_ASSIGN_OR_RETURN(options.store, remote::RedisStore::Open(std::move(redis)));
  return options;
}

}  // namespace prefixd::daemon
