// Implementation of SequenceSet. Belongs to one thread at a time.
#pragma once
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "core.h"
#include "prefixd/client.h"
#include "prefixd/set.h"

namespace prefixd {

struct SequenceSet::Impl {
  std::shared_ptr<client::Core> core;
  std::vector<Sequence> members;  // none is without an impl_

  // Looks all members up at once. Each is then as after its own lookup; an error leaves them with
  // what they had.
  void LookUp();
  uint32_t Least() const;
  uint32_t Restart();

 private:
  absl::Status TryLookUp();
};

}  // namespace prefixd
