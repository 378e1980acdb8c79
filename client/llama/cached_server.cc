#include "client/llama/cached_server.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status.h"
#include "client/llama/cached_state.h"
#include "client/llama/model_space.h"
#include "interop/checkpoint_digest.h"

namespace prefixd::llama {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTryAgain{1};  // after a server could not be learned
constexpr uint32_t kLeastGain = 16;           // tokens; below that nothing is restored
constexpr size_t kStoringThreads = 2;
constexpr double kWeightOfNew = 0.3;       // in the averages of speeds
constexpr double kRiseWhenRefused = 1.02;  // of the speed of restoring, see Pays()

double MsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}
void Average(std::atomic<double>* average, double seen) {
  const double before = average->load();
  average->store(before == 0 ? seen : before + kWeightOfNew * (seen - before));
}
void Log(const std::string& line) { std::fprintf(stderr, "prefixd-llama: %s\n", line.c_str()); }

// Says why a lookup found less than there was, as prefixctl why does.
void LogShorter(const std::string& request_id, const MatchInfo& match, uint32_t most) {
  if (!match.status.ok()) {
    Log(absl::StrCat(request_id, ": not looked up: ", match.status.message));
  } else if (match.restorable_tokens < std::min(match.matched_tokens, most)) {
    Log(absl::StrCat(request_id, ": ", match.restorable_tokens, " of ", match.matched_tokens,
                     " tokens that match can be restored: ", match.why_shorter));
  }
}

uint64_t BytesPerToken(const interop::LlamaContext& context) {
  uint64_t bytes = 0;
  for (const interop::LlamaCache& cache : context.caches) {
    for (const interop::LlamaTensor& tensor : cache.keys) bytes += tensor.token_bytes;
    for (const interop::LlamaTensor& tensor : cache.values) bytes += tensor.token_bytes;
  }
  return bytes;
}

// Returns the last checkpoint of a prompt that is worth restoring; null if there is none.
const interop::LlamaCheckpoint* LastCheckpoint(const interop::LlamaStateMap& map,
                                               uint32_t prompt_tokens) {
  const interop::LlamaCheckpoint* last = nullptr;
  for (const interop::LlamaCheckpoint& each : map.checkpoints) {
    if (each.length < kLeastGain || each.length > prompt_tokens) continue;
    if (last == nullptr || each.length > last->length) last = &each;
  }
  return last;
}

}  // namespace

CachedServer::CachedServer(CachedServerOptions options, size_t index, Client* client,
                           SlotTable* slots, StateFolder* folder, Counts* counts)
    : options_(std::move(options)),
      index_(index),
      client_(client),
      slots_(slots),
      folder_(folder),
      counts_(counts),
      server_(options_.address),
      storing_("store", kStoringThreads) {}

std::shared_ptr<CachedServer::Attached> CachedServer::attached() const {
  base::MutexLock lock(attach_mutex_);
  return attached_;
}

void CachedServer::Forget() {
  base::MutexLock lock(attach_mutex_);
  attached_ = nullptr;
}

std::string CachedServer::Describe() const {
  base::MutexLock lock(attach_mutex_);
  if (attached_ == nullptr) {
    return absl::StrCat(server_.address(), ": not cached: ", why_not_.message());
  }
  return absl::StrCat(server_.address(), ": ", attached_->spec.model, ", ",
                      attached_->spec.layers.size(), " layers, ", attached_->bytes_per_token,
                      " bytes a token");
}

absl::Status CachedServer::Attach() {
  base::MutexLock lock(attach_mutex_);
  if (attached_ != nullptr) return absl::OkStatus();
  if (Clock::now() < try_again_) return why_not_;
  absl::StatusOr<std::shared_ptr<Attached>> learned = Learn();
  if (learned.ok()) {
    attached_ = *std::move(learned);
    return absl::OkStatus();
  }
  if (learned.status().message() != why_not_.message()) {
    Log(absl::StrCat(server_.address(), " is not cached: ", learned.status().message()));
  }
  why_not_ = learned.status();
  try_again_ = Clock::now() + kTryAgain;
  return why_not_;
}

