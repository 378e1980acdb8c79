#include "wire/sequence.h"

#include "wire/fields.h"
#include "wire/limits.h"

namespace prefixd::wire {

absl::StatusOr<block::Request> FromProto(const v1::Sequence& proto) {
  if (proto.tokens().empty())
    return absl::InvalidArgumentError("sequence: 0 tokens, wants at least 1");
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("sequence: tokens", static_cast<uint64_t>(proto.tokens_size()), kMaxTokens));
  block::Request sequence;
  sequence.space.value = proto.space();
  // The one copy: from the parsed message straight to where the cache reads them.
  sequence.tokens.assign(proto.tokens().data(), proto.tokens().data() + proto.tokens_size());
  sequence.content.reserve(static_cast<size_t>(proto.content_size()));
  for (int i = 0; i < proto.content_size(); ++i) {
    const v1::ContentKey& from = proto.content(i);
    block::ContentKey& key = sequence.content.emplace_back();
    key.start = from.start();
    key.item_offset = from.item_offset();
    key.length = from.length();
    PREFIXD_RETURN_IF_ERROR(ReadDigest(absl::StrCat("sequence: content[", i, "].digest"),
                                       from.digest(), false, &key.digest));
  }
  PREFIXD_RETURN_IF_ERROR(block::ValidateContent({sequence.tokens, sequence.content}));
  return sequence;
}

void ToProto(block::SpaceHandle space, const block::SequenceView& sequence, v1::Sequence* proto) {
  proto->Clear();
  proto->set_space(space.value);
  proto->mutable_tokens()->Assign(sequence.tokens.begin(), sequence.tokens.end());
  for (const block::ContentKey& key : sequence.content) {
    v1::ContentKey* to = proto->add_content();
    to->set_start(key.start);
    to->set_length(key.length);
    to->set_item_offset(key.item_offset);
    to->set_digest(key.digest.data(), key.digest.size());
  }
}

}  // namespace prefixd::wire
