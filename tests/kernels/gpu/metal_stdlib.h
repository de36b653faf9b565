// As much of the Metal standard library as kernels here use, for a host C++ compiler. Address spaces mean nothing; a
// simdgroup's lanes are fibers (see emulator.cpp), and a collective waits until all of them have come to it.
#pragma once

#include <stdint.h>
#include <string.h>

#define device
#define constant const
#define thread
#define METAL_FUNC inline
#define INFINITY __builtin_inff()

using uint = unsigned int;
using ulong = unsigned long;
using half = _Float16;
using float16_t = _Float16;

struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    bits = uint16_t((b + 0x7fffu + (b >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t b = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &b, 4);
    return x;
  }
};

template <class To, class From>
To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

template <class T>
T max(T a, T b) { return a > b ? a : b; }

template <class T>
T min(T a, T b) { return a < b ? a : b; }

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float exp(float x) { return __builtin_expf(x); }

struct uint3 { uint x, y, z; };

// Set for the fiber that runs.
extern uint3 thread_position_in_grid, threadgroup_position_in_grid, thread_position_in_threadgroup;
extern uint thread_index_in_simdgroup, simdgroup_index_in_threadgroup;

float simd_sum(float x);
