// Numbers as people read them.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <string>

namespace prefixd::cli {

std::string CountText(uint64_t count);                     // "12,345"
std::string PercentText(uint64_t part, uint64_t whole);    // "81.0 %"; "-" if whole is 0
std::string UptimeText(double seconds);                    // "42 s", "3 min 7 s", "2 d 4 h"
std::string SecondsText(double seconds);                   // "12.4 s", "-0.3 s", "1 h 2 min"
std::string LatencyText(double us);                        // "480 us", "1.2 ms", "3.4 s"
std::string BarText(uint64_t part, uint64_t whole);        // "[#####---------------]"
std::string Plural(uint64_t count, const char* singular);  // "1 lease", "2 leases"

// Replaces bytes that a terminal would obey with '?': names come from workers.
std::string PrintableText(const std::string& text);

}  // namespace prefixd::cli
