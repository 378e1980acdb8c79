// prefixctl events: prints what is stored and how it changes, as it happens.
#pragma once
#include <ostream>
#include <string>

#include "absl/status/status.h"

#include "client/cli/daemon_calls.h"
#include "client/cli/options.h"
#include "prefixd/v1/admin.pb.h"

namespace CLI {
class App;
}

namespace prefixd::cli {

void DeclareEvents(CLI::App& app, Options* options);

// Returns a line for each block and event of the reply, and one where a snapshot begins or is
// complete (`was_whole`: what the reply before said). Pure.
std::string EventsView(const v1::WatchEventsReply& reply, bool was_whole);

// Prints until the daemon stops, or with options.events_once until the snapshot is complete.
// `space_id`: of the space to watch; empty for all.
absl::Status RunEvents(DaemonCalls& calls, const Options& options, const std::string& space_id,
                       std::ostream& out);

}  // namespace prefixd::cli
