// Quantizes whole quads of tokens, whose rows are halves that lie side by side: what engines have.
// A block of threads takes a page of one head, or a strip of a long one; a thread has eight
// channels of four tokens, or of eight where eight lanes or more share a group, so that each
// computes one token's parameters.
//
// The codes are those of quantize.cu, by fewer instructions, which limit it: quantize_quads.cuh.
#include <algorithm>

#include "kernels.h"
#include "octets.cuh"
#include "quads.cuh"
#include "quantize_quads.cuh"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kStageBytes = kElementsOfBlock / 32 * 34;  // q8_0's
constexpr uint32_t kMostStrips = 65535;                       // of a grid
static_assert(BlocksFit(32, 4, kElementsOfBlock / kOctet / 4));
static_assert(BlocksFit(64, 8, kElementsOfBlock / kOctet / 8));

// --- places ---

// From codes of 4 bits, a nibble each, bytes that have these channels' low and, high, those of the
// channels 16 further, which the lane after the next has. The lower of the two lanes gets the first
// four bytes, the upper one the other four.
__device__ __forceinline__ uint32_t PairedNibbles(uint32_t nibbles, bool upper) {
  const uint32_t shift = upper ? 0 : 4;
  const uint32_t other = __shfl_xor_sync(~0u, nibbles >> shift, 2) << shift;
  const uint32_t own = upper ? 0xF0F0F0F0u : 0x0F0F0F0Fu;
  return (nibbles & own) | (other & ~own);
}

// Four lanes' 24 bits as three words: the first three lanes get one each.
__device__ __forceinline__ uint32_t WordOfThreeBits(uint32_t bits, uint32_t lane) {
  const uint32_t next = __shfl_down_sync(~0u, bits, 1);
  const uint32_t at = lane % 4 * 8;
  return bits >> at | next << (24 - at);
}

// A row's codes of a thread, byte by byte or two at a time, as `to` is aligned.
template <uint32_t kBytes>
__device__ __forceinline__ void PutUnaligned(const TokenCodes& codes, uint8_t* to) {
  const uint64_t bits = codes.word[0] | uint64_t{codes.word[1]} << 32;
  if constexpr (kBytes % 2 == 0) {
#pragma unroll
    for (uint32_t i = 0; i < kBytes / 2; ++i) {
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits >> (16 * i));
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kBytes; ++i) to[i] = static_cast<uint8_t>(bits >> (8 * i));
  }
}

// Copies whole rows of quads, of a multiple of 8 bytes. All threads call it.
__device__ __forceinline__ void CopyRows(const uint64_t* from, uint8_t* to, uint32_t bytes) {
  auto* words = reinterpret_cast<uint64_t*>(to);
  const uint32_t thread = threadIdx.x + threadIdx.y * blockDim.x;
  for (uint32_t i = thread; i < bytes / 8; i += blockDim.x * blockDim.y) words[i] = from[i];
}

// Where a thread puts the codes of its tokens.
template <uint8_t kCodec, uint32_t kBits, Codes kCodes>
class Places {
 public:
  static constexpr bool kBlocks = kCodec != kMlxAffine && kCodes == Codes::kRows;
  // Rows that are put together in shared memory.
  static constexpr bool kStaged =
      kCodes == Codes::kRows && (kBlocks || kBits == 2 || kBits == 5 || kBits == 6);

  __device__ __forceinline__ Places(const TensorGeometry& t, uint32_t slots, uint8_t* unit,
                                    uint8_t* stage, uint32_t channel)
      : t_(t), slots_(slots), unit_(unit), stage_(stage), channel_(channel) {
    if constexpr (kCodes == Codes::kTiledValues) {
      value_ = TiledValueByte(t, slots, 0, channel) + (kBits == 4 && Upper() ? 16 : 0);
    }
  }

