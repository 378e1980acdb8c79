// ArraysCache: recurrent and convolution state.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "interop/mlx_cache.h"

namespace prefixd::interop {
namespace {

absl::Status BadArrays(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("mlx cache: ArraysCache: ", what));
}

}  // namespace

absl::StatusOr<StateArrays> ReadStateArrays(const MlxCache& cache) {
  if (cache.class_name != "ArraysCache" && cache.class_name != "MambaCache") {
    return absl::InvalidArgumentError(
        absl::StrCat("mlx cache: ", cache.class_name, " is no ArraysCache"));
  }
  // ([arrays], left_padding, lengths); earlier releases had the list alone.
  const bool nested = cache.state.contains("0.0");
  for (const char* batch : {"1", "2"}) {
    const auto found = cache.state.find(batch);
    if (nested && found != cache.state.end() && found->second.elements() != 0) {
      return BadArrays("is a batch with padding or lengths: take its sequences apart first");
    }
  }
  StateArrays state;
  for (size_t i = 0;; ++i) {
    const auto found = cache.state.find(absl::StrCat(nested ? "0." : "", i));
    if (found == cache.state.end()) break;
    state.arrays.push_back(found->second);
  }
  if (state.arrays.empty()) return BadArrays("its state has no arrays");
  return state;
}

MlxCache MlxCacheOf(const StateArrays& state) {
  MlxCache cache{.class_name = "ArraysCache"};
  for (size_t i = 0; i < state.arrays.size(); ++i) {
    cache.state[absl::StrCat("0.", i)] = state.arrays[i];
  }
  cache.state["1"] = cache.state["2"] = Array{.dtype = TensorDtype::kF32, .shape = {0}};
  return cache;
}

std::vector<std::byte> SnapshotOf(const StateArrays& state) {
  std::vector<std::byte> snapshot;
  for (const Array& array : state.arrays) {
    snapshot.insert(snapshot.end(), array.bytes.begin(), array.bytes.end());
  }
  return snapshot;
}

absl::StatusOr<StateArrays> StateOfSnapshot(const StateArrays& like,
                                            std::span<const std::byte> snapshot) {
  uint64_t wanted = 0;
  for (const Array& array : like.arrays) wanted += array.elements() * BytesOf(array.dtype);
  if (snapshot.size() != wanted) {
    return BadArrays(
        absl::StrCat("a snapshot of ", snapshot.size(), " bytes, its arrays have ", wanted));
  }
  const auto memory =
      std::make_shared<const std::vector<std::byte>>(snapshot.begin(), snapshot.end());
  StateArrays state;
  size_t at = 0;
  for (const Array& array : like.arrays) {
    const size_t bytes = array.elements() * BytesOf(array.dtype);
    state.arrays.push_back({.dtype = array.dtype,
                            .shape = array.shape,
                            .bytes = std::span(*memory).subspan(at, bytes),
                            .memory = memory});
    at += bytes;
  }
  return state;
}

}  // namespace prefixd::interop
