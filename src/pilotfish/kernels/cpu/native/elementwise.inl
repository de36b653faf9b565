// Norms, the gated activation, rotation, the cap on logits: each row by itself.
#pragma once

#include <cmath>

#include "formats.inl"

namespace FORM {

// x / rms(x) * weight, weight may be null; dim floats, out may be x.
void norm(const float* x, const float* weight, int dim, float eps, float* out) {
  const int whole = dim / LANES * LANES;
  vf squares = {};
  for (int i = 0; i < whole; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (int i = whole; i < dim; ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / dim + eps);
  for (int i = 0; i < whole; i += LANES) {
    const vf y = load(x + i) * splat(scale);
    store(out + i, weight ? y * load(weight + i) : y);
  }
  for (int i = whole; i < dim; ++i) out[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

// gelu by its tanh form, x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline vf gelu(vf x) {
  const vf u = splat(1.5957691216057308f) * fma(x * x * x, splat(0.044715f), x);
  const vf e = exp(u < splat(0.0f) ? u : -u);  // of a negative number: never overflows
  const vf small = e / (splat(1.0f) + e), large = splat(1.0f) / (splat(1.0f) + e);
  return x * (u < splat(0.0f) ? small : large);
}

inline vf tanh(vf x) {
  const vf e = exp(splat(-2.0f) * (x < splat(0.0f) ? -x : x));
  const vf t = (splat(1.0f) - e) / (splat(1.0f) + e);
  return x < splat(0.0f) ? -t : t;
}

// out[i] = f(a[i], b[i]); the last few through a padded vector, so that every element takes the same steps.
template <class F>
inline void map(const float* a, const float* b, float* out, int64_t size, F f) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) store(out + i, f(load(a + i), load(b + i)));
  if (i == size) return;
  float left[LANES] = {}, right[LANES] = {}, result[LANES];
  std::copy(a + i, a + size, left);
  std::copy(b + i, b + size, right);
  store(result, f(load(left), load(right)));
  std::copy(result, result + (size - i), out + i);
}

void geglu(const float* gate, const float* up, float* out, int64_t size) {
  map(gate, up, out, size, [](vf g, vf u) { return gelu(g) * u; });
}

void softcap(const float* x, float cap, float* out, int64_t size) {
  map(x, x, out, size, [=](vf v, vf) { return tanh(v / splat(cap)) * splat(cap); });
}

// Half-split rotation of one head by the cosines and sines of its position, dim / 2 of each.
void rotate(const float* x, const float* cosine, const float* sine, int dim, float* out) {
  const int half = dim / 2;
  int d = 0;
  for (; d + LANES <= half; d += LANES) {
    const vf a = load(x + d), b = load(x + d + half), c = load(cosine + d), s = load(sine + d);
    store(out + d, a * c - b * s);
    store(out + d + half, b * c + a * s);
  }
  for (; d < half; ++d) {
    const float a = x[d], b = x[d + half];
    out[d] = a * cosine[d] - b * sine[d];
    out[d + half] = b * cosine[d] + a * sine[d];
  }
}

// `count` numbers of any type to floats and back; bf16 and f16 round to the nearest, ties to even.
void to_floats(DType type, const void* from, int64_t count, float* out) {
  with_type(type, [&](auto* tag) {
    auto* p = static_cast<decltype(tag)>(from);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, floats(p + i));
    if (i == count) return;
    std::remove_cv_t<std::remove_pointer_t<decltype(tag)>> rest[LANES] = {};
    std::copy(p + i, p + count, rest);
    float result[LANES];
    store(result, floats(rest));
    std::copy(result, result + (count - i), out + i);
  });
}

inline uint16_t to_bf16(float x) {
  const uint32_t bits = read<uint32_t>(&x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline uint16_t to_half(float x) {
  const uint32_t bits = read<uint32_t>(&x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {                                    // subnormal: adding 0.5 puts its bits at the end
    const float shifted = from_bits(magnitude) + 0.5f;
    return uint16_t(sign | (read<uint32_t>(&shifted) - 0x3f000000u));
  }
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
}

void from_floats(const float* x, int64_t count, DType type, void* out) {
  auto* half = static_cast<uint16_t*>(out);
  switch (type) {
    case DType::f32: std::copy_n(x, count, static_cast<float*>(out)); break;
    case DType::bf16: for (int64_t i = 0; i < count; ++i) half[i] = to_bf16(x[i]); break;
    case DType::f16: for (int64_t i = 0; i < count; ++i) half[i] = to_half(x[i]); break;
  }
}

}  // namespace FORM
