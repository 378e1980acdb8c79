#include "wire/fields.h"

#include <cstring>

#include "base/bytes.h"

namespace prefixd::wire {

absl::Status ReadDigest(const std::string& field, const std::string& bytes, bool may_be_empty,
                        base::Digest256* digest) {
  *digest = {};
  if (bytes.empty() && may_be_empty) return absl::OkStatus();
  if (bytes.size() != digest->size()) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has ", bytes.size(), " bytes, wants ",
                                                   digest->size(), may_be_empty ? " or none" : ""));
  }
  std::memcpy(digest->data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

std::string DigestBytes(const base::Digest256& digest) {
  if (digest == base::Digest256{}) return {};
  return std::string(base::AsText(digest));
}

}  // namespace prefixd::wire
