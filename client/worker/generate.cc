#include "client/worker/generate.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

#include "base/status.h"
#include "client/worker/sampler.h"

namespace prefixd::worker {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

microseconds Since(Clock::time_point start) {
  return std::chrono::duration_cast<microseconds>(Clock::now() - start);
}

double PerSecond(uint64_t count, microseconds time) {
  return time.count() > 0 ? static_cast<double>(count) * 1e6 / static_cast<double>(time.count())
                          : 0;
}

class Generation {
 public:
  Generation(Model& model, Space& space, const Prompt& prompt, const AnswerOptions& options)
      : model_(model),
        space_(space),
        options_(options),
        sampler_(options.temperature, options.seed),
        tokens_(prompt.tokens),
        prompt_tokens_(static_cast<uint32_t>(prompt.tokens.size())),
        start_(Clock::now()) {
    // The last prompt token is always computed: its logits choose the answer's first token.
    sequence_ = space.Begin(
        tokens_, {.content = {},
                  .max_cached_tokens = prompt_tokens_ - 1,
                  .write_format = static_cast<uint32_t>(model.formats().size() - 1),
                  .head_tokens = options.quantize.RawTokens(prompt_tokens_, space.block_tokens()),
                  .turn_ends = {&prompt_tokens_, 1},
                  .request_id = prompt.id});
    model_.UseGrid(space.block_tokens());  // a daemon that just came may have set another grid
    answer_.id = prompt.id;
    answer_.device = model_.device();
    answer_.prompt_tokens = prompt_tokens_;
    answer_.match = sequence_.match();
  }

  absl::StatusOr<Answer> Run() {
    PREFIXD_RETURN_IF_ERROR(Prefill());
    Sample();
    answer_.first_token = Since(start_);
    answer_.load = sequence_.load_time();
    answer_.in_place_bytes = sequence_.in_place_bytes();
    StartStoring({.sequence_end = true});
    PREFIXD_RETURN_IF_ERROR(Decode());
    const auto end = Clock::now();
    Store();
    answer_.store_wait += Since(end);
    CountFormats();
    PagedAttention::Pinned pinned = model_.pinned();
    answer_.pinned_bytes = pinned.bytes;
    answer_.why_not_pinned = std::move(pinned.why_not);
    if (options_.verify_hit && answer_.used_tokens > 0) Verify();
    sequence_.Release({.used_tokens = answer_.used_tokens,
                       .first_token = answer_.first_token,
                       .prefill_tokens_per_s = answer_.prefill_tokens_per_s});
    return std::move(answer_);
  }

 private:
  absl::Status Prefill() {
    const auto start = Clock::now();
    std::chrono::nanoseconds waited{0};
    uint32_t at = answer_.used_tokens = sequence_.restorable_tokens();
    uint64_t slots = 0;  // a step costs about the same however few of its tokens are computed
    while (at < prompt_tokens_) {
      const uint32_t end = std::min(model_.StepEnd(at), prompt_tokens_);
      PREFIXD_ASSIGN_OR_RETURN(const Model::StepResult step,
                               model_.Prefill(sequence_, {.tokens = tokens_,
                                                          .begin = at,
                                                          .end = end,
                                                          .cached = answer_.used_tokens,
                                                          .state = &state_}));
      waited += step.waited;
      if (step.cache_shrank) {
        at = answer_.used_tokens = sequence_.Restart();
        continue;
      }
      slots += model_.grid();
      at = end;
    }
    answer_.prefill = Since(start) - std::chrono::duration_cast<microseconds>(waited);
    answer_.prefill_tokens_per_s = PerSecond(slots, answer_.prefill);
    return absl::OkStatus();
  }

  // Appends the next token to the answer, or ends it.
  void Sample() {
    const auto position = static_cast<uint32_t>(tokens_.size() - 1);
    const uint32_t token = sampler_.Sample(model_.Logits(position));
    const std::vector<uint32_t>& ends = model_.config().end_tokens;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      answer_.ended = true;
      return;
    }
    answer_.tokens.push_back(token);
    tokens_.push_back(token);
  }