  // Row 0 of the staged ones is stage's first.
  __device__ __forceinline__ void PutRow(const TokenCodes& codes, uint32_t staged_row,
                                         uint32_t slot, bool there) const {
    uint8_t* row = kStaged ? stage_ + staged_row * t_.row_codes : unit_ + slot * t_.row_codes;
    uint8_t* to = row + channel_ / 8 * kBits;
    if constexpr (kBlocks) {
      const uint32_t at = kBits == 8 ? channel_ % 32 : channel_ % 16 + (Upper() ? 4 : 0);
      PutUnaligned<kBits == 8 ? 8 : 4>(codes,
                                       row + channel_ / 32 * GgmlBlockBytes(kCodec) + 2 + at);
    } else if constexpr (kStaged) {
      PutUnaligned<kBits>(codes, to);
    } else if constexpr (kBits == 3) {
      const uint32_t in_four = channel_ / 8 % 4;
      if (!there || in_four == 3) return;
      *reinterpret_cast<uint32_t*>(to + in_four) = codes.word[0];
    } else if constexpr (kBits == 4) {
      if (there) *reinterpret_cast<uint32_t*>(to) = codes.word[0];
    } else {
      if (there) *reinterpret_cast<uint2*>(to) = make_uint2(codes.word[0], codes.word[1]);
    }
  }
  // Of a quad.
  __device__ __forceinline__ void PutTiles(const TokenCodes* codes, uint32_t slot) const {
    constexpr int kWords = kBits == 8 ? 2 : 1;
    if constexpr (kCodes == Codes::kTiledKeys) {
      uint32_t tile;
      uint8_t* to = unit_ + TileOffsets<kBits>::Key(t_, slots_, slot, channel_, tile);
#pragma unroll
      for (int half = 0; half < kWords; ++half) {
        *reinterpret_cast<uint4*>(to + 4 * half * tile) = make_uint4(
            codes[0].word[half], codes[1].word[half], codes[2].word[half], codes[3].word[half]);
      }
    } else if constexpr (kCodes == Codes::kTiledValues) {
      auto* to = reinterpret_cast<uint4*>(unit_ + value_ +
                                          slot / kQuad * TileOffsets<kBits>::ValueStep(t_));
#pragma unroll
      for (int half = 0; half < kWords; ++half) {
        to[half] = Transposed(codes[0].word[half], codes[1].word[half], codes[2].word[half],
                              codes[3].word[half]);
      }
    }
  }

 private:
  // Whether this thread has the other four bytes of PairedNibbles().
  __device__ __forceinline__ bool Upper() const { return channel_ % 32 >= 16; }

  const TensorGeometry& t_;
  const uint32_t slots_;
  uint8_t* const unit_;
  uint8_t* const stage_;
  const uint32_t channel_;
  uint32_t value_ = 0;  // offset of tiled values of slot 0
};

// The codes as Places takes them. Called by whole warps.
template <uint8_t kCodec, uint32_t kBits, Codes kCodes>
__device__ __forceinline__ void ShareWords(uint32_t channel, TokenCodes& codes) {
  constexpr bool kPaired =
      kCodes == Codes::kTiledValues || (kCodec == kQ4_0 && kCodes == Codes::kRows);
  if constexpr (kBits == 4 && kPaired) {
    codes.word[0] = PairedNibbles(codes.word[0], channel % 32 >= 16);
  }
  if constexpr (kBits == 3) codes.word[0] = WordOfThreeBits(codes.word[0], channel / 8);
}

// Four tokens of a head, from the first of their threads' eight channels on.
__device__ __forceinline__ void ReadQuad(const QuantizeArguments& a, int64_t head, uint32_t token,
                                         uint4* words) {
  const uint8_t* from = RowOf(a.rows, a.table, head, token);
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    words[j] = *reinterpret_cast<const uint4*>(from + 2 * j * a.rows.token_stride);
  }
}

// own: the parameters of the token that this lane computes; those of the quad's are in the lanes
// from `owner` on. row: the quad's first of those that are staged. Called by whole warps.
template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits, Codes kCodes, bool kUsual>
__device__ __forceinline__ void EncodeQuad(const Places<kCodec, kBits, kCodes>& places,
                                           const uint4* words, const Parameters& own,
                                           uint32_t owner, uint32_t channel, uint32_t row,
                                           uint32_t slot, bool there) {
  TokenCodes codes[kQuad];
#pragma unroll
  for (uint32_t j = 0; j < kQuad; ++j) {
    Parameters p;
    if (kCodec == kMlxAffine) {
      p.scale = __shfl_sync(~0u, own.scale, owner + j);
      p.bias = __shfl_sync(~0u, own.bias, owner + j);
    }
    p.inverse = __shfl_sync(~0u, own.inverse, owner + j);
    codes[j] = Encode<kFrom, kCodec, kBits, kCodes, kUsual>(words[j], p);
    ShareWords<kCodec, kBits, kCodes>(channel, codes[j]);
    if constexpr (kCodes == Codes::kRows) places.PutRow(codes[j], row + j, slot + j, there);
  }
  if (kCodes != Codes::kRows && there) places.PutTiles(codes, slot);
}

