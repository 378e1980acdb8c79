// The functions of prefixd_llama.h.
#include "base/status.h"
#include "client/llama/cached_state.h"
#include "client/llama/model_space.h"
#include "handles.h"
#include "interop/checkpoint_digest.h"
#include "interop/gguf.h"
#include "interop/llama_state.h"
#include "prefixd_llama.h"

struct prefixd_llama {
  prefixd_space space;
  prefixd::SpaceSpec spec;
  prefixd::interop::LlamaContext context;
};

namespace {

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face
namespace interop = prefixd::interop;
namespace llama = prefixd::llama;

prefixd_status Tell(const absl::Status& status) {
  using prefixd::StatusCode;
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return prefixd::c::Tell({});
    case absl::StatusCode::kNotFound:
      return prefixd::c::Tell({StatusCode::kNotFound, message});
    case absl::StatusCode::kInvalidArgument:
      return prefixd::c::Tell({StatusCode::kInvalidArgument, message});
    case absl::StatusCode::kDeadlineExceeded:
      return prefixd::c::Tell({StatusCode::kDeadline, message});
    default:
      return prefixd::c::Tell({StatusCode::kFailedPrecondition, message});
  }
}

std::span<const std::byte> Bytes(const void* data, size_t count) {
  return {static_cast<const std::byte*>(data), data == nullptr ? 0 : count};
}

// Opens the space. Sets `model` as soon as it is known.
absl::Status Open(prefixd::Client& client, const prefixd_llama_spec& from, prefixd_llama* to,
                  std::string* model) {
  const std::string path = Text(from.gguf);
  PREFIXD_ASSIGN_OR_RETURN(const interop::Gguf gguf, interop::Gguf::Read(path));
  *model = gguf.Text("general.name", gguf.Text("general.architecture"));
  PREFIXD_ASSIGN_OR_RETURN(interop::LlamaStateMap map,
                           interop::MapLlamaState(Bytes(from.state, from.state_bytes)));
  if (!map.context.in_memory) {
    return absl::InvalidArgumentError("llama_open: the state is a file's, not one in memory");
  }
  PREFIXD_ASSIGN_OR_RETURN(const prefixd::Digest digest, interop::DigestWholeFile(path));
  PREFIXD_ASSIGN_OR_RETURN(to->spec, llama::SpaceOf(gguf, digest, map.context,
                                                    {.context_tokens = from.context_tokens,
                                                     .adapters = Text(from.adapters),
                                                     .build = Text(from.build),
                                                     .salt = Text(from.salt)}));
  prefixd::Result<prefixd::Space> opened = client.OpenSpace(to->spec);
  if (!opened.ok()) return absl::FailedPreconditionError(opened.status.message);
  to->space.space = std::move(opened.value());
  to->space.layer_count = static_cast<uint32_t>(to->spec.layers.size());
  to->context = std::move(map.context);
  return absl::OkStatus();
}

absl::StatusOr<prefixd::CommitInfo> Store(prefixd_llama& to, std::span<const uint32_t> tokens,
                                          std::span<const std::byte> state,
                                          const prefixd_llama_store_options& with) {
  PREFIXD_ASSIGN_OR_RETURN(interop::LlamaStateMap map, interop::MapLlamaState(state));
  if (map.length != tokens.size()) {
    return absl::InvalidArgumentError("llama_store: a state of " + std::to_string(map.length) +
                                      " tokens, " + std::to_string(tokens.size()) + " are named");
  }
  map.tokens.assign(tokens.begin(), tokens.end());
  llama::StoreOptions options{.deadline = Millis(with.deadline_ms, 10000)};
  if (with.turn_ends != nullptr) options.turn_ends = {with.turn_ends, with.turn_end_count};
  return llama::StoreState(to.context, to.spec, state, map, options, to.space.space);
}

}  // namespace

extern "C" {

prefixd_llama* prefixd_llama_open(prefixd_client* client, const prefixd_llama_spec* spec) {
  return Guarded<prefixd_llama*>(nullptr, [&]() -> prefixd_llama* {
    prefixd_llama_spec from;
    if (client == nullptr || spec == nullptr) {
      return Refuse("llama_open: no client or no spec"), nullptr;
    }
    if (!Take(spec, &from)) return nullptr;
    auto handle = std::make_unique<prefixd_llama>();
    handle->space.client = client->client;
    std::string model;
    const absl::Status status = Open(*client->client, from, handle.get(), &model);
    if (!model.empty()) client->client->NotShared(model, std::string(status.message()));
    if (!status.ok()) return Tell(status), nullptr;
    return handle.release();
  });
}

void prefixd_llama_close(prefixd_llama* llama) {
  Freeing([&] { delete llama; });
}

prefixd_space* prefixd_llama_space(prefixd_llama* llama) {
  return llama == nullptr ? nullptr : &llama->space;
}

size_t prefixd_llama_state_bytes(const prefixd_llama* llama, uint32_t tokens) {
  return Guarded<size_t>(0, [&]() -> size_t {
    if (llama == nullptr || tokens == 0) return 0;
    const absl::StatusOr<interop::LlamaStateMap> map =
        prefixd::llama::LayOutState(llama->context, llama->spec, {}, tokens);
    Tell(map.status());
    return map.ok() ? map->bytes : 0;
  });
}

prefixd_status prefixd_llama_fill_state(const prefixd_llama* llama, prefixd_lease* lease,
                                        void* state, size_t bytes) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    if (llama == nullptr || lease == nullptr || state == nullptr) {
      return Refuse("llama_fill_state: no llama, no lease or no state");
    }
    const uint32_t tokens = lease->lease.WaitAll();
    const absl::StatusOr<interop::LlamaStateMap> map =
        prefixd::llama::LayOutState(llama->context, llama->spec, {}, tokens);
    if (!map.ok()) return Tell(map.status());
    if (tokens == 0 || bytes != map->bytes) {
      return Refuse("llama_fill_state: the memory is not as large as the lease's state");
    }
    return Tell(prefixd::llama::FillState(*map, llama->spec, lease->lease,
                                          {static_cast<std::byte*>(state), bytes}));
  });
}

prefixd_status prefixd_llama_store(prefixd_llama* llama, const uint32_t* tokens, size_t count,
                                   const void* state, size_t bytes,
                                   const prefixd_llama_store_options* options,
                                   prefixd_commit_info* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    Give(prefixd_commit_info{}, out);
    prefixd_llama_store_options with;
    if (!CheckTokens(tokens, count) || !Take(options, &with)) return PREFIXD_INVALID_ARGUMENT;
    if (llama == nullptr) return Refuse("llama_store: no llama");
    const absl::StatusOr<prefixd::CommitInfo> done =
        Store(*llama, {tokens, count}, Bytes(state, bytes), with);
    if (!done.ok()) return Tell(done.status());
    prefixd_commit_info info{};
    info.stored_tokens = done->stored_tokens;
    info.duplicate_tokens = done->duplicate_tokens;
    Give(info, out);
    return PREFIXD_OK;
  });
}

}  // extern "C"
