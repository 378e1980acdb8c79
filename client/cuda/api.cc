// The C functions of prefixd/cuda.h: structs in, statuses out.
#include <utility>

#include "attention.h"
#include "context.h"
#include "errors.h"
#include "formats.h"
#include "load.h"
#include "store.h"

namespace {

using namespace prefixd::cuda;  // NOLINT: this file is that namespace's C face

constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
constexpr uint64_t kSliceBytes = uint64_t{32} << 20;

prefixd_status Refuse(const char* sentence) {
  SetError(PREFIXD_INVALID_ARGUMENT, sentence);
  return PREFIXD_INVALID_ARGUMENT;
}

// Calls `call`, which frees a handle, and leaves the last error as it is.
template <typename Call>
void Freeing(Call call) noexcept {
  try {
    call();
  } catch (...) {  // the handle is gone all the same
  }
}

}  // namespace

extern "C" {

uint32_t prefixd_cuda_abi_version(void) { return PREFIXD_CUDA_ABI_VERSION; }
const char* prefixd_cuda_last_error(void) { return LastError(); }
prefixd_status prefixd_cuda_last_status(void) { return LastStatus(); }

prefixd_cuda* prefixd_cuda_open(const prefixd_cuda_options* options) {
  return Guarded<prefixd_cuda*>(nullptr, [&]() -> prefixd_cuda* {
    prefixd_cuda_options with;
    if (!Take(options, &with)) return nullptr;
    auto context = Context::Open(with);
    if (!context.ok()) {
      Tell(context.status());
      return nullptr;
    }
    return new prefixd_cuda{*std::move(context)};
  });
}

void prefixd_cuda_close(prefixd_cuda* cuda) {
  Freeing([&] { delete cuda; });
}

prefixd_status prefixd_cuda_describe(const prefixd_cuda* cuda, prefixd_cuda_facts* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (cuda == nullptr || out == nullptr) return Refuse("describe: no context or no struct given");
    if (!CheckSize(out, out->size, out->size)) return LastStatus();
    Give(cuda->context->facts(), out);
    return prefixd_status{PREFIXD_OK};
  });
}

void* prefixd_cuda_alloc_host(prefixd_cuda* cuda, size_t bytes) {
  return Guarded<void*>(nullptr, [&]() -> void* {
    if (cuda == nullptr || bytes == 0) {
      Refuse("alloc_host: no context or no bytes given");
      return nullptr;
    }
    void* memory = nullptr;
    absl::Status status = cuda->context->Enter();
    if (status.ok()) {
      status = FromCuda(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                        "alloc_host");
    }
    if (!status.ok()) Tell(status);
    return memory;
  });
}

void prefixd_cuda_free_host(prefixd_cuda* cuda, void* memory) {
  Freeing([&] {
    if (cuda == nullptr || memory == nullptr || !cuda->context->Enter().ok()) return;
    if (cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
  });
}

prefixd_status prefixd_cuda_keep_pages(prefixd_cuda* cuda, uint64_t budget_bytes) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (cuda == nullptr) return Refuse("keep_pages: no context given");
    return Tell(cuda->context->KeepPages(budget_bytes));
  });
}

void prefixd_cuda_forget_pages(prefixd_cuda* cuda) {
  Freeing([&] {
    PageTier* const tier = cuda == nullptr ? nullptr : cuda->context->page_tier();
    if (tier != nullptr && cuda->context->Enter().ok()) tier->pages.Forget();
  });
}

prefixd_status prefixd_cuda_page_state(prefixd_cuda* cuda, prefixd_cuda_page_counts* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (cuda == nullptr || out == nullptr) {
      return Refuse("page_state: no context or no struct given");
    }
    if (!CheckSize(out, out->size, out->size)) return LastStatus();
    const absl::Status entered = cuda->context->Enter();
    if (!entered.ok()) return Tell(entered);
    PageTier* const tier = cuda->context->page_tier();
    const DevicePageCounts counts = tier == nullptr ? DevicePageCounts{} : tier->pages.counts();
    prefixd_cuda_page_counts told = {};
    told.budget_bytes = counts.budget_bytes;
    told.used_bytes = counts.used_bytes;
    told.in_use_bytes = counts.referenced_bytes;
    told.pages = counts.pages;
    told.hits = counts.hits;
    told.hit_bytes = counts.hit_bytes;
    told.misses = counts.misses;
    told.missed_bytes = counts.missed_bytes;
    told.evictions = counts.evictions;
    told.evicted_bytes = counts.evicted_bytes;
    told.no_room = counts.no_room;
    Give(told, out);
    return prefixd_status{PREFIXD_OK};
  });
}