absl::StatusOr<interop::LlamaContext> CachedServer::LearnContext(
    const std::vector<SlotFacts>& slots) {
  // The emptiest idle slot: its cache is replaced by two tokens.
  const SlotFacts* chosen = nullptr;
  for (const SlotFacts& slot : slots) {
    if (!slot.busy && (chosen == nullptr || slot.tokens < chosen->tokens)) chosen = &slot;
  }
  if (chosen == nullptr) return absl::UnavailableError("all slots are busy");
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, server_.Tokenize("prefixd"));
  PREFIXD_RETURN_IF_ERROR(server_.Evaluate(chosen->id, tokens));
  const std::string name = folder_->NewName();
  PREFIXD_RETURN_IF_ERROR(server_.Save(chosen->id, name).status());
  PREFIXD_ASSIGN_OR_RETURN(const StateFile file, folder_->Open(name));
  PREFIXD_ASSIGN_OR_RETURN(interop::LlamaStateMap map, interop::MapLlamaState(file.bytes()));
  return std::move(map.context);
}

absl::StatusOr<std::shared_ptr<CachedServer::Attached>> CachedServer::Learn() {
  PREFIXD_ASSIGN_OR_RETURN(const ServerFacts facts, server_.Facts());
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<SlotFacts> slots, server_.Slots());
  auto attached = std::make_shared<Attached>();
  const absl::Status status = [&]() -> absl::Status {
    if (facts.has_media) {
      return absl::UnimplementedError("the model takes images or sound: not supported yet");
    }
    PREFIXD_ASSIGN_OR_RETURN(attached->context, LearnContext(slots));
    const std::string& path = options_.gguf.empty() ? facts.model_path : options_.gguf;
    PREFIXD_ASSIGN_OR_RETURN(const interop::Gguf gguf, interop::Gguf::Read(path));
    PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 digest, interop::DigestWholeFile(path));
    PREFIXD_ASSIGN_OR_RETURN(const std::string adapters, server_.Adapters());
    PREFIXD_ASSIGN_OR_RETURN(attached->spec, SpaceOf(gguf, digest, attached->context,
                                                     {.context_tokens = slots[0].context_tokens,
                                                      .adapters = adapters,
                                                      .salt = options_.salt}));
    Result<Space> space = client_->OpenSpace(attached->spec);
    if (!space.ok()) return absl::FailedPreconditionError(space.status.message);
    attached->space = std::move(space.value());
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    if (!absl::IsUnavailable(status)) {
      client_->NotShared(facts.model_name, std::string(status.message()));
    }
    return status;
  }
  attached->bytes_per_token = BytesPerToken(attached->context);
  client_->NotShared(facts.model_name, "");
  slots_->SetSlots(index_, static_cast<uint32_t>(slots.size()));
  return attached;
}

void CachedServer::Check(SlotTable::Held* held) {
  const absl::StatusOr<std::vector<SlotFacts>> slots = server_.Slots();
  uint32_t tokens = 0;
  if (slots.ok()) {
    for (const SlotFacts& slot : *slots) {
      if (slot.id == held->place().slot && !slot.busy) tokens = slot.tokens;
    }
  }
  if (held->tokens().empty() || held->tokens().size() == tokens) return;
  held->SetTokens({});
  // Emptied by somebody else. Where the server was started again, it may run something else.
  if (tokens == 0) {
    Forget();
    Attach().IgnoreError();  // said there
  }
}

