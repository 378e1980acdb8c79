// Text of others, as far as it may stand in a proto string.
//
// Pure functions.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace prefixd::base {

// The longest beginning of `text` of at most `most_bytes` that cuts no character; bytes that are
// no UTF-8 become '?'.
std::string Utf8Prefix(std::string_view text, size_t most_bytes);

}  // namespace prefixd::base
