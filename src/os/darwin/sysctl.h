// What sysctl() tells. For this flavour's files alone.
#pragma once
#include <sys/sysctl.h>

#include <cstddef>
#include <optional>
#include <string>

namespace prefixd::os {

// Returns the value of a name whose value is a T.
template <typename T>
std::optional<T> Sysctl(const char* name) {
  T value{};
  size_t bytes = sizeof(value);
  if (sysctlbyname(name, &value, &bytes, nullptr, 0) != 0 || bytes != sizeof(value)) {
    return std::nullopt;
  }
  return value;
}

// Returns the text behind a name; empty if the system does not tell.
std::string SysctlText(const char* name);

}  // namespace prefixd::os
