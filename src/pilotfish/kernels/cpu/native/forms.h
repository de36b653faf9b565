// The plain-pointer kernels, one set per instruction set. Every kernel keeps the contract: row i depends on row i only.
#pragma once

#include <cstdint>

namespace pilotfish {

enum class Mode { affine, mxfp4, mxfp8, nvfp4 };
enum class ScaleType { f32, f16, bf16, e4m3, e8m0 };

struct QmmArgs {
  const float* x;         // (rows, k)
  const uint8_t* w;       // (n, k * bits / 8) packed
  const void* scales;     // (n, k / group)
  const void* biases;     // the same, or null
  ScaleType scale_type;   // of scales and biases
  const float* sums;      // (rows, k / group): sums of x over groups, where there are biases
  float* out;             // (rows, n)
  int rows, n, k, group, bits;
  Mode mode;
};

struct NormArgs {
  const float* x;       // (rows, dim)
  const float* weight;  // (dim) or null
  const float* added;   // (rows, dim) or null: out = added + norm(x)
  float* out;
  int rows, dim;
  float eps;
};

struct AttentionArgs {
  const float *q, *k, *v;  // (heads * rows, dim) of one batch entry; (kv_heads, slots, dim) with strides
  const bool* mask;        // (rows, slots)
  float* out;              // (rows, heads, dim): ready for the output projection
  float* scores;           // scratch (heads / kv_heads * rows, slots rounded up to 8)
  int64_t head_stride;     // of k and v, in floats
  int heads, kv_heads, rows, slots, dim;
  float scale;
};

struct Form {
  const char* name;
  void (*qmm)(const QmmArgs&, int begin, int end);            // columns [begin, end)
  void (*norm)(const NormArgs&, int begin, int end);          // rows [begin, end)
  void (*geglu)(const float* gate, const float* up, float* out, int64_t size);
  void (*attention)(const AttentionArgs&, int kv_head);
};

extern const Form portable_form;
extern const Form avx2_form;

// The best form this processor can run, or the one named by PILOTFISH_FORM.
const Form& form();

}  // namespace pilotfish
