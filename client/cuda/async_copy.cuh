// Copies of whole units from global to shared memory while a warp computes: bulk copies on Hopper
// and later, 16-byte asynchronous copies before.
//
// Each warp has a ring of stages of its own and waits for them in order.
#pragma once
#include <cstdint>

namespace prefixd::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PREFIXD_BULK 1
#else
#define PREFIXD_BULK 0
#endif

// --- what Hopper and later have ---

__device__ __forceinline__ void InitBarrier(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Lets bulk copies see barriers that were initialized.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void WaitForPhase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra again;\nready:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Starts a copy of a multiple of 16 bytes that the barrier counts.
__device__ __forceinline__ void CopyBulk(uint32_t to, const uint8_t* from, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// --- stages of a warp ---

// Lane 0 prepares the warp's barriers; __syncwarp() follows.
__device__ __forceinline__ void PrepareStages(uint32_t barriers, uint32_t stages) {
#if PREFIXD_BULK
  for (uint32_t i = 0; i < stages; ++i) InitBarrier(barriers + 8 * i, 1);
  PublishBarriers();
#endif
}

// Starts to copy a K unit and, behind it, a V unit. Called by all lanes.
__device__ __forceinline__ void StartStage(uint32_t to, const uint8_t* key, uint32_t key_bytes,
                                           const uint8_t* value, uint32_t value_bytes,
                                           uint32_t barrier, uint32_t lane) {
#if PREFIXD_BULK
  if (lane == 0) {
    ArriveAndExpect(barrier, key_bytes + value_bytes);
    CopyBulk(to, key, key_bytes, barrier);
    CopyBulk(to + key_bytes, value, value_bytes, barrier);
  }
#else
  for (uint32_t at = lane * 16; at < key_bytes; at += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(key + at)
                 : "memory");
  }
  for (uint32_t at = lane * 16; at < value_bytes; at += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + key_bytes + at),
                 "l"(value + at)
                 : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for the oldest stage. in_flight: how many are on their way, that one too.
__device__ __forceinline__ void WaitStage(uint32_t barrier, uint32_t parity, uint32_t in_flight) {
#if PREFIXD_BULK
  WaitForPhase(barrier, parity);
#else
  // The number of groups that may stay is a constant of the instruction.
  if (in_flight >= 4) {
    asm volatile("cp.async.wait_group 3;" ::: "memory");
  } else if (in_flight == 3) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else if (in_flight == 2) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  __syncwarp();
#endif
}

// Programmatic dependent launch: the next kernel may start; what the one before wrote can be read.
__device__ __forceinline__ void LetNextStart() {
#if PREFIXD_BULK
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void WaitForPrevious() {
#if PREFIXD_BULK
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace prefixd::cuda
