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

// Returns `text` in printable ASCII: a line break becomes "\n", every other such byte and the
// backslash "\x1b". Quotation marks stay as they are.
std::string Printable(std::string_view text);

}  // namespace prefixd::base
