// What the scripts of all three shells need.
#pragma once
#include <string>
#include <vector>

namespace prefixd::completion {

// Returns `text` as one word of bash, zsh and, with `fish`, of fish.
std::string Quoted(const std::string& text, bool fish = false);

std::string Joined(const std::vector<std::string>& words, const std::string& separator);

// Returns the name of a shell function: "_prefixd_llama".
std::string FunctionName(const std::string& program);

}  // namespace prefixd::completion
