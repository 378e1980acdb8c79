// Bars and charts of characters.
//
// Pure functions. With `utf8` they are made of block elements, else of ASCII.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace prefixd::cli {

// Returns "[####----]", `width` columns in all. A share above 0 shows, and less than 1 is not full.
// Requires: width >= 3.
std::string Bar(double share, size_t width, bool utf8);

// Returns `height` lines, the top one first, with one column for each value. A value is 0..1, or
// negative where there is none: it shows nothing, and 0 shows the lowest mark.
std::vector<std::string> Chart(const std::vector<double>& values, size_t height, bool utf8);

}  // namespace prefixd::cli
