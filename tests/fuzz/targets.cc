#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {

const std::vector<Target>& Targets() {
  static const std::vector<Target> all = [] {
    std::vector<Target> targets;
    for (const auto& group : {StoreTargets(), WireTargets(), ArenaTargets(), InteropTargets(),
                              BundleTargets(), RemoteTargets()}) {
      targets.insert(targets.end(), group.begin(), group.end());
    }
    return targets;
  }();
  return all;
}

}  // namespace prefixd::fuzz
