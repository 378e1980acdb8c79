// The one function of libprefixd_worker_cuda.so: prefixd::worker::OpenCudaDevice.
#include <cstdint>
#include <cstring>
#include <string>

#include "base/version.h"
#include "client/worker_cuda/cuda_device.h"

extern "C" __attribute__((visibility("default"))) prefixd::worker::Device* prefixd_worker_cuda_open(
    const char* version, int32_t gpu, std::string* why) {
  if (std::strcmp(version, prefixd::kVersion) != 0) {
    *why = std::string("the library is of version ") + prefixd::kVersion + ", the worker of " +
           version;
    return nullptr;
  }
  return prefixd::worker::cuda::CudaDevice::Open(gpu, why).release();
}
