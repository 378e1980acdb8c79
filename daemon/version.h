// The version that --version, GetStats, GetConfig and the Attached event tell.
#pragma once

namespace prefixd::daemon {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace prefixd::daemon
