// The digests of client.h.
#include "convert.h"
#include "interop/checkpoint_digest.h"
#include "prefixd/client.h"

namespace prefixd {
namespace {

Result<Digest> ToResult(const absl::StatusOr<base::Digest256>& digest) {
  if (!digest.ok()) return {.status = client::ToPublic(digest.status()), .held = {}};
  return {.status = {}, .held = *digest};
}

}  // namespace

Result<Digest> DigestCheckpoint(const std::string& dir) {
  return ToResult(interop::DigestCheckpoint(dir));
}

Result<Digest> DigestFile(const std::string& path) {
  return ToResult(interop::DigestWholeFile(path));
}

}  // namespace prefixd
