// Loads the device of a GPU. The worker itself links nothing of CUDA: that part is a library,
// libprefixd_worker_cuda.so, built where nvcc is and loaded when a GPU is asked for.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "client/worker/device.h"

namespace prefixd::worker {

// Returns GPU number `gpu`. FailedPrecondition says what is missing and where it was looked for:
// the library, a driver, such a GPU, or cuBLAS. The library is looked for at $PREFIXD_WORKER_CUDA
// if that is set, else beside the program, in the library folder of its installation, and where the
// loader looks. Once loaded it stays.
absl::StatusOr<std::shared_ptr<Device>> OpenGpu(int32_t gpu);

}  // namespace prefixd::worker
