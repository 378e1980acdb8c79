// Structs of a C interface that grow: each begins with a member `size`, and caller and library may
// know a different number of members.
//
// Pure functions, thread-safe.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

namespace prefixd::base {

// A struct of any version is at most so large; more is no valid size.
inline constexpr size_t kMostStructBytes = 4096;

// Returns why a library that knows the first `known` bytes of a struct cannot read one of `size`
// bytes: its size is impossible, or something is set in it that the library does not know. Returns
// nullptr if it can, or if `from` is null.
inline const char* WhyNotReadable(const void* from, size_t size, size_t known) noexcept {
  if (from == nullptr) return nullptr;
  if (size < sizeof(size_t) || size > kMostStructBytes) {
    return "a struct's size member is not its size";
  }
  const auto* bytes = static_cast<const unsigned char*>(from);
  const bool has_more = size > known && std::any_of(bytes + known, bytes + size,
                                                    [](unsigned char byte) { return byte != 0; });
  return has_more ? "a struct asks for something that this library is too old for" : nullptr;
}

// Copies the members of `from`, which must be readable, that both know; the others get their
// defaults. Null: all do.
template <typename Struct>
void CopyKnown(const Struct* from, Struct* to) noexcept {
  *to = {};
  if (from != nullptr) std::memcpy(to, from, std::min(from->size, sizeof(Struct)));
}

// Fills the members of `to` that its owner knows. `to` may be null.
template <typename Struct>
void Give(Struct from, Struct* to) noexcept {
  if (to == nullptr) return;
  from.size = to->size;
  std::memcpy(to, &from, std::min(to->size, sizeof(Struct)));
}

}  // namespace prefixd::base
