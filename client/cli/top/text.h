// Text that fits into columns of a terminal.
//
// Pure functions. A text is UTF-8. Width is counted in columns: 2 for East Asian wide characters, 0
// for marks that combine.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace prefixd::cli {

// Returns `text` as a terminal may show it: what it would obey, what is not UTF-8 and, unless
// `utf8`, what is not ASCII becomes '?'. Names come from workers.
std::string Shown(std::string_view text, bool utf8);

size_t Columns(std::string_view text);

// Returns `text`, cut to `width` columns. A text that was cut ends with "~".
std::string Cut(std::string_view text, size_t width);
// Returns Cut(text, width) with blanks behind or before it, `width` columns in all.
std::string Left(std::string_view text, size_t width);
std::string Right(std::string_view text, size_t width);

}  // namespace prefixd::cli
