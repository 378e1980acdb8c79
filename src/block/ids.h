// Ids that travel between rooms and over the wire. 0 means none; ids are never used twice in one
// daemon's life.
#pragma once
#include "base/strong_id.h"

namespace prefixd::block {

// A daemon draws it at random for its own life (SpaceId is for ever), and takes it only from
// sessions that opened the space.
using SpaceHandle = base::StrongId<struct SpaceTag>;
// Random, and all that a session's owner is known by: shown to nobody else. People and logs see
// its name, which tells nothing of the id.
using SessionId = base::StrongId<struct SessionTag>;
using SessionName = base::StrongId<struct SessionNameTag>;
using LeaseId = base::StrongId<struct LeaseTag>;
using PinId = base::StrongId<struct PinTag>;
using ReservationId = base::StrongId<struct ReservationTag>;

}  // namespace prefixd::block