// block: (octets of a row, tokens / kTokens); grid: (page, kv head, strip of blockDim.y * kTokens
// slots). A group has kTokens lanes at least.
template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits, Codes kCodes, uint32_t kTokens>
__global__ void __launch_bounds__(kElementsOfBlock / kOctet / kTokens, kTokens == 4 ? 5 : 7)
    QuantizeQuadsKernel(const __grid_constant__ QuantizeArguments a) {
  using PlacesOfCodes = Places<kCodec, kBits, kCodes>;
  __shared__ uint64_t stage[PlacesOfCodes::kStaged ? kStageBytes / 8 : 1];
  const TensorGeometry& t = a.tensor;
  const uint32_t channel = threadIdx.x * kOctet;
  const uint32_t lane = (threadIdx.x + threadIdx.y * blockDim.x) % 32;
  const uint32_t lane_of_group = threadIdx.x & (t.group / kOctet - 1);
  const uint32_t first = blockIdx.x == 0 ? a.first_slot : 0;
  const uint32_t end = min(a.page_tokens, a.first_slot + a.count - blockIdx.x * a.page_tokens);
  const uint32_t first_token = a.begin + blockIdx.x * a.page_tokens - a.first_slot;
  uint8_t* unit = a.pages[blockIdx.x] + blockIdx.y * a.unit_stride;
  auto* stage_bytes = reinterpret_cast<uint8_t*>(stage);
  const PlacesOfCodes places(t, a.places.slots, unit, stage_bytes, channel);
  const int64_t head = HeadOffset(a.rows, blockIdx.y, channel);
  // Neighbouring threads of a warp take neighbouring quads of tiles, which share sectors.
  constexpr bool kApart = kTokens > kQuad && kBits == 8 && kCodes == Codes::kTiledKeys;
  const uint32_t apart = kApart ? max(1u, 32 / blockDim.x) : 1;
  const uint32_t row = threadIdx.y / apart * (apart * kTokens) + threadIdx.y % apart * kQuad;
  const uint32_t strip = blockDim.y * kTokens;
  for (uint32_t begin = first + blockIdx.z * strip; begin < end; begin += gridDim.z * strip) {
    uint4 words[kTokens] = {};
#pragma unroll
    for (uint32_t k = 0; k < kTokens; k += kQuad) {
      const uint32_t slot = begin + row + k * apart;
      if (slot < end) ReadQuad(a, head, first_token + slot, words + k);
    }
    const Parameters own = OwnParameters<kFrom, kCodec, kBits>(words, t.group / kOctet, lane);
    const uint32_t own_row = row + lane_of_group / kQuad * kQuad * apart + lane_of_group % kQuad;
    if (lane_of_group < kTokens && begin + own_row < end) {
      if constexpr (PlacesOfCodes::kBlocks) {
        PutParameter(kF16, own.scale,
                     stage_bytes + own_row * t.row_codes + channel / 32 * GgmlBlockBytes(kCodec));
      } else {
        const uint32_t at = ParameterOffset(t, a.places, begin + own_row, channel);
        PutParameter(t.dtype, own.scale, unit + a.places.scales + at);
        if (kCodec == kMlxAffine) PutParameter(t.dtype, own.bias, unit + a.places.biases + at);
      }
    }
    const uint32_t owner = lane / kTokens * kTokens;
    if (own.usual) {
#pragma unroll
      for (uint32_t k = 0; k < kTokens; k += kQuad) {
        const uint32_t at = row + k * apart;
        EncodeQuad<kFrom, kCodec, kBits, kCodes, true>(places, words + k, own, owner + k, channel,
                                                       at, begin + at, begin + at < end);
      }
    } else {
#pragma unroll 1
      for (uint32_t k = 0; k < kTokens; k += kQuad) {
        const uint32_t at = row + k * apart;
        uint4 again[kQuad] = {};
        if (begin + at < end) ReadQuad(a, head, first_token + begin + at, again);
        EncodeQuad<kFrom, kCodec, kBits, kCodes, false>(places, again, own, owner + k, channel, at,
                                                        begin + at, begin + at < end);
      }
    }
    if constexpr (PlacesOfCodes::kStaged) {
      __syncthreads();
      const uint32_t tokens = min(strip, end - begin);
      CopyRows(stage, unit + begin * t.row_codes, tokens * t.row_codes);
      __syncthreads();
    }
  }
}

