// The settings of the store that hosts share, and what the cache is told of it.
//
// A function here that applies a value is one of the table in settings.cc.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cache/remote_options.h"
#include "daemon/config.h"

namespace prefixd::daemon {

absl::Status ApplyRemote(const std::string& value, const Environment& environment, Config* config);
absl::Status ApplyRemoteWriteRate(const std::string& value, const Environment& environment,
                                  Config* config);
absl::Status ApplyRemoteWriteShare(const std::string& value, const Environment& environment,
                                   Config* config);
absl::Status ApplyRemoteTenant(const std::string& value, const Environment& environment,
                               Config* config);

// Returns InvalidArgument if the settings contradict each other: no key and not insecure, half a
// client certificate, TLS files for redis://.
absl::Status CheckRemote(const Config::Remote& remote);

// Reads the key and password files and makes the store's client, which connects when it is used.
// FailedPrecondition: a file is not there, too short, or others may read it.
absl::StatusOr<cache::RemoteOptions> OpenRemote(const Config::Remote& remote);

}  // namespace prefixd::daemon