prefixd_cuda_arena* prefixd_cuda_pin(prefixd_cuda* cuda, const void* base, uint64_t bytes,
                                     const prefixd_cuda_pin_options* options) {
  return Guarded<prefixd_cuda_arena*>(nullptr, [&]() -> prefixd_cuda_arena* {
    prefixd_cuda_pin_options with;
    if (!Take(options, &with)) return nullptr;
    if (cuda == nullptr) {
      Refuse("pin: no context given");
      return nullptr;
    }
    absl::Status status = cuda->context->Enter();
    if (status.ok()) {
      auto arena =
          Arena::Pin({.device = cuda->context->device(),
                      .base = static_cast<const std::byte*>(base),
                      .bytes = bytes,
                      .slab_bytes = with.slab_bytes == 0 ? kSlabBytes : with.slab_bytes,
                      .slice_bytes = with.slice_bytes == 0 ? kSliceBytes : with.slice_bytes,
                      .service = reinterpret_cast<const std::atomic<uint64_t>*>(with.service),
                      .service_stride = with.service_stride,
                      .tell = with.tell,
                      .teller = with.teller,
                      .pause_us = with.pause_us,
                      .background = with.background != 0});
      if (arena.ok()) {
        auto* handle = new prefixd_cuda_arena{cuda->context.get(), *std::move(arena)};
        cuda->context->Add(handle->arena.get());
        return handle;
      }
      status = arena.status();
    }
    Tell(status);
    return nullptr;
  });
}

void prefixd_cuda_unpin(prefixd_cuda_arena* arena) {
  Freeing([&] {
    if (arena == nullptr) return;
    arena->context->Remove(arena->arena.get());
    delete arena;
  });
}

void prefixd_cuda_pin_progress(const prefixd_cuda_arena* arena, prefixd_cuda_pin_state* out) {
  Freeing([&] {
    if (arena == nullptr || out == nullptr || !CheckSize(out, out->size, out->size)) return;
    const Arena::Progress progress = arena->arena->progress();
    prefixd_cuda_pin_state state = {};
    state.bytes = progress.bytes;
    state.pinned_bytes = progress.pinned_bytes;
    state.slice_bytes = arena->arena->slices().slice_bytes();
    state.slices = static_cast<uint32_t>(arena->arena->slices().count());
    state.pinned_slices = progress.pinned_slices;
    state.refused_slices = progress.refused_slices;
    state.finished = progress.finished ? 1 : 0;
    CopyText(progress.why_refused, state.why_refused);
    Give(state, out);
  });
}

int32_t prefixd_cuda_is_pinned(const prefixd_cuda_arena* arena, const void* address,
                               uint64_t bytes) {
  return arena != nullptr && arena->arena->IsPinned(address, bytes) ? 1 : 0;
}

prefixd_status prefixd_cuda_copy(prefixd_cuda* cuda, void* to, const void* from, uint64_t bytes,
                                 void* stream) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (cuda == nullptr || ((to == nullptr || from == nullptr) && bytes > 0)) {
      return Refuse("copy: no context or no memory given");
    }
    return Tell(
        CopyFromArena(cuda->context.get(), to, from, bytes, static_cast<cudaStream_t>(stream)));
  });
}

prefixd_cuda_load* prefixd_cuda_load_begin(prefixd_cuda* cuda,
                                           const prefixd_cuda_load_options* options) {
  return Guarded<prefixd_cuda_load*>(nullptr, [&]() -> prefixd_cuda_load* {
    prefixd_cuda_load_options with;
    if (!Take(options, &with)) return nullptr;
    if (cuda == nullptr || options == nullptr) {
      Refuse("load: no context or no options given");
      return nullptr;
    }
    auto load = Load::Begin(cuda->context.get(), with);
    if (!load.ok()) {
      Tell(load.status());
      return nullptr;
    }
    return new prefixd_cuda_load{*std::move(load)};
  });
}

prefixd_status prefixd_cuda_load_wait(prefixd_cuda_load* load, uint32_t layer, void* stream) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (load == nullptr) return Refuse("load: no load given");
    return Tell(load->load->Wait(layer, static_cast<cudaStream_t>(stream)));
  });
}

int32_t prefixd_cuda_load_ready(prefixd_cuda_load* load, uint32_t layer) {
  return load != nullptr && load->load->Ready(layer) ? 1 : 0;
}

prefixd_status prefixd_cuda_load_keep(prefixd_cuda_load* load, void* stream) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (load == nullptr) return Refuse("load: no load given");
    return Tell(load->load->Keep(static_cast<cudaStream_t>(stream)));
  });
}

prefixd_status prefixd_cuda_load_end(prefixd_cuda_load* load, prefixd_cuda_load_counts* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (load == nullptr) return Refuse("load: no load given");
    const bool fits = out == nullptr || CheckSize(out, out->size, out->size);
    const prefixd_status status = Tell(load->load->End(fits ? out : nullptr));
    delete load;
    return status;
  });
}

