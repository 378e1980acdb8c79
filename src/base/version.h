// The version of all programs: --version, GetStats, GetConfig and the Attached event tell it.
#pragma once

namespace prefixd {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace prefixd
