// Publishes the pages of a block that have arrived.
#pragma once
#include <cstddef>

#include "absl/status/statusor.h"

#include "cache/context.h"
#include "cache/tables/session.h"

namespace prefixd::cache {

// On an error the extents stay the reservation's. InvalidArgument if a page is missing or not
// whole.
absl::StatusOr<block::StoreResult> PublishBlock(Context& context, Reservation* reservation,
                                                size_t block_index)
    PREFIXD_REQUIRES(reservation->mutex);

}  // namespace prefixd::cache
