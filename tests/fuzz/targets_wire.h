// Messages that workers and people send.
#pragma once
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {

void Request(Bytes input);
std::vector<std::string> RequestSeeds();

}  // namespace prefixd::fuzz
