// Tables are at the GPU when what is queued next reads them.
#include "chunks.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

// What comes behind an upload on the stream reads its last bytes, while the copy takes more than a
// millisecond.
std::byte LastByteBehindUpload(Chunks& chunks, std::byte value, cudaStream_t stream) {
  const std::vector<std::byte> table(size_t{64} << 20, value);
  const auto chunk = chunks.Upload(table.data(), table.size(), stream);
  std::byte last{};
  if (!chunk.ok()) {
    ADD_FAILURE() << chunk.status();
    return last;
  }
  EXPECT_EQ(cudaMemcpyAsync(&last, (*chunk)->device + table.size() - 1, 1, cudaMemcpyDeviceToHost,
                            stream),
            cudaSuccess);
  EXPECT_TRUE(chunks.Give(*chunk, stream).ok());
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  return last;
}

TEST(ChunksTest, WhatIsQueuedBehindAnUploadSeesAllOfIt) {
  SKIP_WITHOUT_GPU();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    Chunks chunks({.least_bytes = 1, .most_bytes = 1, .with_device = true});
    for (int i = 1; i < 6; ++i) {  // one chunk, used again and again
      const auto value = static_cast<std::byte>(i);
      EXPECT_EQ(LastByteBehindUpload(chunks, value, stream), value);
    }
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace prefixd::cuda
