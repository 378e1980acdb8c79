// The known name that a mistyped one is nearest to.
//
// Pure, thread-safe.
#pragma once
#include <span>
#include <string>

namespace prefixd::base {

// Returns the number of letters to insert, remove, replace or swap with their neighbour so that `a`
// becomes `b`.
size_t EditDistance(const std::string& a, const std::string& b);

// Returns the known name with the fewest edits, at most a third of the letters of `name`, or one
// that `name` is a part of; "" if there is none.
std::string Nearest(const std::string& name, std::span<const std::string> known);

// Returns "; did you mean PREFIXNAME?" for the nearest name, or "".
std::string DidYouMean(const std::string& name, std::span<const std::string> known,
                       const std::string& prefix = "");

}  // namespace prefixd::base
