// The parts of a frame of prefixctl top. What is too wide is cut by RenderTop().
//
// Pure functions. Each requires that view.latest is set.
#pragma once
#include <cstddef>
#include <vector>

#include "client/cli/top/frame.h"

namespace prefixd::cli {

// "Of late": rates and orders are those of so many seconds.
inline constexpr double kRecentS = 60;

// The hit rate as numbers and over time, of the space that is drilled into or of all.
std::vector<TopLine> HitRatePanel(const TopView& view, size_t columns, size_t chart_rows);

// Tokens, what was saved, tiers as bars, evictions, disk, sessions.
std::vector<TopLine> FlowPanel(const TopView& view, size_t columns);

// At most `room` lines: the table of spaces and, where there is room, those of the hottest prefixes
// and of sessions.
std::vector<TopLine> TablesPanel(const TopView& view, size_t columns, size_t room);

// About the space view.drilled: what it is and holds.
std::vector<TopLine> SpacePanel(const TopView& view);
// At most `room` lines: who reads it, and which of its prefixes are read most.
std::vector<TopLine> LeasesPanel(const TopView& view, size_t room);

}  // namespace prefixd::cli
