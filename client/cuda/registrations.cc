#include "registrations.h"

namespace prefixd::cuda {
namespace {

// The driver only reads what is registered read-only; its signatures ask for void*.
void* Address(const std::byte* at) { return const_cast<std::byte*>(at); }

constexpr unsigned kFlags =
    cudaHostRegisterReadOnly | cudaHostRegisterMapped | cudaHostRegisterPortable;

}  // namespace

Registrations& Registrations::OfProcess() {
  static auto* const registrations = new Registrations;  // arenas may outlive static objects
  return *registrations;
}

cudaError_t Registrations::Add(const std::byte* at, uint64_t bytes, uint64_t memory) {
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(at);
  if (found != registered_.end() && found->second.bytes == bytes) {
    if (found->second.memory != memory) return cudaErrorNotReady;
    ++found->second.users;
    return cudaSuccess;
  }
  const cudaError_t error = cudaHostRegister(Address(at), bytes, kFlags);
  if (error == cudaSuccess) {
    registered_[at] = {.bytes = bytes, .memory = memory, .users = 1};
  } else {
    cudaGetLastError();
  }
  return error;
}

void Registrations::Remove(const std::byte* at) {
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(at);
  if (--found->second.users > 0) return;
  registered_.erase(found);
  if (cudaHostUnregister(Address(at)) != cudaSuccess) cudaGetLastError();
}

}  // namespace prefixd::cuda
