// Eight float lanes, written with the compilers' vector extensions so that one source serves every machine.
// Each file that includes this is compiled once per instruction set, inside the namespace FORM.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace FORM {

using f8 = float __attribute__((vector_size(32)));
using i8 = int32_t __attribute__((vector_size(32)));
using u8 = uint32_t __attribute__((vector_size(32)));

inline f8 load(const float* p) {
  f8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, f8 v) { std::memcpy(p, &v, sizeof v); }

inline f8 splat(float x) { return f8{x, x, x, x, x, x, x, x}; }

inline u8 splat(uint32_t x) { return u8{x, x, x, x, x, x, x, x}; }

// Fused everywhere or nowhere within a form: a row's result must not depend on what the optimiser contracts.
inline f8 fma(f8 a, f8 b, f8 c) {
#if defined(__FMA__)
  return (f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline f8 to_float(u8 v) { return __builtin_convertvector((i8)v, f8); }

inline f8 max(f8 a, f8 b) { return a > b ? a : b; }

// Always the same tree, so the order of a sum is fixed.
inline float sum(f8 v) {
  float a = (v[0] + v[4]) + (v[2] + v[6]);
  float b = (v[1] + v[5]) + (v[3] + v[7]);
  return a + b;
}

inline float largest(f8 v) {
  float m = v[0];
  for (int i = 1; i < 8; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// table[code & 7] in each lane.
inline f8 lookup(f8 table, u8 code) {
#if defined(__AVX2__)
  return (f8)_mm256_permutevar8x32_ps((__m256)table, (__m256i)code);
#else
  f8 out;
  for (int i = 0; i < 8; ++i) out[i] = table[code[i] & 7];
  return out;
#endif
}

// e^x to about 1 ulp of float for x <= 0; 0 below -87. Cody-Waite reduction, degree-6 polynomial.
inline f8 exp(f8 x) {
  const f8 log2e = splat(1.44269504088896341f);
  f8 clamped = max(x, splat(-87.3f));
  f8 t = fma(clamped, log2e, splat(12582912.0f));  // rounds to an integer in the low mantissa bits
  f8 n = t - splat(12582912.0f);
  f8 r = fma(n, splat(-0.693145751953125f), clamped);
  r = fma(n, splat(-1.42860682030941723212e-6f), r);
  f8 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p * r, r, r) + splat(1.0f);
  i8 shift = __builtin_convertvector(n, i8) << 23;
  f8 scaled = (f8)((i8)p + shift);
  return x < splat(-87.3f) ? splat(0.0f) : scaled;
}

}  // namespace FORM
