#include "client/worker/gpu_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/version.h"

namespace prefixd::worker {
namespace {

constexpr char kGpuLibrary[] = "libprefixd_worker_cuda.so";

std::string LastLoaderError() {
  const char* error = dlerror();
  return error != nullptr ? error : "the loader does not say why";
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> OpenGpu(int32_t gpu) {
  const char* given = std::getenv("PREFIXD_WORKER_CUDA");
  const bool is_given = given != nullptr && *given != '\0';
  // A name without a folder is looked for in the program's RUNPATH too, which CMake sets.
  void* library = dlopen(is_given ? given : kGpuLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        kGpuLibrary, " was not found ",
        is_given ? "at $PREFIXD_WORKER_CUDA"
                 : "beside the program, in its library folder or where the loader looks",
        " (", LastLoaderError(), "). It is built where nvcc is",
        is_given ? "" : "; PREFIXD_WORKER_CUDA may name the file"));
  }
  auto* open = reinterpret_cast<OpenCudaDevice*>(dlsym(library, kOpenCudaDevice));
  if (open == nullptr) return absl::FailedPreconditionError(LastLoaderError());
  std::string why;
  std::shared_ptr<Device> device(open(kVersion, gpu, &why));
  if (device == nullptr) return absl::FailedPreconditionError(why);
  return device;
}

}  // namespace prefixd::worker
