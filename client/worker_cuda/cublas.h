// The few functions of cuBLAS that a decoder's products need, loaded when they are first needed: no
// header of cuBLAS is needed to build, and hosts that have the library alone run it.
//
// The signatures and values are those of NVIDIA's "cuBLAS Library" documentation, chapters 2.4
// (helper functions) and 2.7 (level 3), which are the same in CUDA 12 and 13.
//
// One thread at a time.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "prefixd/client.h"

namespace prefixd::worker::cuda {

class Cublas {
 public:
  // Looks for the library: at $PREFIXD_CUBLAS if that is set, else as libcublas.so.13 and
  // libcublas.so.12 where the loader looks (LD_LIBRARY_PATH, ld.so.conf), then in
  // /usr/local/cuda/lib64. On failure returns null and sets `why`.
  //
  // Products run on `stream` in float32 without TF32, with a workspace of their own: the same shape
  // gives the same bits each time.
  static std::unique_ptr<Cublas> Open(cudaStream_t stream, std::string* why);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // Queues out[r] = matrix . in[r] for `count` vectors. matrix: [rows, cols], in: [count, cols],
  // out: [count, rows]. Returns why it could not, empty if it could.
  std::string Multiply(const float* matrix, uint32_t rows, uint32_t cols, uint32_t count,
                       const float* in, float* out);
  // "cuBLAS 13.1.0"
  const std::string& version() const { return version_; }

 private:
  using Handle = struct cublasContext*;
  struct Functions {
    int (*create)(Handle*) = nullptr;
    int (*destroy)(Handle) = nullptr;
    int (*set_stream)(Handle, cudaStream_t) = nullptr;
    int (*set_workspace)(Handle, void*, size_t) = nullptr;
    int (*set_math_mode)(Handle, int) = nullptr;
    int (*get_version)(Handle, int*) = nullptr;
    const char* (*status_string)(int) = nullptr;
    int (*sgemm)(Handle, int, int, int, int, int, const float*, const float*, int, const float*,
                 int, const float*, float*, int) = nullptr;
  };

  Cublas() = default;
  bool Load(std::string* why);
  bool Find(void* library, std::string* why);
  bool Start(cudaStream_t stream, std::string* why);

  Functions call_;
  Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  std::string version_;
};

}  // namespace prefixd::worker::cuda
