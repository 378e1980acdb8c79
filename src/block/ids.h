// Ids that are passed between rooms and over the wire. 0 means none. A daemon never reuses an id.
#pragma once
#include "base/strong_id.h"

namespace prefixd::block {

// The daemon draws it at random, valid for its own life only (SpaceId is permanent). It accepts a
// handle only from sessions that opened the space.
using SpaceHandle = base::StrongId<struct SpaceTag>;
// Random. It is the only proof of who owns a session, so it is shown to nobody else. People and
// logs see the session's name, which reveals nothing about the id.
using SessionId = base::StrongId<struct SessionTag>;
using SessionName = base::StrongId<struct SessionNameTag>;
using LeaseId = base::StrongId<struct LeaseTag>;
using PinId = base::StrongId<struct PinTag>;
using ReservationId = base::StrongId<struct ReservationTag>;

}  // namespace prefixd::block
