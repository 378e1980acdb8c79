// Makes text from outside fit for a proto string, or for a line of the log.
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

// Returns `text` in printable ASCII, on one line. A line break becomes "\n"; a backslash, and each
// other byte that is not printable ASCII, becomes two hex digits, as in "\x1b". Quotation marks
// stay.
std::string Printable(std::string_view text);

}  // namespace prefixd::base
