// What the keys of prefixctl top do.
//
// Pure functions.
#pragma once
#include "client/cli/top/frame.h"

namespace prefixd::cli {

enum class TopKey { kNone, kQuit, kPause, kSort, kUp, kDown, kPageUp, kPageDown, kEnter, kBack };

// Changes what `view` shows as `key` asks. Returns false if top is to end.
bool OnKey(TopKey key, TopView* view);

}  // namespace prefixd::cli
