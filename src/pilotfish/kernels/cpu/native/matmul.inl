// x (rows, k) times the transpose of a matrix (n, k): every chunk of weights is unpacked once for up to MAX_ROWS rows.
#pragma once

#include <algorithm>
#include <vector>

#include "formats.inl"

namespace FORM {

using pilotfish::Format;
using pilotfish::Matrix;
using pilotfish::ScaleType;

constexpr int MAX_ROWS = 8;  // rows that share one unpacking

inline int chunks_of(int k) { return (k + CHUNK - 1) / CHUNK; }

// Rows in blocks of MAX_ROWS; a block is ordered by chunk, vector, row, so that a pass over it reads straight ahead.
// What is missing from the last chunk is zero.
int64_t packed_size(int rows, int k) { return int64_t(rows) * chunks_of(k) * CHUNK; }

void pack(const float* x, int rows, int k, bool transposed, float* packed) {
  for (int first = 0; first < rows; first += MAX_ROWS) {
    const int block = std::min(MAX_ROWS, rows - first);
    for (int c = 0; c < chunks_of(k); ++c, packed += int64_t(block) * CHUNK) {
      for (int m = 0; m < block; ++m) {
        float chunk[CHUNK] = {};
        std::copy_n(x + int64_t(first + m) * k + c * CHUNK, std::min(CHUNK, k - c * CHUNK), chunk);
        for (int v = 0; v < VECTORS; ++v)
          for (int i = 0; i < LANES; ++i)
            packed[(v * block + m) * LANES + i] = transposed ? chunk[i * VECTORS + v] : chunk[v * LANES + i];
      }
    }
  }
}

inline vf vector_of(const uint8_t* p, ScaleType type) {
  if (type == ScaleType::e4m3) return Float8::vector<0>(p);
  const vu x = widen(p);
  return (vf)(x == splat(0u) ? splat(0x00400000u) : x << 23);  // 2^(x - 127); 2^-127 is subnormal
}

// `count` scales or biases, beginning with number `at`, as floats.
inline void decode(ScaleType type, const void* from, int64_t at, int count, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(from) + at;
  const auto* words = static_cast<const uint16_t*>(from) + at;
  const int whole = count / LANES * LANES;
  switch (type) {
    case ScaleType::f32: std::copy_n(static_cast<const float*>(from) + at, count, out); return;
    case ScaleType::bf16:
      for (int i = 0; i < whole; i += LANES) store(out + i, floats(reinterpret_cast<const bf16*>(words + i)));
      for (int i = whole; i < count; ++i) out[i] = from_bits(uint32_t(words[i]) << 16);
      return;
    case ScaleType::f16:
      for (int i = 0; i < whole; i += LANES) store(out + i, floats(reinterpret_cast<const f16*>(words + i)));
      for (int i = whole; i < count; ++i) out[i] = from_half(words[i]);
      return;
    default:
      for (int i = 0; i < whole; i += LANES) store(out + i, vector_of(bytes + i, type));
      if (whole == count) return;
      uint8_t rest[LANES] = {};
      float values[LANES];
      std::copy_n(bytes + whole, count - whole, rest);
      store(values, vector_of(rest, type));
      std::copy_n(values, count - whole, out + whole);
  }
}

// How scales lie over a chunk: 1 << per_chunk of them, or one for 1 << -per_chunk chunks.
inline int log_scales_per_chunk(int group) { return group == 16 ? 2 : group == 32 ? 1 : group == 64 ? 0 : -1; }

// Scales of one chunk, lane by lane, for a format whose lanes hold neighbours.
inline vf lane_scales(const float* scales, int per_chunk, int chunk) {
  if (per_chunk == 2) return lookup(load(scales + chunk * 4), vu{0, 0, 1, 1, 2, 2, 3, 3});
  if (per_chunk == 1) return lookup(load(scales + chunk * 2), vu{0, 0, 0, 0, 1, 1, 1, 1});
  return splat(scales[chunk >> -per_chunk]);
}

// Adds `count` chunks of a column times x to the rows' totals. The order of a row's sum: within a lane vector by vector,
// scaled, chunk after chunk; lanes last. `scales` begins with the scale of the first chunk, or `within` chunks before it.
template <class Weights, bool Scaled, int Rows>
__attribute__((noinline)) void add_span(const uint8_t* w, const float* x, const float* scales, int group, int within,
                                        int count, vf* totals) {
  vf total[Rows];
  each<Rows>([&](auto m) { total[m] = totals[m]; });
  const int per_chunk = log_scales_per_chunk(group);
  const bool halves = Scaled && !Weights::transposed && per_chunk == 1;
  for (int i = within; i < count + within; ++i, w += Weights::chunk_bytes, x += Rows * CHUNK) {
    __builtin_prefetch(w + 1024);
    vf part[Rows];
    each<Rows>([&](auto m) { part[m] = Scaled ? vf{} : total[m]; });
    each<VECTORS>([&](auto v) {
      const vf q = Weights::template vector<v>(w);
      each<Rows>([&](auto m) { part[m] = fma(q, load(x + (v * Rows + m) * LANES), part[m]); });
      if constexpr (Scaled && !Weights::transposed && v == VECTORS / 2 - 1) {
        if (halves) {
          const vf s = splat(scales[i * 2]);
          each<Rows>([&](auto m) { total[m] = fma(s, part[m], total[m]), part[m] = vf{}; });
        }
      }
    });
    if constexpr (Scaled) {
      const vf s = halves ? splat(scales[i * 2 + 1]) : lane_scales(scales, per_chunk, i);
      each<Rows>([&](auto m) { total[m] = fma(s, part[m], total[m]); });
    } else {
      each<Rows>([&](auto m) { total[m] = part[m]; });
    }
  }
  each<Rows>([&](auto m) { totals[m] = total[m]; });
}

// One chunk as numbers in order, before scales.
template <class Weights>
void unpack_chunk(const uint8_t* w, float* out) {
  each<VECTORS>([&](auto v) {
    const vf q = Weights::template vector<v>(w);
    for (int i = 0; i < LANES; ++i) out[Weights::transposed ? i * VECTORS + v : v * LANES + i] = q[i];
  });
}

// What is compiled for one format and number of rows, with what has to be known of the format.
struct Kernel {
  void (*add_span)(const uint8_t*, const float*, const float*, int, int, int, vf*);
  void (*unpack_chunk)(const uint8_t*, float*);
  int chunk_bytes;
  bool scaled;
};

template <class Weights, bool Scaled>
Kernel kernel_for(int rows) {
  static constexpr decltype(Kernel::add_span) by_rows[MAX_ROWS] = {
      add_span<Weights, Scaled, 1>, add_span<Weights, Scaled, 2>, add_span<Weights, Scaled, 3>,
      add_span<Weights, Scaled, 4>, add_span<Weights, Scaled, 5>, add_span<Weights, Scaled, 6>,
      add_span<Weights, Scaled, 7>, add_span<Weights, Scaled, 8>};
  return {by_rows[rows - 1], unpack_chunk<Weights>, Weights::chunk_bytes, Scaled};
}

inline Kernel kernel_for(Format format, int rows) {
  switch (format) {
    case Format::dense_f32: return kernel_for<Dense<float>, false>(rows);
    case Format::dense_bf16: return kernel_for<Dense<bf16>, false>(rows);
    case Format::dense_f16: return kernel_for<Dense<f16>, false>(rows);
    case Format::int2: return kernel_for<Integer<2>, true>(rows);
    case Format::int3: return kernel_for<Integer<3>, true>(rows);
    case Format::int4: return kernel_for<Integer<4>, true>(rows);
    case Format::int5: return kernel_for<Integer<5>, true>(rows);
    case Format::int6: return kernel_for<Integer<6>, true>(rows);
    case Format::int8: return kernel_for<Integer<8>, true>(rows);
    case Format::e2m1: return kernel_for<Float4, true>(rows);
    default: return kernel_for<Float8, true>(rows);
  }
}

// Columns go in tiles and chunks in spans, so that a span of x stays in the first-level cache while a tile passes.
// One or two rows of x stay in the second level, which is fast enough for them: longer runs of weights read faster.
constexpr int TILE = 16, SPAN = 96, LONG_SPAN = 512;
constexpr int MANY = 64;  // scales of a column

inline int span_for(int rows) { return rows <= 2 ? LONG_SPAN : SPAN / rows; }

// Scratch of one thread.
struct Columns {
  std::vector<float> scales, biases;  // biases by group, then column of the tile
  vf totals[TILE * MAX_ROWS];
};

// A pass of the tile's columns over chunks [first, last).
void add_tile(const Matrix& a, const Kernel& kernel, const float* x, int rows, int tile, int width, int first, int last,
              Columns& scratch) {
  const int stop = std::min(last, a.k / CHUNK), groups = kernel.scaled ? a.k / a.group : 0;
  const int64_t row_bytes = int64_t(a.k) * kernel.chunk_bytes / CHUNK, x_chunk = int64_t(rows) * CHUNK;
  int from = 0, count = 0, within = 0;  // scales of these chunks, and chunks before `first` that share the first scale
  if (kernel.scaled) {
    from = first * CHUNK / a.group, count = std::min(groups, (last * CHUNK + a.group - 1) / a.group) - from;
    within = a.group > CHUNK ? first % (a.group / CHUNK) : 0;
  }
  const bool together = count == groups && count <= MANY;  // few scales a column: those of the whole tile in one go
  if (together) decode(a.scale_type, a.scales, int64_t(tile) * groups, width * groups, scratch.scales.data());
  for (int c = 0; c < width; ++c) {
    const uint8_t* w = a.w + (tile + c) * row_bytes + int64_t(first) * kernel.chunk_bytes;
    const float* scales = scratch.scales.data() + (together ? c * groups : 0);
    if (!together) decode(a.scale_type, a.scales, int64_t(tile + c) * groups + from, count, scratch.scales.data());
    vf* totals = scratch.totals + c * rows;
    kernel.add_span(w, x + first * x_chunk, scales, a.group, within, stop - first, totals);
    if (stop < last) {  // the row ends inside a chunk
      uint8_t rest[CHUNK * sizeof(float)] = {};
      w += int64_t(stop - first) * kernel.chunk_bytes;
      std::memcpy(rest, w, a.w + (tile + c + 1) * row_bytes - w);
      kernel.add_span(rest, x + stop * x_chunk, scales, a.group, within + stop - first, 1, totals);
    }
  }
}

// Lanes of the totals together, eight columns at a time, and the biases' part: their dot product with sums of x.
void finish_tile(const Matrix& a, const float* sums, int rows, float* out, int64_t stride, int tile, int width,
                 Columns& scratch) {
  const int groups = a.biases ? a.k / a.group : 0;
  if (groups) {
    const float* by_column = scratch.scales.data();
    decode(a.scale_type, a.biases, int64_t(tile) * groups, width * groups, scratch.scales.data());
    for (int c = 0; c < width; ++c)
      for (int g = 0; g < groups; ++g) scratch.biases[g * TILE + c] = by_column[c * groups + g];
  }
  for (int c = 0; c < width; c += LANES) {
    const int count = std::min(LANES, width - c);
    for (int m = 0; m < rows; ++m) {
      const vf* totals = scratch.totals + c * rows + m;  // of columns that are not there as well: they are zero
      const vf lanes[LANES] = {totals[0],        totals[rows],     totals[2 * rows], totals[3 * rows],
                               totals[4 * rows], totals[5 * rows], totals[6 * rows], totals[7 * rows]};
      vf result = sums_of(lanes), biased = {};
      for (int g = 0; g < groups; ++g)
        biased = fma(load(&scratch.biases[g * TILE + c]), splat(sums[m * groups + g]), biased);
      if (groups) result += biased;
      result *= splat(a.factor);
      float* to = out + m * stride + tile + c;
      if (count == LANES) {
        store(to, result);
      } else {
        for (int i = 0; i < count; ++i) to[i] = result[i];
      }
    }
  }
}

// Columns [begin, end) of at most MAX_ROWS rows.
void columns(const Matrix& a, const float* x, const float* sums, int rows, float* out, int64_t stride, int begin,
             int end, Columns& scratch) {
  const Kernel kernel = kernel_for(a.format, rows);
  const int chunks = chunks_of(a.k), span = span_for(rows);
  for (int tile = begin; tile < end; tile += TILE) {
    const int width = std::min(TILE, end - tile);
    std::fill_n(scratch.totals, (width + LANES - 1) / LANES * LANES * rows, vf{});
    for (int first = 0; first < chunks; first += span)
      add_tile(a, kernel, x, rows, tile, width, first, std::min(chunks, first + span), scratch);
    finish_tile(a, sums, rows, out, stride, tile, width, scratch);
  }
}

// Columns [begin, end) of the product; x as `pack` gives it, sums (rows, k / group) where there are biases.
void matmul(const Matrix& a, const float* x, const float* sums, int rows, float* out, int64_t stride, int begin,
            int end) {
  static thread_local Columns scratch;
  const int64_t packed = packed_size(1, a.k), groups = a.biases ? a.k / a.group : 0;
  if (a.scales) scratch.scales.resize((LONG_SPAN + 2) * (CHUNK / 16) + TILE * std::max<int>(MANY, groups) + LANES);
  scratch.biases.resize(groups * TILE);
  for (int r = 0; r < rows; r += MAX_ROWS)
    columns(a, x + r * packed, sums + r * groups, std::min(MAX_ROWS, rows - r), out + r * stride, stride, begin, end,
            scratch);
}

// Row `row` of the matrix as floats, k of them.
void unpack(const Matrix& a, int64_t row, float* out) {
  const Kernel kernel = kernel_for(a.format, 1);
  const int64_t row_bytes = int64_t(a.k) * kernel.chunk_bytes / CHUNK;
  const uint8_t* w = a.w + row * row_bytes;
  for (int at = 0; at < a.k; at += CHUNK, w += kernel.chunk_bytes) {
    const int count = std::min(CHUNK, a.k - at);
    uint8_t bytes[CHUNK * sizeof(float)] = {};
    float chunk[CHUNK];
    std::memcpy(bytes, w, int64_t(count) * kernel.chunk_bytes / CHUNK);
    kernel.unpack_chunk(bytes, chunk);
    std::copy_n(chunk, count, out + at);
  }
  const int groups = kernel.scaled ? a.k / a.group : 0;
  std::vector<float> scales(groups), biases(groups);
  if (groups) decode(a.scale_type, a.scales, row * groups, groups, scales.data());
  if (a.biases) decode(a.scale_type, a.biases, row * groups, groups, biases.data());
  for (int i = 0; i < a.k; ++i)
    out[i] = (groups ? out[i] * scales[i / a.group] + biases[i / a.group] : out[i]) * a.factor;
}

}  // namespace FORM