  absl::Status Decode() {
    const auto start = Clock::now();
    uint64_t steps = 0;
    while (!answer_.ended && answer_.tokens.size() < options_.max_tokens) {
      sequence_.PushToken(tokens_.back());
      const auto end = static_cast<uint32_t>(tokens_.size());
      PREFIXD_ASSIGN_OR_RETURN(const Model::StepResult step,
                               model_.Decode(sequence_, {.tokens = tokens_,
                                                         .begin = end - 1,
                                                         .end = end,
                                                         .cached = answer_.used_tokens,
                                                         .state = &state_}));
      if (step.cache_shrank) {  // Wait() returned for every layer: its answer is final
        return absl::InternalError("generate: cached pages vanished while they were in use");
      }
      ++steps;
      Sample();
      if (end % model_.grid() == 0) StartStoring({});
    }
    answer_.decode = Since(start);
    answer_.tokens_per_s = PerSecond(steps, answer_.decode);
    return absl::OkStatus();
  }

  void CountFormats() {
    for (uint32_t layer = 0; layer < model_.config().layers; ++layer) {
      if (model_.config().layer(layer).type == LayerType::kGatedDelta) continue;
      for (const BlockTableEntry& block : sequence_.block_table(static_cast<int>(layer))) {
        const bool raw = model_.formats()[block.format].key.codec == Codec::kRaw;
        (raw ? answer_.raw_tokens : answer_.quantized_tokens) += block.tokens;
      }
      return;
    }
  }

  void Verify() {
    const absl::StatusOr<Verification> verified = VerifyHit(
        model_, space_, sequence_, std::span<const uint32_t>(tokens_).first(answer_.used_tokens));
    if (verified.ok()) {
      answer_.verified = *verified;
    } else {
      answer_.verify_error = std::string(verified.status().message());
    }
  }

  // Starts a commit while decoding goes on: at the prompt's end, where others may continue, then
  // block by block. While an earlier commit runs, nothing is started; a later commit stores its
  // tokens too.
  void StartStoring(const CommitOptions& options) {
    const auto start = Clock::now();
    sequence_.StartCommit(options);
    answer_.store_wait += Since(start);
  }

  // Stores the end of the sequence: others may continue from it, or end here too.
  void Store() {
    // A next turn continues right here.
    if (!PutStates(sequence_, state_).ok()) answer_.store_error = "the states were not taken";
    Count(sequence_.FinishCommit());
    Count(sequence_.Commit({.sequence_end = true, .durability = options_.durability}));
  }

  void Count(const Result<CommitInfo>& stored) {
    if (!stored.ok()) {
      answer_.store_error = stored.status.message;
      return;
    }
    answer_.stored_tokens += stored.value().stored_tokens;
    answer_.duplicate_tokens += stored.value().duplicate_tokens;
    answer_.on_ssd = stored.value().durability == Durability::kSsd;
  }

  Model& model_;
  Space& space_;
  const AnswerOptions options_;
  Sampler sampler_;
  std::vector<uint32_t> tokens_;  // prompt, then answer
  const uint32_t prompt_tokens_;
  const Clock::time_point start_;
  Sequence sequence_;
  RunningState state_;
  Answer answer_;
};

}  // namespace

absl::Status WarmUp(Model& model, Space& space) {
  const std::vector<uint32_t> tokens(model.grid() + 1, 0);
  Sequence sequence =
      space.Begin(tokens, {.max_cached_tokens = 0});  // looks nothing up, stores nothing
  RunningState state;
  Model::Step step{.tokens = tokens, .begin = 0, .end = model.grid(), .cached = 0, .state = &state};
  PREFIXD_RETURN_IF_ERROR(model.Prefill(sequence, step).status());
  step.begin = std::exchange(step.end, model.grid() + 1);
  return model.Decode(sequence, step).status();
}

absl::StatusOr<Answer> Generate(Model& model, Space& space, const Prompt& prompt,
                                const AnswerOptions& options) {
  if (prompt.tokens.empty()) return absl::InvalidArgumentError("generate: the prompt is empty");
  if (options.max_tokens == 0) return absl::InvalidArgumentError("generate: 0 tokens to answer");
  const uint64_t positions = prompt.tokens.size() + uint64_t{options.max_tokens};
  if (positions > model.config().max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("generate: ", prompt.tokens.size(), " prompt tokens and ", options.max_tokens,
                     " to answer are more than the model's ", model.config().max_tokens));
  }
  return Generation(model, space, prompt, options).Run();
}

}  // namespace prefixd::worker
