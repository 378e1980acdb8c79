// Implementation of Space.
#pragma once
#include <memory>

#include "core.h"
#include "prefixd/client.h"
#include "space_state.h"

namespace prefixd {

struct Space::Impl {
  std::shared_ptr<client::Core> core;
  std::shared_ptr<client::SpaceState> space;
};

}  // namespace prefixd
