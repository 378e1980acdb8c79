// What is wrong with a server's settings for a cache of prefixd.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "remote/node.h"

namespace prefixd::remote {

// Returns a sentence for each setting that costs hits, writes or disk; one that says so if the
// server does not show its settings. None if the server does not answer.
std::vector<std::string> CheckSettings(Node& node, std::chrono::milliseconds patience);

}  // namespace prefixd::remote