template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits, Codes kCodes, uint32_t kTokens>
cudaError_t Launch(const QuantizeArguments& a, cudaStream_t stream) {
  const uint32_t rows = RowsOfBlock(a.tensor.dim, kTokens, a.page_tokens);
  const uint32_t pages = (a.first_slot + a.count + a.page_tokens - 1) / a.page_tokens;
  const uint32_t strips = (a.page_tokens + rows * kTokens - 1) / (rows * kTokens);
  const dim3 grid(pages, a.kv_heads, std::min(strips, kMostStrips));
  QuantizeQuadsKernel<kFrom, kCodec, kBits, kCodes, kTokens>
      <<<grid, dim3(a.tensor.dim / kOctet, rows), 0, stream>>>(a);
  return cudaGetLastError();
}

template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits, Codes kCodes>
cudaError_t ByGroup(const QuantizeArguments& a, cudaStream_t stream) {
  if constexpr (kCodec == kMlxAffine) {
    if (a.tensor.group >= 8 * kOctet) return Launch<kFrom, kCodec, kBits, kCodes, 8>(a, stream);
  }
  return Launch<kFrom, kCodec, kBits, kCodes, 4>(a, stream);
}

template <uint8_t kFrom, uint8_t kCodec, uint32_t kBits>
cudaError_t InLayout(const QuantizeArguments& a, cudaStream_t stream) {
  if constexpr (kBits == 4 || kBits == 8) {
    if (a.tensor.layout == kTiled && a.tensor.value != 0) {
      return ByGroup<kFrom, kCodec, kBits, Codes::kTiledValues>(a, stream);
    }
    if (a.tensor.layout == kTiled) {
      return ByGroup<kFrom, kCodec, kBits, Codes::kTiledKeys>(a, stream);
    }
  }
  return ByGroup<kFrom, kCodec, kBits, Codes::kRows>(a, stream);
}

template <uint8_t kFrom>
cudaError_t InFormat(const QuantizeArguments& a, cudaStream_t stream) {
  switch (a.tensor.codec == kMlxAffine ? a.tensor.bits : 100 + a.tensor.codec) {
    case 2:
      return InLayout<kFrom, kMlxAffine, 2>(a, stream);
    case 3:
      return InLayout<kFrom, kMlxAffine, 3>(a, stream);
    case 4:
      return InLayout<kFrom, kMlxAffine, 4>(a, stream);
    case 5:
      return InLayout<kFrom, kMlxAffine, 5>(a, stream);
    case 6:
      return InLayout<kFrom, kMlxAffine, 6>(a, stream);
    case 8:
      return InLayout<kFrom, kMlxAffine, 8>(a, stream);
    case 100 + kQ8_0:
      return InLayout<kFrom, kQ8_0, 8>(a, stream);
    default:
      return InLayout<kFrom, kQ4_0, 4>(a, stream);
  }
}

}  // namespace

bool TakesQuads(const QuantizeArguments& a) {
  const TensorGeometry& t = a.tensor;
  const TensorPlace& rows = a.rows;
  const bool known = t.codec == kMlxAffine || t.codec == kQ8_0 || t.codec == kQ4_0;
  // A quad's tokens are in one block.
  const bool together = rows.block_tokens == 0 ||
                        (rows.block_tokens % kQuad == 0 && (a.begin - a.first_slot) % kQuad == 0);
  return known && together && HasAlignedHalves(rows) && t.dim <= kMaxDim &&
         a.page_tokens % kQuad == 0;
}

cudaError_t QueueQuantizeQuads(const QuantizeArguments& arguments, cudaStream_t stream) {
  QuantizeArguments a = arguments;
  a.pages += a.first_slot / a.page_tokens;
  a.first_slot %= a.page_tokens;
  return a.rows.dtype == kF16 ? InFormat<kF16>(a, stream) : InFormat<kBf16>(a, stream);
}

}  // namespace prefixd::cuda
