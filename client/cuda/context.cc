#include "context.h"

#include <cuda.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "errors.h"

namespace prefixd::cuda {
namespace {

constexpr size_t kTableBytes = size_t{64} << 10;      // of the least chunk
constexpr size_t kMostTableBytes = size_t{64} << 20;  // of all of them
constexpr size_t kBounceBytes = size_t{64} << 20;
constexpr uint32_t kBounceChunks = 4;
constexpr uint32_t kCopyThreads = 4;

size_t BounceBytes(const prefixd_cuda_options& options) {
  return options.bounce_bytes == 0 ? kBounceBytes : options.bounce_bytes;
}

uint32_t AttributeOf(int device, cudaDeviceAttr attribute) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) cudaGetLastError();
  return static_cast<uint32_t>(std::max(value, 0));
}

// The allocation that holds device memory; at least these bytes.
Context::DeviceRange RangeOf(const void* address, uint64_t bytes) {
  using Function = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  static const Function function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found,
                                                               12000, cudaEnableDefault, &result);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuMemGetAddressRange", &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) {
      cudaGetLastError();
      found = nullptr;
    }
    return reinterpret_cast<Function>(found);
  }();
  const auto at = reinterpret_cast<uintptr_t>(address);
  CUdeviceptr begin = 0;
  size_t size = 0;
  if (function == nullptr || function(&begin, &size, at) != CUDA_SUCCESS) return {at, at + bytes};
  return {begin, begin + size};
}

}  // namespace

Context::Context(const prefixd_cuda_options& options)
    : device_(options.device),
      copy_threads_(options.copy_threads == 0 ? kCopyThreads : options.copy_threads),
      bounce_chunk_bytes_(BounceBytes(options) / kBounceChunks),
      tables_({.least_bytes = kTableBytes, .most_bytes = kMostTableBytes, .with_device = true}),
      bounce_({.least_bytes = bounce_chunk_bytes_, .most_bytes = BounceBytes(options)}) {}

Context::~Context() {
  cudaSetDevice(device_);
  if (load_stream_ != nullptr) {
    cudaStreamSynchronize(load_stream_);
    cudaStreamDestroy(load_stream_);
  }
  for (const cudaStream_t stream : expand_streams_) cudaStreamDestroy(stream);
  if (scratch_ != nullptr) cudaMemPoolDestroy(scratch_);
  if (page_tier_ != nullptr) cudaFree(page_tier_->memory);  // waits for who reads it
  cudaGetLastError();
}

absl::StatusOr<std::unique_ptr<Context>> Context::Open(const prefixd_cuda_options& options) {
  int count = 0;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaGetDeviceCount(&count), "open: no GPU"));
  if (options.device < 0 || options.device >= count) {
    return absl::UnavailableError(
        absl::StrCat("open: there is no GPU ", options.device, ", ", count, " are there"));
  }
  if (options.copy_threads > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("open: copy_threads is ", options.copy_threads, ", at most 64"));
  }
  if (options.bounce_bytes != 0 && options.bounce_bytes < (size_t{1} << 20)) {
    return absl::InvalidArgumentError(
        absl::StrCat("open: bounce_bytes is ", options.bounce_bytes, ", at least 1 MiB"));
  }
  auto context = std::make_unique<Context>(options);
  PREFIXD_RETURN_IF_ERROR(context->Prepare());
  return context;
}

absl::Status Context::Enter() const { return FromCuda(cudaSetDevice(device_), "cuda: the GPU"); }

