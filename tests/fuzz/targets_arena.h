// The tables of an arena file that an earlier daemon left.
#pragma once
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {

// The input: changes of five bytes, where (u32) and what to combine with.
void ArenaTables(Bytes input);
std::vector<std::string> ArenaTablesSeeds();

}  // namespace prefixd::fuzz
