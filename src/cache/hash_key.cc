#include "cache/hash_key.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/secret_file.h"
#include "base/status.h"

namespace prefixd::cache {

absl::StatusOr<block::HashKey> FindHashKey(const HashKeyPlaces& places,
                                           const std::function<void(const std::string&)>& say) {
  for (const std::string& path : {places.store, places.arena}) {
    if (path.empty()) continue;
    const absl::StatusOr<std::optional<base::Secret>> found = base::ReadSecret(path);
    if (!found.ok()) {
      say(absl::StrCat("the key of block hashes is not read: ",
                       std::string(found.status().message())));
    } else if (found->has_value()) {
      return **found;
    }
  }
  return base::RandomSecret();
}

absl::Status KeepHashKey(const std::string& path, const block::HashKey& key) {
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<std::optional<base::Secret>> found = base::ReadSecret(path);
  if (found.ok() && *found == key) return absl::OkStatus();
  return base::WriteSecret(path, key);
}

base::Hash128 IdOf(const block::HashKey& key) {
  base::Sha256Stream stream;
  stream.Update(base::AsBytes("prefixd/1/key-id"));
  stream.Update(key);
  const base::Digest256 digest = stream.Finish();
  base::Hash128 id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

}  // namespace prefixd::cache
