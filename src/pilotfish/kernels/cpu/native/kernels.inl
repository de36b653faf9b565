// Bodies of the kernels; included by one file per instruction set, which defines FORM.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "forms.h"
#include "simd.h"

namespace FORM {

using pilotfish::AttentionArgs;
using pilotfish::Mode;
using pilotfish::NormArgs;
using pilotfish::QmmArgs;
using pilotfish::ScaleType;

// f(0), ..., f(N - 1), written out: arrays indexed by m then live in registers, which a loop does not guarantee.
template <int N, class F>
inline __attribute__((always_inline)) void each(F&& f) {
  [&]<int... m>(std::integer_sequence<int, m...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, m>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

constexpr int MAX_ROWS = 8;  // rows that share one unpacking of a block of weights

inline uint32_t word(const uint8_t* p, int bytes) {
  uint32_t w = 0;
  std::memcpy(&w, p, bytes);  // never reads past the packed row
  return w;
}

// Eight codes of `Bits` bits that start at p.
template <int Bits>
inline u8 codes(const uint8_t* p) {
  const u8 mask = splat(uint32_t((1u << Bits) - 1));
  if constexpr (Bits == 8) {
    uint8_t bytes __attribute__((vector_size(8)));
    std::memcpy(&bytes, p, 8);
    return __builtin_convertvector(bytes, u8);
  } else if constexpr (Bits <= 4) {
    constexpr uint32_t b = Bits;
    return (splat(word(p, Bits)) >> u8{0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b}) & mask;
  } else {
    uint64_t both = 0;
    std::memcpy(&both, p, Bits);
    constexpr uint32_t b = Bits;
    uint32_t lo = uint32_t(both), hi = uint32_t(both >> (4 * Bits));
    return (u8{lo, lo, lo, lo, hi, hi, hi, hi} >> u8{0, b, 2 * b, 3 * b, 0, b, 2 * b, 3 * b}) & mask;
  }
}

template <int Bits>
struct Integer {
  static constexpr int bits = Bits;
  static f8 values(const uint8_t* p) { return to_float(codes<Bits>(p)); }
};

struct Float4 {  // e2m1: sign, then one of eight magnitudes
  static constexpr int bits = 4;
  static f8 values(const uint8_t* p) {
    u8 c = splat(word(p, 4)) >> u8{0, 4, 8, 12, 16, 20, 24, 28};
    f8 magnitude = lookup(f8{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f}, c);
    return (f8)((u8)magnitude ^ ((c << 28) & splat(0x80000000u)));
  }
};

struct Float8 {  // e4m3: its exponent is rebased by one multiplication, subnormals included
  static constexpr int bits = 8;
  static f8 values(const uint8_t* p) {
    u8 c = codes<8>(p);
    f8 magnitude = (f8)((c & splat(0x7fu)) << 20) * splat(0x1p120f);
    return (f8)((u8)magnitude | ((c & splat(0x80u)) << 24));
  }
};

inline float from_half(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7fff) << 13;
  float magnitude;
  std::memcpy(&magnitude, &rest, 4);
  magnitude *= 0x1p112f;  // rebase the exponent, subnormals included; infinities do not occur in scales
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  bits |= sign;
  std::memcpy(&magnitude, &bits, 4);
  return magnitude;
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// One row of scales or biases as floats.
inline void decode(ScaleType type, const void* from, int64_t at, int count, float* out) {
  switch (type) {
    case ScaleType::f32: std::copy_n(static_cast<const float*>(from) + at, count, out); break;
    case ScaleType::bf16:
      for (int i = 0; i < count; ++i) out[i] = from_bits(uint32_t(static_cast<const uint16_t*>(from)[at + i]) << 16);
      break;
    case ScaleType::f16:
      for (int i = 0; i < count; ++i) out[i] = from_half(static_cast<const uint16_t*>(from)[at + i]);
      break;
    case ScaleType::e4m3:
      for (int i = 0; i < count; ++i) {
        uint32_t c = static_cast<const uint8_t*>(from)[at + i];
        float magnitude = from_bits((c & 0x7f) << 20) * 0x1p120f;
        out[i] = c & 0x80 ? -magnitude : magnitude;
      }
      break;
    case ScaleType::e8m0:
      for (int i = 0; i < count; ++i) {
        uint32_t c = static_cast<const uint8_t*>(from)[at + i];
        out[i] = from_bits(c ? c << 23 : 0x00400000u);  // 2^(c - 127); 2^-127 is subnormal
      }
      break;
  }
}

inline float dot(const float* a, const float* b, int count) {
  f8 total = {};
  int i = 0;
  for (; i + 8 <= count; i += 8) total = fma(load(a + i), load(b + i), total);
  float rest = 0;
  for (; i < count; ++i) rest += a[i] * b[i];
  return sum(total) + rest;
}

// The order of a row's sum: lanes within a group, groups in turn, lanes at the end, then the biases.
//
// Columns go in tiles and k in spans, so that the span of all rows of x stays in the first-level cache while a tile
// of columns passes over it.
constexpr int TILE = 16, SPAN = 512;

template <class Format, int Vectors, int Rows>
void columns(const QmmArgs& a, const float* x, const float* sums, float* out, int begin, int end) {
  const int groups = a.k / a.group, groups_of_span = std::max(1, SPAN / a.group);
  const int64_t k = a.k, row_bytes = k * Format::bits / 8;
  std::vector<float> scales(size_t(TILE) * groups), bias(groups);
  f8 totals[TILE][Rows];
  for (int tile = begin; tile < end; tile += TILE) {
    const int width = std::min(TILE, end - tile);
    for (int c = 0; c < width; ++c) {
      decode(a.scale_type, a.scales, int64_t(tile + c) * groups, groups, &scales[size_t(c) * groups]);
      each<Rows>([&](auto m) { totals[c][m] = f8{}; });
    }
    for (int first = 0; first < groups; first += groups_of_span) {
      const int last = std::min(groups, first + groups_of_span);
      for (int c = 0; c < width; ++c) {
        const uint8_t* w = a.w + (tile + c) * row_bytes + int64_t(first) * Vectors * Format::bits;
        const float* at = x + int64_t(first) * a.group;
        f8 total[Rows];
        each<Rows>([&](auto m) { total[m] = totals[c][m]; });
        for (int g = first; g < last; ++g) {
          f8 part[Rows] = {};
          for (int v = 0; v < Vectors; ++v, w += Format::bits, at += 8) {
            const f8 q = Format::values(w);
            each<Rows>([&](auto m) { part[m] = fma(q, load(at + int64_t(m) * k), part[m]); });
          }
          const f8 s = splat(scales[size_t(c) * groups + g]);
          each<Rows>([&](auto m) { total[m] = fma(s, part[m], total[m]); });
        }
        each<Rows>([&](auto m) { totals[c][m] = total[m]; });
      }
    }
    for (int c = 0; c < width; ++c) {
      if (a.biases) decode(a.scale_type, a.biases, int64_t(tile + c) * groups, groups, bias.data());
      each<Rows>([&](auto m) {
        float result = sum(totals[c][m]);
        if (a.biases) result += dot(bias.data(), sums + int64_t(m) * groups, groups);
        out[int64_t(m) * a.n + tile + c] = result;
      });
    }
  }
}

template <class Format, int Vectors>
void blocks(const QmmArgs& a, int begin, int end) {
  const int groups = a.k / a.group;
  for (int r = 0; r < a.rows; r += MAX_ROWS) {
    const float* x = a.x + int64_t(r) * a.k;
    const float* sums = a.sums ? a.sums + int64_t(r) * groups : nullptr;
    float* out = a.out + int64_t(r) * a.n;
    switch (std::min(MAX_ROWS, a.rows - r)) {
      case 1: columns<Format, Vectors, 1>(a, x, sums, out, begin, end); break;
      case 2: columns<Format, Vectors, 2>(a, x, sums, out, begin, end); break;
      case 3: columns<Format, Vectors, 3>(a, x, sums, out, begin, end); break;
      case 4: columns<Format, Vectors, 4>(a, x, sums, out, begin, end); break;
      case 5: columns<Format, Vectors, 5>(a, x, sums, out, begin, end); break;
      case 6: columns<Format, Vectors, 6>(a, x, sums, out, begin, end); break;
      case 7: columns<Format, Vectors, 7>(a, x, sums, out, begin, end); break;
      default: columns<Format, Vectors, 8>(a, x, sums, out, begin, end);
    }
  }
}

template <class Format>
void by_group(const QmmArgs& a, int begin, int end) {
  switch (a.group) {
    case 16: return blocks<Format, 2>(a, begin, end);
    case 32: return blocks<Format, 4>(a, begin, end);
    case 64: return blocks<Format, 8>(a, begin, end);
    default: return blocks<Format, 16>(a, begin, end);
  }
}

void qmm(const QmmArgs& a, int begin, int end) {
  if (a.mode == Mode::mxfp8) return by_group<Float8>(a, begin, end);
  if (a.mode != Mode::affine) return by_group<Float4>(a, begin, end);
  switch (a.bits) {
    case 2: return by_group<Integer<2>>(a, begin, end);
    case 3: return by_group<Integer<3>>(a, begin, end);
    case 4: return by_group<Integer<4>>(a, begin, end);
    case 5: return by_group<Integer<5>>(a, begin, end);
    case 6: return by_group<Integer<6>>(a, begin, end);
    default: return by_group<Integer<8>>(a, begin, end);
  }
}

void norm(const NormArgs& a, int begin, int end) {
  const int whole = a.dim / 8 * 8;
  for (int r = begin; r < end; ++r) {
    const float* x = a.x + int64_t(r) * a.dim;
    float* out = a.out + int64_t(r) * a.dim;
    const float* added = a.added ? a.added + int64_t(r) * a.dim : nullptr;
    f8 squares = {};
    for (int i = 0; i < whole; i += 8) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (int i = whole; i < a.dim; ++i) total = std::fma(x[i], x[i], total);
    const float scale = 1.0f / std::sqrt(total / a.dim + a.eps);
    for (int i = 0; i < whole; i += 8) {
      f8 y = load(x + i) * splat(scale);
      if (a.weight) y = y * load(a.weight + i);
      if (added) y = load(added + i) + y;
      store(out + i, y);
    }
    for (int i = whole; i < a.dim; ++i) {
      float y = x[i] * scale;
      if (a.weight) y = y * a.weight[i];
      out[i] = added ? added[i] + y : y;
    }
  }
}

// gelu by its tanh form, x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline f8 gelu(f8 x) {
  f8 u = splat(1.5957691216057308f) * fma(x * x * x, splat(0.044715f), x);
  f8 e = exp(u < splat(0.0f) ? u : -u);  // of a negative number: never overflows
  f8 small = e / (splat(1.0f) + e), large = splat(1.0f) / (splat(1.0f) + e);
  return x * (u < splat(0.0f) ? small : large);
}

void geglu(const float* gate, const float* up, float* out, int64_t size) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) store(out + i, gelu(load(gate + i)) * load(up + i));
  if (i == size) return;
  float g[8] = {}, u[8] = {}, o[8];
  std::copy(gate + i, gate + size, g);
  std::copy(up + i, up + size, u);
  store(o, gelu(load(g)) * load(u));
  std::copy(o, o + (size - i), out + i);
}

