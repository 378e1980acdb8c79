#include "remote/names.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/bytes.h"

namespace prefixd::remote {

TenantKeys DeriveKeys(std::span<const std::byte> secret, const std::string& tenant) {
  // A salt of fixed length: HKDF pads a short one with zeros, which would make two tenants one.
  const base::Digest256 salt = base::Sha256(base::AsBytes(tenant));
  return {.naming = Hkdf(secret, salt, "prefixd remote 1 naming"),
          .sealing = Hkdf(secret, salt, "prefixd remote 1 sealing")};
}

Namer::Namer(const TenantKeys& keys, uint64_t generation, const block::SpaceId& space)
    : hmac_(keys.naming), generation_(generation), space_(space) {}

ChainName Namer::Next(const ChainName& parent, const block::SequenceView& block) const {
  base::ByteWriter message;
  message.Fixed(generation_);
  message.Raw(space_);
  message.Raw(parent);
  message.Fixed(static_cast<uint32_t>(block.tokens.size()));
  message.Raw(std::as_bytes(block.tokens));
  message.Fixed(static_cast<uint32_t>(block.content.size()));
  for (const block::ContentKey& key : block.content) {
    message.Fixed(key.start);
    message.Fixed(key.item_offset);
    message.Fixed(key.length);
    message.Raw(key.digest);
  }
  const base::Digest256 digest = hmac_.Of(base::AsBytes(message.bytes()));
  ChainName name;
  std::copy_n(digest.begin(), name.size(), name.begin());
  return name;
}

std::string KeyOf(const ChainName& name, const std::string& formats) {
  const std::string_view bytes = base::AsText(name);
  std::string text;  // without padding
  absl::WebSafeBase64Escape({bytes.data(), bytes.size()}, &text);
  return absl::StrCat("pd1:{", text, "}:", formats);
}

}  // namespace prefixd::remote
