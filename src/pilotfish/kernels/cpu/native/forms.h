// The plain-pointer kernels, one set per instruction set. Every kernel keeps the contract: row i depends on row i only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pilotfish {

enum class DType { f32, bf16, f16 };
enum class ScaleType { f32, bf16, f16, e4m3, e8m0 };
enum class Format { dense_f32, dense_bf16, dense_f16, int2, int3, int4, int5, int6, int8, e2m1, e4m3 };

// (n, k) weights, row by row.
struct Matrix {
  const uint8_t* w;
  const void* scales;    // (n, k / group); null for dense
  const void* biases;    // the same, or null
  ScaleType scale_type;  // of scales and biases
  Format format;
  int n, k, group;
  float factor;  // of every result
};

constexpr int KEY_BLOCK = 256;  // keys whose scores are weighed together; blocks begin at multiples of it

// One key/value head of one sequence. Row i stands at position length + i and sees `window` positions up to its own.
struct AttentionArgs {
  const float* q;       // row i, head h of those that share the key/value head: q + i * q_row + h * dim
  const void *k[2], *v[2];  // runs of (positions, dim): from `first`, and from `split` on; with `ring`, only the first,
  int64_t first, split;     // in which position p lies in slot p % ring
  int64_t length, window, q_row;
  DType type;  // of keys and values
  int ring, shared, dim;  // dim: a multiple of 16
  float scale;
};

struct Form {
  const char* name;
  // `packed` holds packed_size floats, aligned to a cache line; matmul does columns [begin, end).
  int64_t (*packed_size)(int rows, int k);
  void (*pack)(const float* x, int rows, int k, bool transposed, float* packed);
  void (*matmul)(const Matrix&, const float* packed, const float* sums, int rows, float* out, int64_t out_stride,
                 int begin, int end);
  void (*unpack)(const Matrix&, int64_t row, float* out);
  void (*norm)(const float* x, const float* weight, int dim, float eps, float* out);
  void (*geglu)(const float* gate, const float* up, float* out, int64_t size);
  void (*softcap)(const float* x, float cap, float* out, int64_t size);
  void (*rotate)(const float* x, const float* cosine, const float* sine, int dim, float* out);
  void (*to_floats)(DType type, const void* from, int64_t count, float* out);
  void (*from_floats)(const float* x, int64_t count, DType type, void* out);
  // Query rows [begin, end) against one block; per row and head: maximum, sum and weighted sum of values.
  void (*attention_block)(const AttentionArgs&, int block, int begin, int end, float* most, float* total, float* mixed);
  void (*join)(float& most, float& total, float* mixed, float block_most, float block_total, const float* block_mixed,
               int dim);
};

extern const Form portable_form;
extern const Form avx2_form;

// The forms that this processor can run, the best first.
const std::vector<const Form*>& forms();

// The one in use: the best, or the one named by PILOTFISH_FORM or `use_form`, which tests call between operations.
const Form& form();
void use_form(const std::string& name);  // throws std::invalid_argument where this processor cannot run it

// Whether a format's lanes hold neighbouring weights, which `pack` must know.
constexpr bool is_transposed(Format format) { return format == Format::int4 || format == Format::e2m1; }

}  // namespace pilotfish
