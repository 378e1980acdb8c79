#include "base/secret_file.h"

#include <openssl/crypto.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/own_file.h"
#include "base/status.h"
#include "os/machine.h"

namespace prefixd::base {
namespace {

constexpr char kHead[] = "prefixd secret 1 ";
constexpr size_t kHeadBytes = sizeof(kHead) - 1;

}  // namespace

std::string SecretText(const Secret& secret) {
  ByteWriter check;
  check.Fixed(Xxh3(secret));
  std::string text = kHead;
  absl::StrAppend(&text, ToHex(secret), " ", ToHex(AsBytes(check.bytes())), "\n");
  return text;
}

absl::StatusOr<Secret> RandomSecret() {
  Secret secret;
  if (os::RandomBytes(secret)) return secret;
  return absl::UnavailableError(absl::StrCat("no random bytes: ", strerror(errno)));
}

bool Equal(const Secret& a, const Secret& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<std::optional<Secret>> ReadSecret(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<std::string> found,
                           ReadOwnFile(path, 256, ReadableBy::kOwnerAlone));
  if (!found.has_value()) return std::nullopt;
  const std::string_view text = *found;
  Secret secret;
  const size_t digits = 2 * secret.size();
  if (text.size() < kHeadBytes + digits || !FromHex(text.substr(kHeadBytes, digits), secret) ||
      text != SecretText(secret)) {
    return absl::DataLossError(absl::StrCat(path, " is not a secret of prefixd, or is damaged"));
  }
  return secret;
}

absl::Status WriteSecret(const std::string& path, const Secret& secret) {
  return WriteOwnFile(path, SecretText(secret));
}

}  // namespace prefixd::base
