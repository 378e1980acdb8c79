// Another host as far as the network goes: a network namespace with a pair of veth devices to it.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "bench/remote/loopback.h"

namespace prefixd::bench {

// The destructor removes the namespace, and the kernel both devices with it.
class Veth {
 public:
  // Needs root and iproute2; the error says what is missing. `log`: a file for what `ip` says.
  static absl::StatusOr<std::unique_ptr<Veth>> Make(const std::string& log);
  ~Veth();
  Veth(const Veth&) = delete;
  Veth& operator=(const Veth&) = delete;

  const Place& place() const { return place_; }

 private:
  explicit Veth(Place place) : place_(std::move(place)) {}
  const Place place_;
};

}  // namespace prefixd::bench
