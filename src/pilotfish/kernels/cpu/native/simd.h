// Float lanes, written with the compilers' vector extensions so that one source serves every machine.
// Each file that includes this is compiled once per instruction set, inside the namespace FORM.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace FORM {

constexpr int LANES = 8;

using vf = float __attribute__((vector_size(4 * LANES)));
using vi = int32_t __attribute__((vector_size(4 * LANES)));
using vu = uint32_t __attribute__((vector_size(4 * LANES)));
using vh = uint16_t __attribute__((vector_size(2 * LANES)));
using vb = uint8_t __attribute__((vector_size(LANES)));

// f(0), ..., f(N - 1), written out: arrays indexed by m then live in registers, which a loop does not guarantee.
template <int N, class F>
inline __attribute__((always_inline)) void each(F&& f) {
  [&]<int... m>(std::integer_sequence<int, m...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, m>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

template <class V>
inline V read(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline vf load(const float* p) { return read<vf>(p); }

inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

inline vf splat(float x) { return x - vf{}; }

inline vu splat(uint32_t x) { return x - vu{}; }

// Fused everywhere or nowhere within a form: a row's result must not depend on what the optimiser contracts.
inline vf fma(vf a, vf b, vf c) {
#if defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// LANES bytes or 16-bit words at p as 32-bit numbers. Spelled out: gcc takes the conversion of short vectors apart.
inline vu widen(const uint8_t* p) {
#if defined(__AVX2__)
  return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  return __builtin_convertvector(read<vb>(p), vu);
#endif
}

inline vu widen(const uint16_t* p) {
#if defined(__AVX2__)
  return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return __builtin_convertvector(read<vh>(p), vu);
#endif
}

inline vf to_float(vu v) { return __builtin_convertvector((vi)v, vf); }

inline vf max(vf a, vf b) { return a > b ? a : b; }

// Always the same tree, so the order of a sum is fixed.
inline float sum(vf v) {
  float a = (v[0] + v[4]) + (v[2] + v[6]);
  float b = (v[1] + v[5]) + (v[3] + v[7]);
  return a + b;
}

// Each of eight accumulators summed by the tree of `sum`, together.
inline vf sums_of(const vf (&a)[8]) {
#if defined(__AVX2__)
  const auto fold = [](vf x, vf y) {  // (x0+x4, x1+x5, x2+x6, x3+x7, y0+y4, ...)
    return (vf)_mm256_permute2f128_ps((__m256)x, (__m256)y, 0x20) + (vf)_mm256_permute2f128_ps((__m256)x, (__m256)y, 0x31);
  };
  const auto pairs = [](vf x, vf y) {  // of two folds: (t0+t2, t1+t3) of x, of y, in each half
    return (vf)_mm256_shuffle_ps((__m256)x, (__m256)y, 0x44) + (vf)_mm256_shuffle_ps((__m256)x, (__m256)y, 0xee);
  };
  const vf f01 = fold(a[0], a[4]), f23 = fold(a[1], a[5]), f45 = fold(a[2], a[6]), f67 = fold(a[3], a[7]);
  const vf p = pairs(f01, f23), q = pairs(f45, f67);
  return (vf)_mm256_shuffle_ps((__m256)p, (__m256)q, 0x88) + (vf)_mm256_shuffle_ps((__m256)p, (__m256)q, 0xdd);
#else
  vf out;
  for (int i = 0; i < 8; ++i) out[i] = sum(a[i]);
  return out;
#endif
}

inline float largest(vf v) {
  float m = v[0];
  for (int i = 1; i < LANES; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// table[index & 7] in each lane.
inline vf lookup(vf table, vu index) {
#if defined(__AVX2__)
  return (vf)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
#else
  vf out;
  for (int i = 0; i < LANES; ++i) out[i] = table[index[i] & 7];
  return out;
#endif
}

// table[byte] for each byte of v, all of which are below 16.
inline vu lookup_bytes(vu v, const int8_t (&table)[16]) {
#if defined(__AVX2__)
  return (vu)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(read<__m128i>(table)), (__m256i)v);
#else
  uint8_t bytes[sizeof v];
  std::memcpy(bytes, &v, sizeof v);
  for (auto& b : bytes) b = uint8_t(table[b]);
  return read<vu>(bytes);
#endif
}

// e^x to about 1 ulp of float for x <= 0; 0 below -87. Cody-Waite reduction, degree-6 polynomial.
inline vf exp(vf x) {
  const vf log2e = splat(1.44269504088896341f);
  vf clamped = max(x, splat(-87.3f));
  vf t = fma(clamped, log2e, splat(12582912.0f));  // rounds to an integer in the low mantissa bits
  vf n = t - splat(12582912.0f);
  vf r = fma(n, splat(-0.693145751953125f), clamped);
  r = fma(n, splat(-1.42860682030941723212e-6f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p * r, r, r) + splat(1.0f);
  vi shift = __builtin_convertvector(n, vi) << 23;
  vf scaled = (vf)((vi)p + shift);
  return x < splat(-87.3f) ? splat(0.0f) : scaled;
}

}  // namespace FORM
