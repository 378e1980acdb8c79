// Ids that travel between rooms and over the wire. 0 means none; ids are never used twice in one
// daemon's life.
#pragma once
#include "base/strong_id.h"

namespace prefixd::block {

using SpaceHandle = base::StrongId<struct SpaceTag>;  // of one daemon's life; SpaceId is for ever
using SessionId = base::StrongId<struct SessionTag>;
using LeaseId = base::StrongId<struct LeaseTag>;
using PinId = base::StrongId<struct PinTag>;
using ReservationId = base::StrongId<struct ReservationTag>;

}  // namespace prefixd::block
