#include "absl/strings/numbers.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "block/names.h"
#include "daemon/page/data.h"
#include "daemon/page/request_story.h"

namespace prefixd::daemon {
namespace {

using nlohmann::json;

constexpr size_t kMostIdBytes = 256;
constexpr size_t kMostSteps = 20;

json StepsJson(const block::PastAnswer& past) {
  json steps = json::array();
  for (const StoryStep& step : StoryOf(past)) {
    if (steps.size() >= kMostSteps) break;
    steps.push_back({{"title", step.title},
                     {"text", step.text},
                     {"tokens", step.tokens},
                     {"loses", step.loses}});
  }
  return steps;
}

json PhasesJson(const block::PastAnswer& past) {
  json phases = json::array();
  for (const StoryPhase& phase : PhasesOf(past)) {
    phases.push_back({{"name", phase.name},
                      {"text", phase.text},
                      {"begin_us", phase.begin_us},
                      {"end_us", phase.end_us},
                      {"by_worker", phase.by_worker}});
  }
  return phases;
}

json AnswerJson(const block::PastAnswer& past) {
  return {{"id", past.request_id},
          {"space", base::ToHex(past.space)},
          {"worker", past.worker},
          {"age_s", past.age_s},
          {"requested", past.requested_tokens},
          {"matched", past.match.matched_tokens},
          {"restorable", past.match.restorable_tokens},
          {"used", past.used_tokens},
          {"kind", block::NameOf(past.match.kind)},
          {"ended_by", block::NameOf(past.match.ended_by)},
          {"steps", StepsJson(past)},
          {"phases", PhasesJson(past)}};
}

}  // namespace

absl::StatusOr<json> RequestsData(const PageSource& source, const PageArguments& arguments) {
  block::WhyQuery query{.request_id = {}, .last = 50, .below = 0};
  for (const auto& [name, value] : arguments) {
    if (name == "id" && value.size() <= kMostIdBytes) {
      query.request_id = value;
    } else if (name == "last" && absl::SimpleAtoi(value, &query.last) && query.last >= 1 &&
               query.last <= kMostPageAnswers) {
    } else if (name == "below" && absl::SimpleAtod(value, &query.below) && query.below >= 0 &&
               query.below <= 1) {
    } else {
      return absl::InvalidArgumentError("requests: id, last=1..100, below=0..1");
    }
  }
  const block::PastAnswers past = source.Why(query);
  json answers = json::array();
  std::set<block::SpaceId> ids;
  for (const block::PastAnswer& answer : past.answers) {
    answers.push_back(AnswerJson(answer));
    ids.insert(answer.space);
  }
  return json{{"remembered", past.remembered},
              {"requests", std::move(answers)},
              {"models", ModelsOf(source, ids)}};
}

}  // namespace prefixd::daemon
