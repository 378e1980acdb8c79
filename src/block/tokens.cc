#include "block/tokens.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/steps.h"

namespace prefixd::block {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

absl::Status BadContent(size_t index, const ContentKey& key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("content: key ", index, " (start ", key.start,
                                                 ", item_offset ", key.item_offset, ", length ",
                                                 key.length, ") ", what));
}

uint32_t Size(const SequenceView& sequence) {
  return static_cast<uint32_t>(sequence.tokens.size());
}

// Returns the first index in [0, count) where `a` and `b` differ, or count. memcmp compares strides
// at the machine's full vector width; only the stride that differs is compared in smaller steps.
uint32_t FirstTokenMismatch(const Token* a, const Token* b, uint32_t count) {
  constexpr uint32_t kStride = 64;
  uint32_t i = 0;
  while (count - i >= kStride && std::memcmp(a + i, b + i, kStride * sizeof(Token)) == 0) {
    i += kStride;
  }
  for (; count - i >= 2; i += 2) {
    uint64_t x, y;
    std::memcpy(&x, a + i, sizeof(x));
    std::memcpy(&y, b + i, sizeof(y));
    if (x != y) return i + static_cast<uint32_t>(std::countr_zero(x ^ y)) / 32;
  }
  return i < count && a[i] == b[i] ? i + 1 : i;
}

// What is at one position: no content, or a place in an item.
struct Place {
  bool content = false;
  base::Digest256 digest{};
  uint64_t item_position = 0;
  auto operator<=>(const Place&) const = default;
};

// Walks a sequence's content from position 0 upwards.
class ContentCursor {
 public:
  explicit ContentCursor(std::span<const ContentKey> keys) : keys_(keys) {}

  void MoveTo(uint32_t position) {
    position_ = position;
    while (next_ < keys_.size() && End(keys_[next_]) <= position) ++next_;
  }
  Place Here() const {
    if (!Inside()) return {};
    const ContentKey& key = keys_[next_];
    return {true, key.digest, uint64_t{key.item_offset} + (position_ - key.start)};
  }
  // The first position after this one where a key begins or ends.
  uint64_t NextBorder() const {
    if (next_ == keys_.size()) return kNever;
    return Inside() ? End(keys_[next_]) : keys_[next_].start;
  }

 private:
  static uint64_t End(const ContentKey& key) { return uint64_t{key.start} + key.length; }
  bool Inside() const { return next_ < keys_.size() && keys_[next_].start <= position_; }

  std::span<const ContentKey> keys_;
  size_t next_ = 0;  // the first key that ends after position_
  uint32_t position_ = 0;
};

struct Difference {
  uint32_t position = 0;  // = limit when nothing differs before it
  Place a, b;             // at `position`, when it is below the limit
};

Difference FirstContentDifference(const SequenceView& a, const SequenceView& b, uint32_t limit) {
  ContentCursor cursor_a(a.content), cursor_b(b.content);
  uint32_t position = 0;
  while (position < limit) {
    cursor_a.MoveTo(position);
    cursor_b.MoveTo(position);
    const Place here_a = cursor_a.Here(), here_b = cursor_b.Here();
    if (here_a != here_b) return {position, here_a, here_b};
    position = static_cast<uint32_t>(
        std::min<uint64_t>({limit, cursor_a.NextBorder(), cursor_b.NextBorder()}));
  }
  return {limit, {}, {}};
}

}  // namespace

absl::Status ValidateContent(const SequenceView& sequence) {
  uint64_t free_from = 0;  // everything below belongs to earlier keys
  for (size_t i = 0; i < sequence.content.size(); ++i) {
    const ContentKey& key = sequence.content[i];
    if (key.length == 0) return BadContent(i, key, "is empty");
    if (key.start < free_from) {
      return BadContent(
          i, key,
          absl::StrCat("overlaps or precedes the key before it, which ends at ", free_from));
    }
    if (uint64_t{key.start} + key.length > sequence.tokens.size()) {
      return BadContent(i, key, absl::StrCat("ends past the ", sequence.tokens.size(), " tokens"));
    }
    if (uint64_t{key.item_offset} + key.length > kNever) {
      return BadContent(i, key, "reaches past item position 4294967295");
    }
    if (i > 0 && key.start == free_from) {
      const ContentKey& before = sequence.content[i - 1];
      if (before.digest == key.digest && before.item_offset + before.length == key.item_offset) {
        return BadContent(i, key, "continues the key before it: give both as one key");
      }
    }
    free_from = uint64_t{key.start} + key.length;
  }
  return absl::OkStatus();
}

std::vector<ContentKey> CutContent(std::span<const ContentKey> content, uint32_t begin,
                                   uint32_t end) {
  std::vector<ContentKey> cut;
  const auto from = std::ranges::partition_point(content, [&](const ContentKey& key) {
    base::CountSteps();
    return uint64_t{key.start} + key.length <= begin;
  });
  for (auto key = from; key != content.end() && key->start < end; ++key) {
    base::CountSteps();
    const uint64_t first = std::max(key->start, begin);
    const uint64_t last = std::min<uint64_t>(uint64_t{key->start} + key->length, end);
    if (first >= last) continue;
    ContentKey part = *key;
    part.start = static_cast<uint32_t>(first - begin);
    part.item_offset += static_cast<uint32_t>(first - key->start);
    part.length = static_cast<uint32_t>(last - first);
    cut.push_back(part);
  }
  return cut;
}

uint32_t CommonPrefix(const SequenceView& a, const SequenceView& b) {
  const uint32_t shorter = std::min(Size(a), Size(b));
  const uint32_t tokens = FirstTokenMismatch(a.tokens.data(), b.tokens.data(), shorter);
  if (a.content.empty() && b.content.empty()) return tokens;
  return FirstContentDifference(a, b, tokens).position;
}

std::strong_ordering Compare(const SequenceView& a, const SequenceView& b) {
  const uint32_t shorter = std::min(Size(a), Size(b));
  const uint32_t tokens = FirstTokenMismatch(a.tokens.data(), b.tokens.data(), shorter);
  if (!a.content.empty() || !b.content.empty()) {
    const Difference content = FirstContentDifference(a, b, tokens);
    if (content.position < tokens) return content.a <=> content.b;
  }
  if (tokens < shorter && a.tokens[tokens] != b.tokens[tokens]) {
    return a.tokens[tokens] <=> b.tokens[tokens];
  }
  return Size(a) <=> Size(b);
}

}  // namespace prefixd::block
