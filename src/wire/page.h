// Limits of a page on its way: what can be said without knowing the page's layout.
#pragma once
#include "absl/status/status.h"

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

// InvalidArgument for a piece of no bytes or more than kMaxPieceBytes, or one that reaches past
// page_bytes.
absl::Status CheckPiece(const v1::PageBytes& page);

}  // namespace prefixd::wire
