// The table of settings. Private to config.cc and to the files whose functions stand in the table.
#pragma once
#include <span>
#include <string>

#include "absl/status/status.h"

#include "daemon/config.h"

namespace prefixd::daemon {

struct SettingRule {
  const char* name;           // "ssd-floor"
  const char* default_value;  // as a person would write it
  const char* placeholder;    // in help: "SIZE"; nullptr: a switch that needs no value
  const char* help;
  // Parses `value` into its field; the error says what is accepted, the caller adds name and
  // source.
  absl::Status (*apply)(const std::string& value, const Environment& environment, Config* config);
};

std::span<const SettingRule> Settings();

// Returns the InvalidArgument with which a setting refuses `value`; `accepted` says what it takes.
absl::Status Wants(const std::string& value, const char* accepted);

}  // namespace prefixd::daemon