template <int Rows>
void weighted_sum(const float* p, int64_t p_stride, const float* v, int slots, int dim, float* out, int64_t o_stride) {
  for (int d = 0; d < dim; d += 8) {
    f8 total[Rows] = {};
    for (int s = 0; s < slots; ++s) {
      f8 value = load(v + int64_t(s) * dim + d);
      each<Rows>([&](auto r) { total[r] = fma(splat(p[r * p_stride + s]), value, total[r]); });
    }
    each<Rows>([&](auto r) { store(out + r * o_stride + d, total[r]); });
  }
}

// Scores of every row of one key/value head, softmax, weighted sum of values. Slots keep their places, and what is
// masked weighs nothing, so neither the size of the buffer nor the other rows change a row.
void attention(const AttentionArgs& a, int kv_head) {
  const int shared = a.heads / a.kv_heads, rows = shared * a.rows;
  const int64_t stride = (a.slots + 7) / 8 * 8;
  const float* keys = a.k + kv_head * a.head_stride;
  const float* values = a.v + kv_head * a.head_stride;
  const float* queries = a.q + int64_t(kv_head) * rows * a.dim;
  int used = 0;  // one past the last slot that any row sees
  for (int i = 0; i < a.rows; ++i)
    for (int s = a.slots; s > used; --s)
      if (a.mask[int64_t(i) * a.slots + s - 1]) used = s;
  const int padded = (used + 7) / 8 * 8;
  for (int s = 0; s < used; ++s) {
    const float* key = keys + int64_t(s) * a.dim;
    for (int r = 0; r < rows; ++r) {
      const float* query = queries + int64_t(r) * a.dim;
      f8 even = {}, odd = {};
      for (int d = 0; d < a.dim; d += 16) {
        even = fma(load(query + d), load(key + d), even);
        odd = fma(load(query + d + 8), load(key + d + 8), odd);
      }
      bool seen = a.mask[int64_t(r % a.rows) * a.slots + s];
      a.scores[r * stride + s] = seen ? sum(even + odd) * a.scale : -std::numeric_limits<float>::infinity();
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* row = a.scores + r * stride;
    std::fill(row + used, row + padded, -std::numeric_limits<float>::infinity());
    f8 most = splat(-std::numeric_limits<float>::infinity());
    for (int s = 0; s < padded; s += 8) most = max(most, load(row + s));
    const f8 top = splat(largest(most));
    f8 total = {};
    for (int s = 0; s < padded; s += 8) {
      f8 e = exp(load(row + s) - top);
      store(row + s, e);
      total = total + e;
    }
    const f8 inverse = splat(1.0f / sum(total));
    for (int s = 0; s < padded; s += 8) store(row + s, load(row + s) * inverse);
  }
  // Row r is (head r / rows, query r % rows); the output wants (query, head, dim).
  const int64_t query_stride = int64_t(a.heads) * a.dim;
  for (int h = 0; h < shared; ++h) {
    float* out = a.out + (int64_t(kv_head) * shared + h) * a.dim;
    for (int i = 0; i < a.rows;) {
      const float* p = a.scores + (int64_t(h) * a.rows + i) * stride;
      int left = a.rows - i;
      if (left >= 4) {
        weighted_sum<4>(p, stride, values, used, a.dim, out + i * query_stride, query_stride), i += 4;
      } else if (left >= 2) {
        weighted_sum<2>(p, stride, values, used, a.dim, out + i * query_stride, query_stride), i += 2;
      } else {
        weighted_sum<1>(p, stride, values, used, a.dim, out + i * query_stride, query_stride), i += 1;
      }
    }
  }
}

}  // namespace FORM