bool CachedServer::Pays(uint32_t tokens, uint64_t bytes) {
  if (tokens < kLeastGain) return false;
  const double compute = tokens_per_s_.load(), restore = restored_bytes_per_s_.load();
  if (compute == 0 || restore == 0) return true;
  if (static_cast<double>(bytes) / restore < static_cast<double>(tokens) / compute) return true;
  // Only a restore measures the speed again, so one slow restore would otherwise be the last.
  restored_bytes_per_s_.store(restore * kRiseWhenRefused);
  return false;
}

CachedServer::Restored CachedServer::Restore(const std::vector<uint32_t>& prompt,
                                             const std::string& request_id, SlotTable::Held* held) {
  Check(held);
  const auto most = static_cast<uint32_t>(prompt.size()) - 1;  // the last one gives the logits
  uint32_t own = std::min(CommonPrefix(held->tokens(), prompt), most);
  const std::shared_ptr<Attached> to = attached();
  // Such a slot goes on from its end; elsewhere only if the server kept a checkpoint, perhaps.
  if (to != nullptr && !to->cut_anywhere() && own < held->tokens().size()) own = 0;
  Restored restored{.cached = own};
  counts_->slot_tokens += own;
  if (to == nullptr || most - own < kLeastGain) return restored;
  const Clock::time_point begin = Clock::now();
  double looked_up_ms = 0, written_ms = 0, loading_ms = 0;
  Lease lease = to->space.Acquire(prompt, {.max_cached_tokens = most,
                                           .deadline = options_.lookup_deadline,
                                           .load_deadline = options_.load_deadline,
                                           .prefill_tokens_per_s = tokens_per_s_.load(),
                                           .request_id = request_id});
  LogShorter(request_id, lease.match(), most);
  const uint32_t promised = lease.restorable_tokens();
  const auto pays = [&](uint32_t tokens) {
    return tokens > own && Pays(tokens - own, tokens * to->bytes_per_token);
  };
  if (!pays(promised) || !pays(lease.WaitAll())) {
    lease.Release({.used_tokens = 0});
    return restored;
  }
  const uint32_t count = lease.restorable_tokens();
  looked_up_ms = MsSince(begin);
  const std::vector<uint32_t> tokens(prompt.begin(), prompt.begin() + count);
  const absl::Status done = [&]() -> absl::Status {
    PREFIXD_ASSIGN_OR_RETURN(StateFile file,
                             WriteState(to->context, to->spec, tokens, lease, folder_));
    written_ms = MsSince(begin) - looked_up_ms;
    const absl::StatusOr<double> loaded = server_.Restore(held->place().slot, file.name());
    if (!loaded.ok()) file.Retire();
    if (loaded.ok()) loading_ms = *loaded;
    return loaded.status();
  }();
  if (!done.ok()) {
    ++counts_->failed_restores;
    Log(absl::StrCat(request_id, ": cannot restore ", count, " tokens: ", done.message()));
    held->SetTokens({});
    lease.Release({.used_tokens = 0});
    restored.cached = 0;
    if (absl::IsUnavailable(done)) Forget();
    return restored;
  }
  held->SetTokens(tokens);
  const double ms = MsSince(begin), rate = tokens_per_s_.load();
  const double answered_ms = ms - looked_up_ms - written_ms;
  if (loading_ms == 0) loading_ms = answered_ms;
  // Computing waits for the work of other slots as well, so that wait does not count.
  Average(&restored_bytes_per_s_, static_cast<double>(count * to->bytes_per_token) /
                                      (looked_up_ms + written_ms + loading_ms) * 1000);
  restored.cached = count;
  restored.from_prefixd = count - own;
  if (rate > 0) {
    const double computing = (count - own) / rate * 1000;
    restored.saved = std::chrono::milliseconds(static_cast<int64_t>(std::max(0.0, computing - ms)));
  }
  lease.Release({.used_tokens = count, .prefill_tokens_per_s = rate});
  Log(absl::StrFormat(
      "%s: slot %d: %d of %d tokens restored, %d more than it had: looked up in %.1f ms, "
      "written in %.1f, loaded by the server in %.1f, of which it waited for other work %.1f",
      request_id, held->place().slot, count, prompt.size(), restored.from_prefixd, looked_up_ms,
      written_ms, answered_ms, std::max(0.0, answered_ms - loading_ms)));
  ++counts_->restores;
  counts_->restored_tokens += restored.from_prefixd;
  counts_->saved_ms += static_cast<uint64_t>(restored.saved.count());
  return restored;
}

