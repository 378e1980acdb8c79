// Who shares registered memory, and until when.
#include "client/cuda/registrations.h"

#include "gtest/gtest.h"

#include "tests/cuda/arena_file.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

constexpr uint64_t kBytes = uint64_t{2} << 20;

bool IsRegistered(const std::byte* at) {
  cudaPointerAttributes attributes = {};
  return cudaPointerGetAttributes(&attributes, at) == cudaSuccess &&
         attributes.type == cudaMemoryTypeHost;
}

TEST(RegistrationsTest, TheLastUserUnregisters) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(kBytes);
  Registrations registrations;
  ASSERT_EQ(registrations.Add(file.reader(), kBytes, 1), cudaSuccess);
  ASSERT_EQ(registrations.Add(file.reader(), kBytes, 1), cudaSuccess);
  registrations.Remove(file.reader());
  EXPECT_TRUE(IsRegistered(file.reader()));
  registrations.Remove(file.reader());
  EXPECT_FALSE(IsRegistered(file.reader()));
}

TEST(RegistrationsTest, NobodySharesMemoryThatWasPunchedSince) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(kBytes);
  Registrations registrations;
  ASSERT_EQ(registrations.Add(file.reader(), kBytes, 1), cudaSuccess);
  EXPECT_EQ(registrations.Add(file.reader(), kBytes, 3), cudaErrorNotReady);
  registrations.Remove(file.reader());
  EXPECT_EQ(registrations.Add(file.reader(), kBytes, 3), cudaSuccess);
  registrations.Remove(file.reader());
}

TEST(RegistrationsTest, WhatTheDriverRefusesIsSaidAndNotCounted) {
  SKIP_WITHOUT_GPU();
  const ArenaFile file(2 * kBytes);
  Registrations registrations;
  ASSERT_EQ(registrations.Add(file.reader(), kBytes, 1), cudaSuccess);
  EXPECT_EQ(registrations.Add(file.reader(), 2 * kBytes, 1), cudaErrorHostMemoryAlreadyRegistered);
  registrations.Remove(file.reader());
  EXPECT_FALSE(IsRegistered(file.reader()));
}

}  // namespace
}  // namespace prefixd::cuda
