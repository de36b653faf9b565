// Weight formats: how eight vectors of weights (a chunk) come out of their bytes, and scales as floats.
#pragma once

#include "forms.h"
#include "simd.h"

namespace FORM {

using pilotfish::DType;

constexpr int VECTORS = 8;               // vectors of a chunk
constexpr int CHUNK = VECTORS * LANES;   // weights of a chunk

inline float from_bits(uint32_t bits) { return read<float>(&bits); }

inline float from_half(uint16_t h) {
  const uint32_t rest = uint32_t(h & 0x7fff) << 13;
  const float magnitude = rest >= 0x0f800000u ? from_bits(rest + 0x70000000u)  // infinity, not a number
                                              : from_bits(rest) * 0x1p112f;    // rebase, subnormals included
  return h & 0x8000 ? -magnitude : magnitude;
}

inline vf floats(const float* p) { return load(p); }

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

inline vf floats(const bf16* p) { return (vf)(widen(&p->bits) << 16); }

inline vf floats(const f16* p) {
#if defined(__F16C__)
  return (vf)_mm256_cvtph_ps(read<__m128i>(p));
#else
  vf out;
  for (int i = 0; i < LANES; ++i) out[i] = from_half(p[i].bits);
  return out;
#endif
}

// Calls f with a null pointer of the type that `dtype` names.
template <class F>
inline void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(static_cast<const float*>(nullptr));
    case DType::bf16: return f(static_cast<const bf16*>(nullptr));
    case DType::f16: return f(static_cast<const f16*>(nullptr));
  }
}

// A format has: bytes of a chunk; `transposed`, true where vector v holds weights v, v + 8, v + 16 ... of the chunk
// (one 32-bit word a lane) and false where it holds LANES neighbours; and vector v of the chunk at w.

template <class T>
struct Dense {
  static constexpr int chunk_bytes = CHUNK * sizeof(T);
  static constexpr bool transposed = false;
  template <int v>
  static vf vector(const uint8_t* w) { return floats(reinterpret_cast<const T*>(w) + v * LANES); }
};

// Unsigned integers of `Bits` bits, LANES of them in as many bytes as they have bits.
template <int Bits>
struct Integer {
  static constexpr int chunk_bytes = CHUNK * Bits / 8;
  static constexpr bool transposed = false;
  template <int v>
  static vf vector(const uint8_t* w) {
    w += v * LANES * Bits / 8;
    if constexpr (Bits == 8) {
      return to_float(widen(w));
    } else {
      uint64_t all = 0;
      std::memcpy(&all, w, Bits);  // never reads past the packed row
      constexpr uint32_t b = Bits;
      const uint32_t lo = uint32_t(all), hi = uint32_t(all >> (4 * Bits));
      const vu words = {lo, lo, lo, lo, hi, hi, hi, hi};
      return to_float((words >> vu{0, b, 2 * b, 3 * b, 0, b, 2 * b, 3 * b}) & splat(uint32_t((1u << Bits) - 1)));
    }
  }
};

template <>
struct Integer<4> {
  static constexpr int chunk_bytes = CHUNK / 2;
  static constexpr bool transposed = true;
  template <int v>
  static vf vector(const uint8_t* w) { return to_float((read<vu>(w) >> 4 * v) & splat(15u)); }
};

// e2m1: sign, then one of eight magnitudes, looked up as twice its value, a small integer (0, 1, 2, 3, 4, 6, 8, 12) in
// the top byte of a word. The factor of 2^25 is taken back where a column is finished.
struct Float4 {
  static constexpr int chunk_bytes = CHUNK / 2;
  static constexpr bool transposed = true;
  template <int v>
  static vf vector(const uint8_t* w) {
    const vu nibbles = (v % 2 ? read<vu>(w) >> 4 : read<vu>(w)) & splat(0x0f0f0f0fu);
    const vu doubled = lookup_bytes(nibbles, {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});
    return to_float((doubled << (24 - 8 * (v / 2))) & splat(0xff000000u));
  }
};

struct Float8 {  // e4m3: its exponent is rebased by one multiplication, subnormals included
  static constexpr int chunk_bytes = CHUNK;
  static constexpr bool transposed = false;
  template <int v>
  static vf vector(const uint8_t* w) {
    const vu c = widen(w + v * LANES);
    const vf magnitude = (vf)((c & splat(0x7fu)) << 20) * splat(0x1p120f);
    return (vf)((vu)magnitude | ((c & splat(0x80u)) << 24));
  }
};

}  // namespace FORM