void CachedServer::Save(uint32_t prompt_tokens, SlotTable::Held* held) {
  held->SetTokens({});
  const std::shared_ptr<Attached> to = attached();
  if (to == nullptr) return;
  const std::string name = folder_->NewName();
  const absl::Status done = [&]() -> absl::Status {
    PREFIXD_RETURN_IF_ERROR(server_.Save(held->place().slot, name).status());
    PREFIXD_ASSIGN_OR_RETURN(StateFile opened, folder_->Open(name));
    auto file = std::make_shared<StateFile>(std::move(opened));
    PREFIXD_ASSIGN_OR_RETURN(const interop::LlamaStateMap map,
                             interop::MapLlamaState(file->bytes()));
    held->SetTokens(map.tokens);
    storing_.Post([this, to, file, prompt_tokens] { Store(to, file, prompt_tokens); });
    return absl::OkStatus();
  }();
  ++counts_->saves;
  if (done.ok()) return;
  ++counts_->failed_saves;
  Log(absl::StrCat("cannot save slot ", held->place().slot, ": ", done.message()));
  if (absl::IsUnavailable(done)) Forget();
}

void CachedServer::Store(std::shared_ptr<Attached> attached, std::shared_ptr<StateFile> file,
                         uint32_t prompt_tokens) {
  const absl::Status done = [&]() -> absl::Status {
    PREFIXD_ASSIGN_OR_RETURN(const interop::LlamaStateMap map,
                             interop::MapLlamaState(file->bytes()));
    std::vector<uint32_t> turn_ends;
    if (prompt_tokens < map.length) turn_ends.push_back(prompt_tokens);
    const auto store = [&](const interop::LlamaStateMap& state,
                           std::span<const uint32_t> ends) -> absl::Status {
      PREFIXD_ASSIGN_OR_RETURN(const CommitInfo stored,
                               StoreState(attached->context, attached->spec, file->bytes(), state,
                                          {.turn_ends = ends}, attached->space));
      counts_->stored_tokens += stored.stored_tokens;
      return absl::OkStatus();
    };
    // The prompt asked again, or without what the model only thought, goes on from here.
    if (const interop::LlamaCheckpoint* const last = LastCheckpoint(map, prompt_tokens)) {
      PREFIXD_RETURN_IF_ERROR(store(interop::CutLlamaState(map, *last), {}));
    }
    return store(map, turn_ends);
  }();
  if (done.ok()) return;
  ++counts_->failed_saves;
  Log(absl::StrCat("cannot store: ", done.message()));
}

void CachedServer::Learn(const std::string& request_id, const Restored& restored,
                         const Timings& timings) {
  if (timings.cached_tokens < restored.cached) {
    const uint32_t again = restored.cached - timings.cached_tokens;
    counts_->recomputed_tokens += again;
    Log(absl::StrCat(request_id, ": the server computed ", again, " of ", restored.cached,
                     " tokens again that were in its slot: ", WhyComputedAgain()));
  }
  if (timings.computed_tokens < kLeastGain || timings.prompt_ms <= 0) return;
  Average(&tokens_per_s_, timings.computed_tokens / timings.prompt_ms * 1000);
}

std::string CachedServer::WhyComputedAgain() const {
  const std::shared_ptr<Attached> to = attached();
  if (to != nullptr && !to->cut_anywhere()) {
    return "its sliding or recurrent layers could not go on from there";
  }
  return "somebody used the slot beside this proxy, or the context was full and shifted";
}

}  // namespace prefixd::llama
