// Makes text from outside fit for a proto string.
//
// Pure functions.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace prefixd::base {

// Returns the longest prefix of `text` of at most `most_bytes` that cuts no character. Bytes that
// are not UTF-8 become '?'.
std::string Utf8Prefix(std::string_view text, size_t most_bytes);

}  // namespace prefixd::base
