// The digests of client.h.
#include <array>
#include <fstream>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "convert.h"
#include "interop/checkpoint_digest.h"
#include "prefixd/client.h"

namespace prefixd {

Result<Digest> DigestCheckpoint(const std::string& dir) {
  const absl::StatusOr<base::Digest256> digest = interop::DigestCheckpoint(dir);
  if (!digest.ok()) return {.status = client::ToPublic(digest.status()), .held = {}};
  return {.status = {}, .held = *digest};
}

Result<Digest> DigestFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  base::Sha256Stream sha;
  std::array<char, 65536> chunk;
  while (file) {
    file.read(chunk.data(), chunk.size());
    sha.Update(base::AsBytes(chunk.data(), static_cast<size_t>(file.gcount())));
  }
  if (!file.eof()) {  // opening or reading failed
    return {
        .status = client::ToPublic(absl::NotFoundError(absl::StrCat("digest: cannot read ", path))),
        .held = {}};
  }
  return {.status = {}, .held = sha.Finish()};
}

}  // namespace prefixd
