#include "client/worker_cuda/cublas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace prefixd::worker::cuda {
namespace {

constexpr int kNotTransposed = 0, kTransposed = 1;  // cublasOperation_t
constexpr int kPedanticMath = 2;                    // cublasMath_t: no TF32, no other shortcuts
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

std::vector<std::string> Places() {
  const char* given = std::getenv("PREFIXD_CUBLAS");
  if (given != nullptr && *given != '\0') return {given};
  return {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.13",
          "/usr/local/cuda/lib64/libcublas.so.12"};
}

}  // namespace

std::unique_ptr<Cublas> Cublas::Open(cudaStream_t stream, std::string* why) {
  std::unique_ptr<Cublas> cublas(new Cublas);
  if (!cublas->Load(why) || !cublas->Start(stream, why)) return nullptr;
  return cublas;
}

Cublas::~Cublas() {
  if (handle_ != nullptr) call_.destroy(handle_);
  if (workspace_ != nullptr) cudaFree(workspace_);
}

// The library stays loaded until the process ends: it has threads and state of the driver's.
bool Cublas::Load(std::string* why) {
  std::string looked;
  for (const std::string& place : Places()) {
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return Find(library, why);
    const char* error = dlerror();
    looked += (looked.empty() ? "" : "; ") + std::string(error != nullptr ? error : place);
  }
  *why = "cuBLAS was not found (" + looked +
         "). Set LD_LIBRARY_PATH to the folder that has libcublas.so.13 or .12, or PREFIXD_CUBLAS "
         "to the file";
  return false;
}

bool Cublas::Find(void* library, std::string* why) {
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) *why = std::string("cuBLAS has no function ") + name;
    return *function != nullptr;
  };
  return find("cublasCreate_v2", &call_.create) && find("cublasDestroy_v2", &call_.destroy) &&
         find("cublasSetStream_v2", &call_.set_stream) &&
         find("cublasSetWorkspace_v2", &call_.set_workspace) &&
         find("cublasSetMathMode", &call_.set_math_mode) &&
         find("cublasGetVersion_v2", &call_.get_version) &&
         find("cublasGetStatusString", &call_.status_string) &&
         find("cublasSgemm_v2", &call_.sgemm);
}

bool Cublas::Start(cudaStream_t stream, std::string* why) {
  const auto ok = [&](int status, const char* what) {
    if (status != 0) *why = std::string("cuBLAS: ") + what + ": " + call_.status_string(status);
    return status == 0;
  };
  if (cudaMalloc(&workspace_, kWorkspaceBytes) != cudaSuccess) {
    *why = "cuBLAS: the GPU has no memory for a workspace";
    return false;
  }
  int version = 0;
  const bool started = ok(call_.create(&handle_), "create") &&
                       ok(call_.set_stream(handle_, stream), "stream") &&
                       ok(call_.set_workspace(handle_, workspace_, kWorkspaceBytes), "workspace") &&
                       ok(call_.set_math_mode(handle_, kPedanticMath), "math mode") &&
                       ok(call_.get_version(handle_, &version), "version");
  version_ = "cuBLAS " + std::to_string(version / 10000) + "." +
             std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  return started;
}

// In the column-major order of cuBLAS the result is [rows, count], and the matrix is transposed.
std::string Cublas::Multiply(const float* matrix, uint32_t rows, uint32_t cols, uint32_t count,
                             const float* in, float* out) {
  const float one = 1, zero = 0;
  const int outputs = static_cast<int>(rows), inputs = static_cast<int>(cols);
  const int status =
      call_.sgemm(handle_, kTransposed, kNotTransposed, outputs, static_cast<int>(count), inputs,
                  &one, matrix, inputs, in, inputs, &zero, out, outputs);
  return status == 0 ? "" : std::string("cuBLAS: product: ") + call_.status_string(status);
}

}  // namespace prefixd::worker::cuda
