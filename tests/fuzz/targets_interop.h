// Files that other engines wrote.
#pragma once
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {

void LlamaState(Bytes input);
std::vector<std::string> LlamaStateSeeds();

void PromptCache(Bytes input);
std::vector<std::string> PromptCacheSeeds();

}  // namespace prefixd::fuzz
