// Staged pages: from the memory that the worker writes into extents. The worker may write at any
// time, so each byte is read once and the check is of the copy.
#pragma once
#include <cstdint>

#include "absl/status/status.h"

#include "cache/cache.h"
#include "cache/context.h"
#include "cache/patience.h"
#include "cache/room/room.h"
#include "cache/tables/session.h"

namespace prefixd::cache {

// InvalidArgument, naming the first place that is not one of the reservation's pages.
absl::Status CheckStaged(Reservation* reservation, const CommitRequest& request,
                         uint64_t staging_bytes);
// Copies a staged page into an extent of the reservation.
absl::Status TakeStaged(Context& context, Room& room, Reservation* reservation,
                        const StagedPlace& place, const ram::Staging& from,
                        const Patience& patience);

}  // namespace prefixd::cache