prefixd_status prefixd_cuda_quantize(prefixd_cuda* cuda,
                                     const prefixd_cuda_quantize_options* options, void* stream) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    prefixd_cuda_quantize_options with;
    if (!Take(options, &with)) return LastStatus();
    if (cuda == nullptr) return Refuse("quantize: no context given");
    return Tell(Quantize(cuda->context.get(), with, static_cast<cudaStream_t>(stream)));
  });
}

uint64_t prefixd_cuda_unit_bytes(const prefixd_tensor_format* format, uint32_t dim,
                                 uint32_t page_tokens) {
  return Guarded<uint64_t>(0, [&]() -> uint64_t {
    if (format == nullptr || page_tokens == 0) return 0;
    const auto tensor = GeometryOf(*format, dim, Side::kLatent);
    if (!tensor.ok()) {
      Tell(tensor.status());
      return 0;
    }
    return PlacesOf(*tensor, page_tokens).bytes;
  });
}

prefixd_status prefixd_cuda_planes(const prefixd_tensor_format* format, uint32_t dim,
                                   uint32_t page_tokens, void* units, prefixd_planes* out) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (format == nullptr || units == nullptr || out == nullptr || page_tokens == 0) {
      return Refuse("planes: no format, units, tokens or struct given");
    }
    if (!CheckSize(out, out->size, out->size)) return LastStatus();
    const auto tensor = GeometryOf(*format, dim, Side::kLatent);
    if (!tensor.ok()) return Tell(tensor.status());
    if (tensor->layout != kRows) return Refuse("planes: only units in layout rows are planes");
    const UnitPlaces places = PlacesOf(*tensor, page_tokens);
    auto* bytes = static_cast<std::byte*>(units);
    prefixd_planes planes = {};
    planes.codes = bytes;
    planes.codes_head_stride = places.bytes;
    planes.codes_token_stride = tensor->row_codes;
    if (tensor->row_scales != 0) {
      planes.scales = bytes + places.scales;
      planes.scales_head_stride = places.bytes;
      planes.scales_token_stride = tensor->row_scales;
    }
    if (tensor->row_biases != 0) planes.biases = bytes + places.biases;
    Give(planes, out);
    return prefixd_status{PREFIXD_OK};
  });
}

prefixd_cuda_attention* prefixd_cuda_attention_new(prefixd_cuda* cuda,
                                                   const prefixd_cuda_attention_options* options) {
  return Guarded<prefixd_cuda_attention*>(nullptr, [&]() -> prefixd_cuda_attention* {
    prefixd_cuda_attention_options with;
    if (!Take(options, &with)) return nullptr;
    if (cuda == nullptr) {
      Refuse("attend: no context given");
      return nullptr;
    }
    auto attention = Attention::New(cuda->context.get(), with);
    if (!attention.ok()) {
      Tell(attention.status());
      return nullptr;
    }
    return new prefixd_cuda_attention{*std::move(attention)};
  });
}

uint32_t prefixd_cuda_attention_rows(prefixd_cuda* cuda,
                                     const prefixd_cuda_attention_options* options) {
  return Guarded<uint32_t>(0, [&]() -> uint32_t {
    prefixd_cuda_attention_options with;
    if (!Take(options, &with)) return 0;
    if (cuda == nullptr) {
      Refuse("attend: no context given");
      return 0;
    }
    const auto rows = QuickRows(cuda->context->facts(), with);
    if (!rows.ok()) {
      Tell(rows.status());
      return 0;
    }
    return *rows;
  });
}

void prefixd_cuda_attention_free(prefixd_cuda_attention* attention) {
  Freeing([&] { delete attention; });
}

prefixd_status prefixd_cuda_attention_set(prefixd_cuda_attention* attention,
                                          const prefixd_cuda_sequence* sequences,
                                          uint32_t sequence_count, void* stream) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (attention == nullptr) return Refuse("attend: no attention given");
    return Tell(
        attention->attention->Set(sequences, sequence_count, static_cast<cudaStream_t>(stream)));
  });
}

prefixd_status prefixd_cuda_attend(prefixd_cuda_attention* attention, uint32_t layer,
                                   const prefixd_cuda_heads* queries,
                                   const prefixd_cuda_heads* results, const float* sink_logits,
                                   void* stream) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&] {
    if (attention == nullptr || queries == nullptr || results == nullptr) {
      return Refuse("attend: no attention, queries or results given");
    }
    return Tell(attention->attention->Attend(layer, *queries, *results, sink_logits,
                                             static_cast<cudaStream_t>(stream)));
  });
}

}  // extern "C"