absl::Status Context::Prepare() {
  PREFIXD_RETURN_IF_ERROR(Enter());
  cudaDeviceProp properties;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaGetDeviceProperties(&properties, device_), "open"));
  CopyText(properties.name, facts_.name);
  facts_.major = static_cast<uint32_t>(properties.major);
  facts_.minor = static_cast<uint32_t>(properties.minor);
  facts_.processors = static_cast<uint32_t>(properties.multiProcessorCount);
  facts_.pins_read_only = AttributeOf(device_, cudaDevAttrHostRegisterReadOnlySupported);
  facts_.memory_bytes = properties.totalGlobalMem;
  facts_.clock_khz = AttributeOf(device_, cudaDevAttrClockRate);
  facts_.memory_clock_khz = AttributeOf(device_, cudaDevAttrMemoryClockRate);
  shared_memory_ = {.each = static_cast<uint32_t>(properties.sharedMemPerMultiprocessor),
                    .most = static_cast<uint32_t>(properties.sharedMemPerBlockOptin)};
  PREFIXD_RETURN_IF_ERROR(
      FromCuda(cudaStreamCreateWithFlags(&load_stream_, cudaStreamNonBlocking), "open: stream"));
  cudaMemPoolProps pool = {};
  pool.allocType = cudaMemAllocationTypePinned;
  pool.location.type = cudaMemLocationTypeDevice;
  pool.location.id = device_;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaMemPoolCreate(&scratch_, &pool), "open: memory pool"));
  uint64_t keep = ~uint64_t{0};
  return FromCuda(cudaMemPoolSetAttribute(scratch_, cudaMemPoolAttrReleaseThreshold, &keep),
                  "open: memory pool");
}

absl::StatusOr<cudaStream_t> Context::TakeExpandStream() {
  {
    const std::lock_guard lock(mutex_);
    if (!expand_streams_.empty()) {
      const cudaStream_t stream = expand_streams_.back();
      expand_streams_.pop_back();
      return stream;
    }
  }
  cudaStream_t stream = nullptr;
  PREFIXD_RETURN_IF_ERROR(
      FromCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "load: stream"));
  return stream;
}

void Context::GiveExpandStream(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  expand_streams_.push_back(stream);
}

absl::Status Context::KeepPages(uint64_t budget_bytes) {
  auto tier = std::make_unique<PageTier>(budget_bytes);
  const uint64_t bytes = tier->pages.counts().budget_bytes;
  if (bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("keep_pages: the budget is ", budget_bytes,
                                                   " bytes, at least ", DevicePages::kAlignment));
  }
  const std::lock_guard lock(mutex_);
  if (page_tier_ != nullptr) {
    return absl::FailedPreconditionError("keep_pages: this context has device pages already");
  }
  PREFIXD_RETURN_IF_ERROR(Enter());
  void* memory = nullptr;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaMalloc(&memory, bytes), "keep_pages: device memory"));
  tier->memory = static_cast<std::byte*>(memory);
  page_tier_ = std::move(tier);
  return absl::OkStatus();
}

PageTier* Context::page_tier() const {
  const std::lock_guard lock(mutex_);
  return page_tier_.get();
}

void Context::Add(const Arena* arena) {
  const std::lock_guard lock(mutex_);
  arenas_.push_back(arena);
}

void Context::Remove(const Arena* arena) {
  const std::lock_guard lock(mutex_);
  arenas_.erase(std::remove(arenas_.begin(), arenas_.end(), arena), arenas_.end());
}

Context::Reach Context::InArenas(const void* address, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Arena* arena : arenas_) {
    if (!arena->Contains(address, bytes)) continue;
    return arena->IsPinned(address, bytes) ? Reach::kPinned : Reach::kNotPinned;
  }
  return Reach::kUnknown;
}

Context::Reach Context::ReachOf(const void* address, uint64_t bytes, DeviceRange* known) const {
  const Reach in_arenas = InArenas(address, bytes);
  if (in_arenas != Reach::kUnknown) return in_arenas;
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at >= known->begin && at < known->end && bytes <= known->end - at) return Reach::kDevice;
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    cudaGetLastError();
    return Reach::kNotPinned;
  }
  if (attributes.type == cudaMemoryTypeDevice) {
    *known = RangeOf(address, bytes);
    return Reach::kDevice;
  }
  return attributes.type == cudaMemoryTypeHost ? Reach::kPinned : Reach::kNotPinned;
}

std::vector<Context::Span> Context::SpansOf(const void* from, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Arena* arena : arenas_) {
    if (!arena->Contains(from, bytes)) continue;
    std::vector<Span> spans;
    const uint64_t offset =
        static_cast<uint64_t>(static_cast<const std::byte*>(from) - arena->base());
    for (const Slice& piece : arena->slices().Cut(offset, bytes)) {
      spans.push_back(
          {.from = arena->base() + piece.offset, .bytes = piece.bytes, .pinned = piece.pinned});
    }
    return spans;
  }
  return {{.from = from, .bytes = bytes, .pinned = false}};
}

}  // namespace prefixd::cuda
