// The lines that gRPC and protobuf write by themselves.
#pragma once
#include <string>

namespace prefixd::daemon {

// Puts them into the log, where protobuf's are debugging. `told` is asked about each of gRPC's, on
// any thread, and keeps a line out by true. Called once, before the first call of either.
void TakeLogsOfLibraries(bool (*told)(const std::string& line));

}  // namespace prefixd::daemon
