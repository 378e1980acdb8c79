// prefixctl plan: what hit rate which sizes of RAM and SSD would give on a recorded trace. No
// prefixd is asked.
//
// Pure functions, but for RunPlan.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "sizing/plan.h"
#include "sizing/read_trace.h"

namespace prefixd::cli {

struct PlanRequest {
  std::string path;   // the trace
  std::string model;  // a model's folder with config.json, or empty
  std::string svg;    // where the plot goes, or empty
  sizing::TraceOptions trace;
  sizing::PlanOptions plan;
  double prefill_tokens_per_s = 0;  // 0: seconds are not told
};

// Reads the trace, plays it, and writes the plot if one is wanted. Returns the text for standard
// output: JSON if `as_json`.
absl::StatusOr<std::string> RunPlan(const PlanRequest& request, bool as_json);

struct PlanInput {
  const PlanRequest& request;
  const sizing::ReadTrace& read;
  const sizing::Plan& plan;
};
std::string PlanView(const PlanInput& input);
std::string PlanJson(const PlanInput& input);
// A plot, SVG: hit rate over RAM, a line for each SSD size, readable on light and dark pages.
std::string PlanSvg(const PlanInput& input);

// Bytes of a token in the KV cache of the model, unquantized, by its config.json. InvalidArgument
// where a field is missing or of another kind, or where layers are not all of full attention.
absl::StatusOr<uint64_t> BytesPerToken(const std::string& folder);

}  // namespace prefixd::cli
